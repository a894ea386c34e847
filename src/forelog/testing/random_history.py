"""Long random histories of everything that a writer can do."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable

from forelog.errors import ForelogError
from forelog.log.appender import Appender
from forelog.testing.disk import Operation
from forelog.testing.timeline import READS
from forelog.testing.writer import AppenderOptions, History, Writer

_SIZES = (4, 8, 8, 20, 60)
_JOURNAL_BYTES = 8192


def random_history(seed: int, actions: int = 12) -> History:
    """A long history of random actions: appends, refusals, failed syncs, rolls, cleaning, reopening, kills."""

    def history(writer: Writer) -> None:
        _Course(writer, random.Random(seed)).run(actions)

    history.__name__ = f"random_history_{seed}"
    return history


class _Course:
    """Carries out the actions of a random history."""

    def __init__(self, writer: Writer, rng: random.Random) -> None:
        self._writer = writer
        self._rng = rng
        self._stream = writer.stream()
        self._options: AppenderOptions = {}
        self._log: Appender | None = None

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self._act(self._rng.choice(_WORDS))
        self._open()
        self._append()
        self._close()

    def _act(self, word: str) -> None:
        """Carry out one action; it may fail."""
        try:
            if self._log is None or self._log.failed:
                self._open()
            getattr(self, f"_{word}")()
        except (ForelogError, OSError):
            pass
        if not self._writer.disk.dead:
            self._expose()

    def _expose(self) -> None:
        """Note which records readers can read: not those in a spare that has no name yet."""
        spare = self._log.active.spare if self._log is not None else None
        if spare is None or spare.named:
            self._writer.expose()

    # -- actions

    def _open(self) -> None:
        self._close()
        rng = self._rng
        self._options = {
            "sync": rng.choice(("os", "always")),
            "segment_bytes": rng.choice((30, 120, 1000)),
            "spare": rng.random() < 0.3,
            "journal_bytes": _JOURNAL_BYTES if rng.random() < 0.2 else 0,
        }
        self._log = self._writer.appender(self._stream, **self._options)

    def _close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            with contextlib.suppress(ForelogError, OSError):
                log.close()

    def _append(self) -> None:
        self._writer.append(self._log, self._rng.choice(_SIZES), readable=False)

    def _many(self) -> None:
        self._writer.append_many(self._log, self._rng.randrange(1, 5), self._rng.choice(_SIZES), readable=False)

    def _roll(self) -> None:
        if self._log is not None:
            self._log.roll()

    def _sync(self) -> None:
        if self._log is not None:
            self._log.sync()

    def _refused(self) -> None:
        """Append a batch to a disk that becomes full in the middle of it."""
        with self._writer.full_after(self._rng.randrange(1, 80)):
            self._many()

    def _failing(self) -> None:
        """Have one operation fail. Under `os` not a sync: nobody would know whether acknowledged records are
        there."""
        kinds = ("write", "truncate", "rename", "open_append", *(("sync",) if self._is_always else ()))
        fault = self._writer.disk.fail(_nth(self._rng, lambda operation: operation.kind in kinds), errno.EIO)
        try:
            self._many()
        finally:
            fault.stop()

    @property
    def _is_always(self) -> bool:
        return self._options.get("sync") == "always"

    def _clean(self) -> None:
        divisor = self._rng.choice((2, 3, 1))

        def drop(payload: bytes) -> bool:
            return int(payload[:4]) % divisor == 0

        self._writer.forget(drop)
        with self._stream.cleaner() as cleaner:
            cleaner.clean(lambda _, record: drop(record.payload))

    def _killed(self) -> None:
        """Kill the process in one of its next actions, perhaps in the middle of a write."""
        rng = self._rng
        bytes_written = rng.choice((None, rng.randrange(1, 80)))
        kinds = ("write",) if bytes_written is not None else ()
        when = _nth(rng, lambda operation: operation.kind in kinds if kinds else operation.kind not in READS)
        with self._writer.killed(when, bytes_written):
            for _ in range(3):
                self._act(rng.choice(_WORDS_TO_DIE_IN))
        self._log = None
        self._open()


_WORDS_TO_DIE_IN = ["append"] * 3 + ["many"] * 4 + ["roll", "sync", "clean", "open"]
_WORDS = [*_WORDS_TO_DIE_IN, "refused", "refused", "failing", "killed", "killed"]


def _nth(rng: random.Random, matches: Callable[[Operation], bool]) -> Callable[[Operation], bool]:
    """A predicate for one operation: the nth that matches, for a random n."""
    left = rng.randrange(12)

    def chosen(operation: Operation) -> bool:
        nonlocal left
        if not matches(operation):
            return False
        left -= 1
        return left == -1

    return chosen
