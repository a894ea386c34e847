"""Copies of a state log: in a directory, and on a replica server in a process of its own.

The reader is the state log itself, which sends on what it has appended, in the writer's process, and the server
that keeps it. In the end each copy is read like a log. An update waits until both copies have synced it, but for a
log that rolls: it would roll only when nobody reads.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from forelog import Stream
from forelog.copies.slots import whole_slot
from forelog.formats.state import EVENT, FORMAT
from tests.readers.ledger import Noted, read_ledger
from tests.readers.pair import Pair, Plan, joined
from tests.readers.records import Seen, as_seen
from tests.readers.writer import Writer
from tests.state.keeping import Replica

LOG_NAME = "things"


class StateCopies(Pair):
    """A state log that is copied beside its writer. What is seen is the copy in the directory."""

    reader = "copy"

    def __init__(self, way: str, place: Path, folder: Path, plan: Plan) -> None:
        super().__init__(way, place, folder, plan)
        self.path = place / "state"
        self.copy = folder / "copy"
        self.server: Replica | None = None
        self.writer: Writer | None = None

    @property
    def stream(self) -> Stream:
        return Stream(self.path, format=FORMAT)

    def start(self) -> None:
        self.server = Replica(self.folder / "replica")
        where = json.dumps([str(self.copy), self.server.url(LOG_NAME)])
        said = self.folder / "writer.said"
        self.writer = Writer(self.way, self.path, self.ledger, "--copies", where, said=said, seed=self.plan.seed)

    def work(self) -> None:
        assert self.writer is not None
        self.writer.work(self.plan.seconds, self.plan.kills)

    def has(self, noted: Noted) -> bool:
        """The writer pauses only when both have everything, or never will."""
        return True

    def pids(self) -> list[int]:
        assert self.server is not None
        assert self.writer is not None
        return [self.server.process.pid, self.writer.child.pid]

    def finish(self) -> str | None:
        assert self.server is not None
        assert self.writer is not None
        complaint = self.writer.finish()
        self.server.process.send_signal(signal.SIGTERM)
        self.server.process.wait(30)
        return joined(complaint, self._away(), self._differ())

    def _away(self) -> str | None:
        """Nothing keeps a copy away here: one that is has lost its place in the log."""
        reasons = [why for why in read_ledger(self.ledger).reasons if why.startswith("NotReplicated")]
        return f"a copy was away {len(reasons):,} times, first because: {reasons[0]:.200}" if reasons else None

    def _differ(self) -> str | None:
        copies = self.seen(), events(self.folder / "replica" / LOG_NAME)
        if copies[0] == copies[1]:
            return None
        return f"the copies differ: {len(copies[0]):,} in the directory, {len(copies[1]):,} on the server"

    def seen(self) -> list[Seen]:
        return events(self.copy)

    def kept(self) -> list[Seen]:
        return _events(self.stream)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        if self.server is not None:
            self.server.close()


def events(copy: Path) -> list[Seen]:
    """The events of a copy, with their positions: they are those of the log."""
    slot = whole_slot(str(copy))
    return [] if slot is None else _events(Stream(slot, format=FORMAT))


def _events(stream: Stream) -> list[Seen]:
    with stream.cursor() as cursor:
        records = [(record.payload, record.position) for record in cursor]
    return as_seen((data[1:], position) for data, position in records if data[:1] == EVENT)
