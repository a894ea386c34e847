"""What writes to the log beside the event loop, where a write takes as long as a sync: a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from forelog.jobs.log.commandlog import CommandLog
from forelog.jobs.machine.ledger import Notes
from forelog.log.position import Positions

Done = Callable[[int | Positions, BaseException | None], None]


class Writer(Protocol):
    """Writes one batch of commands after the other."""

    def write(self, records: list[bytes], notes: Notes, done: Done) -> None:
        """Write, then call `done` from wherever that happens: with the place of the records, or the error."""

    def close(self) -> None:
        """Finish what is to be written."""


class ThreadWriter:
    """Writes on a thread of its own, one batch of commands after the other."""

    def __init__(self, log: CommandLog) -> None:
        self._log = log
        self._work: SimpleQueue[tuple[list[bytes], Notes, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="forelog-jobs", daemon=True)
        self._thread.start()

    def write(self, records: list[bytes], notes: Notes, done: Done) -> None:
        """Write, then call `done` on the thread: with the place of the records, or the error."""
        self._work.put((records, notes, done))

    def close(self) -> None:
        """Finish what is to be written, and end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            records, notes, done = work
            where: int | Positions = 0
            error = None
            try:
                where = self._log.write(records, notes)
            except Exception as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits
                done(where, error)
