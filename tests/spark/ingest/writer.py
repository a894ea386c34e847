"""A writer beside an ingest: appends and rolls, and cleans away what the table has, until it gets a line.

`python -m tests.spark.ingest.writer LOG TARGET` says `open`, then `cleaned` once there was something to forget,
and at the end how many records it has written and how many it has forgotten.
"""

from __future__ import annotations

import select
import sys
import time

from forelog import Record, Stream
from forelog.spark.tables.commits import load_state
from forelog.spark.tables.storage import storage_of


def main() -> None:
    path, target = sys.argv[1:]
    stream = Stream(path)
    number = cleaned = 0
    with stream.appender(segment_bytes=20_000) as appender:
        appender.append(b"0:")
        print("open", flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            for _ in range(20):
                number += 1
                appender.append(b"%d:" % number + b"x" * (number % 90))
            if number % 2000 == 0 and (forgotten := clean(stream, target)):
                if not cleaned:
                    print("cleaned", flush=True)
                cleaned += forgotten
            time.sleep(0.002)
    print(number + 1, cleaned)


def clean(stream: Stream, target: str) -> int:
    """Forget what the table has, all of it in earlier segments, half of it in the one that it has got to."""
    reached = load_state(storage_of(target)).positions.get("log")
    if reached is None:
        return 0

    def forget(_: str, record: Record) -> bool:
        odd = int(record.payload.split(b":")[0]) % 2 == 1
        return record.position < reached and (record.position.segment < reached.segment or odd)

    with stream.cleaner() as cleaner:
        return cleaner.clean(forget).records_dropped


if __name__ == "__main__":
    main()
