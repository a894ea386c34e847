"""The items of a dict that another process writes, as its log has them.

Each look takes in first what the log has gained. So a look shows everything that was acknowledged before it. No
lock is held in between: the writer cleans its log as if nobody read it. Whoever has missed what was cleaned away
reads the whole state again.

>>> import tempfile
>>> from forelog.state import PersistentDict
>>> path = tempfile.mkdtemp()
>>> with PersistentDict(path) as prices, PersistentDict(path, read_only=True) as seen:
...     prices["chips"] = 250
...     print(seen["chips"])
250
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from forelog.errors import BadPosition
from forelog.files import Files
from forelog.log.directory.end import End, read_end
from forelog.log.stream import PathLike, Stream
from forelog.log.walk import Walk
from forelog.state.items import ItemCodec
from forelog.state.reader import open_source
from forelog.state.replay import Replayer
from forelog.state.table import K, Table, V


class Reflection(Table[K, V]):
    """A table that is read from a log, and never changed by its user."""

    def __init__(
        self,
        path: PathLike,
        codec: ItemCodec,
        clock: Callable[[], int] | None = None,
        files: Files | None = None,
    ) -> None:
        super().__init__(os.fspath(path), clock)
        self._files = files
        self._source = os.fspath(path)
        self._codec = codec
        self._events: list[Sequence[Any]] = []
        """Events that the log has gained, and that the table doesn't have yet."""
        self._restoring = False
        self._stream: Stream | None = None
        self._walk: Walk | None = None
        """Where the log is read on; None if it has to be read from its start."""
        self._seen: tuple[End, int | None] | None = None
        """The end mark and the size of the last segment, as they were when all was read."""

    def open(self) -> None:
        """Read the whole state. LogNotFound if there is no log."""
        with self._lock:
            self._opened = True
            try:
                self._settle()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            super().close()
            self._forget()

    def _settle(self) -> None:
        if self._opened:
            self._take_in()
        super()._settle()
        self._steady = False

    def _forget(self) -> None:
        walk, self._walk, self._stream, self._seen = self._walk, None, None, None
        if walk is not None:
            walk.close()

    # -- taking in

    def _take_in(self) -> None:
        """Read what the log has gained."""
        seen = self._look()
        if seen is not None and seen == self._seen:
            return
        # Until all of it is in the table, an interrupt or an error has it read from its start.
        walk, self._walk = self._walk, None
        if walk is None or not self._read_on(walk):
            self._forget()
            walk = self._read_all()
        self._unfinished = tuple(self._events)
        self._walk, self._seen = walk, seen

    def _look(self) -> tuple[End, int | None] | None:
        """What shows whether the log has more, and costs little."""
        if self._walk is None or self._stream is None:
            return None
        end = read_end(self._stream.directory)
        # While nobody appends, a copy may still receive something.
        return end, None if end.segment else self._stream.segment_bytes(self._walk.position.segment)

    def _read_on(self, walk: Walk) -> bool:
        """Read on from where the log was left. False if that isn't certain to be all: read it from its start."""
        assert self._stream is not None
        self._events.clear()
        try:
            with self._stream.directory.read_lock():
                if self._stream.segment_bytes(walk.position.segment) is None:
                    return False  # cleaned away, maybe with records that weren't read
                walk.revalidate()
                for block in walk:
                    self._replayer.block(block)
        except (BadPosition, FileNotFoundError):
            return False  # another log is there by now, or this one without its last records
        return True

    def _read_all(self) -> Walk:
        """Read the log from its start."""
        self._items, self._until, self._queue, self._unfinished = {}, {}, [], ()
        self._events.clear()
        self._stream = stream = open_source(self._source, self._files)
        self._replayer = Replayer(stream.path, self._codec, self._arrived)
        with stream.directory.read_lock():
            walk = stream.walk(stream.bounds())
            self._restoring = True
            try:
                for block in walk:
                    self._replayer.block(block)
                self._replayer.check_nothing_is_missing()
            except BaseException:
                walk.close()
                raise
            finally:
                self._restoring = False
        return walk

    def _arrived(self, event: Sequence[Any]) -> None:
        if self._restoring:
            self.replay(event)
        else:
            self._events.append(event)
