"""A follower: `Stream.cursor(follow=True)` in a process of its own.

python -m tests.readers.follower LOG FOLDER
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from forelog import Stream
from tests.readers.ledger import Noted
from tests.readers.pair import LogPair
from tests.readers.records import Notes, Seen, last_seen, read_seen

REACH_RECORDS = 100


class Follower(LogPair):
    """A follower beside a writer."""

    reader = "follower"
    module = "tests.readers.follower"
    crowd_files = 10_000

    def has(self, noted: Noted) -> bool:
        return last_seen(self.folder) >= max(noted.acked, default=0)

    def seen(self) -> list[Seen]:
        return read_seen(self.folder)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    notes = Notes(Path(sys.argv[2]))
    with Stream(sys.argv[1]).cursor(follow=True) as cursor:
        print("ready", flush=True)
        count = 0
        while True:
            record = cursor.read(timeout=0)
            if record is None:
                notes.end()
                notes.reach(cursor.position)
                record = cursor.read(timeout=1.0)
            if record is not None:
                notes.add(record.payload, record.position)
                count += 1
                if count % REACH_RECORDS == 0:
                    notes.reach(cursor.position)


if __name__ == "__main__":
    main()
