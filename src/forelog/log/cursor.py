"""Reading a log record by record.

A cursor is an iterator of `Record`s over the bulk path: blocks come from a `Walk`, records are made from
them as they are asked for. It holds the read lock, shared, so that cleaners wait for it; a following one
holds the lock only while it reads, so that cleaning goes on while it waits.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     positions = log.append_many([b"one", b"two", b"three"])
>>> with stream.cursor(start=positions[1]) as cursor:
...     [record.payload for record in cursor]
[b'two', b'three']
>>> with stream.cursor(reverse=True) as cursor:
...     next(cursor).payload
b'three'
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Self

from forelog.closing import AsyncClosing
from forelog.files import Lock, Watch
from forelog.files.forks import let_go_in_children
from forelog.formats import Block
from forelog.kernel.types import TIME_MAX, TIME_MIN
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import NO_END, read_end
from forelog.log.metrics import Metrics
from forelog.log.position import Position, Record, make_position, make_record
from forelog.log.seek import chunk_bounds, find_segment
from forelog.log.walk import Defect, OnCorruption, Walk, check_on_corruption

_OUTSIDE = (TIME_MIN, TIME_MAX)
_WAIT_SECONDS_MAX = 1.0  # how long a follower relies on the watch before it looks again anyway
_PAUSE_SECONDS_MIN = 0.0005  # while something is being written


class Cursor(AsyncClosing):
    """An iterator over records; make one with `Stream.cursor()`."""

    def __init__(
        self,
        directory: Directory,
        metrics: Metrics,
        *,
        start: Position | None = None,
        until: Position | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        reverse: bool = False,
        follow: bool = False,
        on_corruption: OnCorruption = "raise",
        timeout: float | None = None,
        frames: bool = False,
    ) -> None:
        if reverse and follow:
            raise ValueError("a reversed cursor can't follow: it starts at the end and goes back")
        self._directory = directory
        self._metrics = metrics
        self._start = start
        self._until = until
        self._since_ns = since_ns
        self._until_ns = until_ns
        self._reverse = reverse
        self._follow = follow
        self._on_corruption = on_corruption
        self._timeout = timeout
        self._frames = frames
        self._lock: Lock | None = None
        self._watch: Watch | None = None
        self._closed = False
        self._end = NO_END
        """What the end mark said before the last wait."""
        self._pause = _WAIT_SECONDS_MAX
        directory.check()  # a missing log is reported here, not at the first record
        check_on_corruption(on_corruption)  # so is a wrong option
        let_go_in_children(self)
        if not follow:
            self.lock()
        self.reset()

    # -- opening and closing

    def lock(self) -> None:
        """Take the shared read lock, waiting for a cleaner to finish. Opening a cursor does this; reset() keeps
        the lock."""
        if self._lock is None:
            self._lock = self._directory.read_lock(timeout=self._timeout)

    def unlock(self) -> None:
        """Let cleaners work. Reading after this takes the lock again for each block."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.release()

    def _forked(self) -> None:
        # A child that reads on takes a lock of its own, and one that doesn't keeps no cleaner waiting.
        self.unlock()
        if self._watch is not None:  # a change reported to the child would be lost to the parent
            self._watch.close()
            self._watch = None

    def reset(self) -> None:
        """Go back to the start of the range that the cursor was opened with."""
        self._walk: Walk | None = None
        self._path = ""
        self._numbers: list[int] = []
        self._rows: Iterator[Record] = iter(())
        self._position = self._start or Position(0, 0)
        self._reversed = self._reversed_chunks() if self._reverse else None

    def close(self) -> None:
        """Release files and locks."""
        self._closed = True
        self._rows = iter(())
        if self._walk is not None:
            self._walk.close()
        if self._reversed is not None:
            self._reversed.close()  # type: ignore[attr-defined]
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self.unlock()

    # -- its state

    @property
    def position(self) -> Position:
        """Where to resume: the place after the last record that was returned."""
        return self._position

    @property
    def segment(self) -> str:
        """The path of the segment of the last record that was returned; empty before the first."""
        return self._path

    @property
    def torn(self) -> Defect | None:
        """The torn tail at the end of the log, if there is one."""
        return self._walk.torn if self._walk else None

    @property
    def defects(self) -> list[Defect]:
        """The damage that was skipped so far; at most the first thousand places."""
        return self._walk.defects if self._walk else []

    # -- iterating

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        for record in self._rows:
            position, _, _, frame_bytes = record
            self._position = position if self._reverse else make_position((position[0], position[1] + frame_bytes))
            return record
        while True:
            if self._load():
                return self.__next__()
            if not self._follow or self._ended():
                raise StopIteration
            self._watching().wait(self._patience())

    def read(self, timeout: float | None = None) -> Record | None:
        """Return the next record, or None at the end. A follower waits for one, for at most `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (record := self._take()) is None:
            rest = self._rest_of_wait(deadline)
            if rest is None:
                return None
            self._watching().wait(rest)
        return record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        record = await self.read_async()
        if record is None:
            raise StopAsyncIteration
        return record

    async def read_async(self, timeout: float | None = None) -> Record | None:
        """Return the next record, as read() does, without blocking the event loop."""
        from forelog.log.aio import wait_for_change

        deadline = None if timeout is None else time.monotonic() + timeout
        while (record := self._take()) is None:
            rest = self._rest_of_wait(deadline)
            if rest is None:
                return None
            await wait_for_change(self._watching(), rest)
        return record

    def _take(self) -> Record | None:
        """The next record, if there is one already."""
        while True:
            for record in self._rows:
                self._position = record.position if self._reverse else record.next_position
                return record
            if not self._load():
                return None

    def _rest_of_wait(self, deadline: float | None) -> float | None:
        """How long to wait for more; None if there is nothing to wait for, or no time left."""
        if not self._follow or self._ended():
            return None
        rest = _WAIT_SECONDS_MAX if deadline is None else deadline - time.monotonic()
        return min(rest, self._patience()) if rest > 0 else None

    def _patience(self) -> float:
        """How long to rely on the file watch. It reports a write before the end mark covers it, and not the
        mark."""
        before, self._end = self._end, read_end(self._directory)
        if self._end != before:
            self._pause = _PAUSE_SECONDS_MIN
        elif self._end.intended > self._end.committed:
            self._pause = min(self._pause * 2, _WAIT_SECONDS_MAX)
        else:
            self._pause = _WAIT_SECONDS_MAX
        return self._pause

    def _ended(self) -> bool:
        return self._closed or (self._walk is not None and self._walk.done)

    def _load(self) -> bool:
        """Read the next records. Returns False at the end, for now or for ever."""
        if self._closed:
            return False
        borrowed = self._lock is None
        if self._follow:
            self._watching().drain()  # before reading: a change after this wakes the next wait
        if borrowed:
            self.lock()
        try:
            if self._reversed is not None:
                chunk = next(self._reversed, None)
                if chunk is None:
                    return False
                self._rows = iter(chunk)
                return True
            walk = self._walk_forward()
            if borrowed:
                walk.revalidate()
            block = walk.next_block()
            if block is None:
                return False
            self._path = block.path
            # A block's buffer is the walk's own and is refilled by the next call: all are made now.
            self._rows = iter(records_of(block, self._directory.format.exact_time, frames=self._frames))
            return True
        finally:
            if borrowed:
                self.unlock()

    def _walk_forward(self) -> Walk:
        if self._walk is None:
            start = self._position
            if self._since_ns is not None:
                start = max(start, find_segment(self._directory, self._since_ns))
            self._walk = self._new_walk(start, self._until)
            self._walk.check_start()
        return self._walk

    def _new_walk(self, start: Position, stop: Position | None) -> Walk:
        return Walk(
            self._directory,
            start=start,
            stop=stop,
            since_ns=self._since_ns,
            until_ns=self._until_ns,
            on_corruption=self._on_corruption,
            metrics=self._metrics,
            numbers=self._numbers,
        )

    # -- following

    def _watching(self) -> Watch:
        if self._watch is None:
            self._watch = self._directory.files.watch(self._directory.path)
        return self._watch

    # -- backwards

    def _reversed_chunks(self) -> Iterator[list[Record]]:
        start = self._start or Position(0, 0)
        if self._since_ns is not None:
            start = max(start, find_segment(self._directory, self._since_ns))
        self._numbers = self._directory.numbers()
        for number in reversed(self._numbers):
            if number < start.segment:
                return
            if self._until is not None and Position(number, 0) >= self._until:
                continue
            end = Position(number + 1, 0)
            stop = end if self._until is None else min(self._until, end)
            first = max(start, Position(number, 0))
            for low, high in reversed(chunk_bounds(self._directory, number, first, stop)):
                with contextlib.closing(self._new_walk(low, high)) as walk:
                    self._walk = walk
                    rows = [
                        record
                        for block in walk
                        for record in records_of(block, self._directory.format.exact_time, frames=self._frames)
                    ]
                if rows:
                    self._path = self._directory.segment_path(number)
                    rows.reverse()
                    yield rows


def records_of(block: Block, exact_time: Callable[[bytes], int], *, frames: bool = False) -> list[Record]:
    """The wanted rows of a block as records. With `frames` a payload is the whole encoded record."""
    segment, buffer, offsets = block.segment, block.buffer, block.offsets
    physical, starts, ends, times = block.scan.offsets, block.scan.starts, block.scan.ends, block.scan.times
    base, count = block.base, len(physical)
    following = physical[1:]
    following.append(base + block.scan.end)
    if frames:
        starts, ends = (array("q", (place - base for place in places)) for places in (physical, following))
    records = []
    for row in range(block.first, block.last if block.last < count else count):
        at = physical[row]
        time_ns = times[row]
        if time_ns in _OUTSIDE:
            time_ns = exact_time(bytes(buffer[at - base : at - base + 16]))
        records.append(
            make_record(
                (
                    make_position((segment, offsets[row])),
                    time_ns,
                    buffer[starts[row] : ends[row]].tobytes(),
                    following[row] - at,
                )
            )
        )
    return records
