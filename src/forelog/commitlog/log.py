"""Many producers, one writer.

::

    producer --.
    producer ---+--> queue, bounded --> writer --> segment         appended to
    task -------'    writes and events    |   \\--> spare           open and empty, for the next rotation
                                          `------> old segment     sealed in the background

Producers put writes into a queue and continue (`behind`), or wait until they are on stable storage (`wait`).
One writer at a time takes everything that is queued, writes it with one system call, and syncs it once for
all producers that wait. The writer is the thread of a waiting producer, or one of the log's own.

A rotation is queued too: it has its place in the order of writes.

>>> import tempfile
>>> with CommitLog(tempfile.mkdtemp(), strategy="wait") as log:
...     print(log.write(b"one"), log.write_batch([b"two", b"three"])[-1])
000000001:8 000000001:54
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, cast, overload
from weakref import WeakSet

from forelog.bounds import BYTES_MAX, TIMER_MS_MAX, check_number, check_whole
from forelog.closing import Closing
from forelog.commitlog.failure import FailurePolicy, OnFailure, Reaction
from forelog.commitlog.writes import Control, Strategy, Write
from forelog.errors import AppenderClosed, AppenderFailed, ForelogError, RecordTooLarge
from forelog.files import Files, OSFiles
from forelog.files.forks import let_go_in_children
from forelog.formats import Format, FormatName, named_format
from forelog.kernel import LoneWriter
from forelog.log.appender import BATCH_BYTES_MAX, Appender, Payload
from forelog.log.commit import ROUND_BYTES_MAX, GroupCommit, Request
from forelog.log.directory.tenants import refuse_others
from forelog.log.metrics import Metrics
from forelog.log.position import Position, Positions
from forelog.log.stream import PathLike, Stream

if TYPE_CHECKING:
    from forelog.commitlog.aio import AsyncCommitLog
    from forelog.formats.m3 import Series

logger = logging.getLogger("forelog")

QUEUE_MAX_WRITES = 16_384
QUEUE_MAX_BYTES = 64 << 20
FLUSH_BYTES = 4 << 20
FLUSH_INTERVAL_MS = 1000

_NEVER = BYTES_MAX


class Options(TypedDict, total=False):
    """The options of a CommitLog that its files don't have."""

    strategy: Strategy | Literal["wait", "behind"]
    queue_max_writes: int
    queue_max_bytes: int
    queue_timeout: float | None
    flush_bytes: int
    flush_interval_ms: float
    segment_bytes: int | None
    on_failure: OnFailure
    failure_callback: Callable[[Exception], object] | None
    timeout: float | None
    clock: Callable[[], int] | None
    mode: int | None


_opened: WeakSet[CommitLog] = WeakSet()


@atexit.register
def _close_at_exit() -> None:
    """When the program ends, write what is still queued."""
    for log in list(_opened):
        try:
            log.close()
        except ForelogError as error:
            logger.error("closing %s at exit: %s", log.path, error)


class CommitLog(Closing):
    """A queue in front of a log, and a writer behind it.

    `format` is "captain" (payloads are bytes), "m3" (series and datapoints), or a Format. The queue holds
    `queue_max_writes` writes and `queue_max_bytes` bytes; a producer that finds it full waits for room, at
    most `queue_timeout` seconds (None for ever, 0 not at all), and then gets QueueFull. Under `behind` what
    was written is synced every `flush_bytes` bytes and every `flush_interval_ms` milliseconds. Segments are
    rotated by `rotate_logs`, and by `segment_bytes` if that is given. `on_failure` says what happens when the
    disk fails: see `FailurePolicy`. `mode` is that of a new log's files.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        format: FormatName | Format = "captain",  # noqa: A002 - the name that users know
        strategy: Strategy | Literal["wait", "behind"] = Strategy.WAIT,
        queue_max_writes: int = QUEUE_MAX_WRITES,
        queue_max_bytes: int = QUEUE_MAX_BYTES,
        queue_timeout: float | None = None,
        flush_bytes: int = FLUSH_BYTES,
        flush_interval_ms: float = FLUSH_INTERVAL_MS,
        segment_bytes: int | None = None,
        on_failure: OnFailure = FailurePolicy.STOP,
        failure_callback: Callable[[Exception], object] | None = None,
        timeout: float | None = None,
        files: Files | None = None,
        clock: Callable[[], int] | None = None,
        mode: int | None = None,
    ) -> None:
        try:
            self.strategy = Strategy(strategy)
        except ValueError:
            raise ValueError(f"strategy is {strategy!r}: expected 'wait' or 'behind'") from None
        check_whole("queue_max_writes", queue_max_writes)
        check_whole("queue_max_bytes", queue_max_bytes)
        check_number("queue_timeout", queue_timeout, or_none="to wait for ever")
        check_whole("flush_bytes", flush_bytes)
        check_number("flush_interval_ms", flush_interval_ms, above=True, most=TIMER_MS_MAX)
        check_whole("segment_bytes", segment_bytes, or_none="to rotate by rotate_logs alone")
        self._reaction = Reaction(on_failure, failure_callback)
        self._format = named_format(format)
        self.path = os.path.join(os.fspath(path), self._format.folder) if self._format.folder else os.fspath(path)
        if self._format.folder:
            refuse_others(files or OSFiles(), os.fspath(path), "a commit log in M3's format", kind="m3")
        self.stream = Stream(self.path, format=self._format, files=files, clock=clock, mode=mode)
        self._segment_bytes = _NEVER if segment_bytes is None else segment_bytes
        self._waits = self.strategy is Strategy.WAIT
        self._flush_bytes = flush_bytes
        self._flush_interval = flush_interval_ms / 1000
        self._error: Exception | None = None
        self._appender = self._open(timeout)
        self.commit: GroupCommit[Any] = GroupCommit(
            self._write_round,
            queue_max_writes=queue_max_writes,
            queue_max_bytes=queue_max_bytes,
            queue_timeout=queue_timeout,
        )
        self._lone = self._lone_writer()
        self.metrics.add_source(self._gauges)
        self._unsynced_writes = 0
        self._rotating = threading.Lock()
        self._closing = False
        self._closed = False
        # In C: unlike an Event, an interrupt of the main thread can't leave it locked.
        self._flush_due: SimpleQueue[None] = SimpleQueue()
        self._flusher: threading.Thread | None = None
        if not self._waits:
            self._flusher = threading.Thread(target=self._flush_at_intervals, name="forelog-flush", daemon=True)
            self._flusher.start()
        _opened.add(self)
        let_go_in_children(self)

    @classmethod
    def open(cls, path: PathLike, *, files: Files | None = None, **options: Unpack[Options]) -> Self:
        """Open an existing log, in the format of its files. The options are those of CommitLog."""
        stream = Stream.open(path, files=files)
        folder = stream.format.folder
        place = os.path.dirname(stream.path) if folder and os.path.basename(stream.path) == folder else stream.path
        return cls(place, format=stream.format, files=files, **options)

    def _open(self, timeout: float | None) -> Appender:
        return self.stream.appender(
            sync="os",
            segment_bytes=self._segment_bytes,
            batch_bytes_max=BATCH_BYTES_MAX + ROUND_BYTES_MAX,
            spare=True,
            visible="synced" if self._waits else "written",
            timeout=timeout,
        )

    # -- producers

    @overload
    def write(self, payload: Payload, /) -> Position | None: ...
    @overload
    def write(
        self,
        series: Series,
        datapoint: tuple[int, float],
        unit: int = ...,
        annotation: Payload | None = None,
        *,
        created_ns: int | None = None,
    ) -> Position | None: ...
    @overload
    def write(
        self, topic: str, payload: Payload = b"", properties: Mapping[str, Any] | None = None
    ) -> Position | None: ...
    def write(self, *args: Any, **kwargs: Any) -> Position | None:
        """Write one item: a payload, or a series, a datapoint, and optionally a unit and an annotation.

        Under `wait` it returns the write's position, once the write is on stable storage. Under `behind` it
        returns None, once the write is queued.
        """
        if not self._waits:
            self._put(self.write_of(*args, **kwargs))
            return None
        item = self._format.item(*args, **kwargs)
        if self._format.item_bytes(item) > BATCH_BYTES_MAX:
            self._made([item], self._format.item_bytes(item))  # raises
        if self._error is not None:
            self._check_usable()
        position: Position = self._lone.append(item)
        return position

    def write_batch(self, items: Iterable[Any]) -> Sequence[Position] | None:
        """Write items that stay together. An item is a payload, or a tuple (series, datapoint[, unit,
        annotation])."""
        return self._put(self.write_of_batch(items))

    def rotate_logs(self) -> str:
        """Continue in a new segment, in order with the writes. Returns its path.

        Writers continue at once. The caller waits until everything written before is synced and the new segment
        has its name. A segment without writes is not rotated; its path is returned.
        """
        with self._rotating:
            self._appender.wait_ready()  # or the writer would, with everyone else's writes behind it
            path: str = self.commit.submit(self._control(Control.ROTATE))
            self._appender.wait_sealed()
        return path

    def flush(self) -> None:
        """Return when everything that was written before is on stable storage."""
        self.commit.submit(self._control(Control.FLUSH))

    def active_logs(self) -> list[str]:
        """The paths of the open segments: the one that is written, and before it one that is being sealed, if
        any."""
        return self._appender.open_segments

    def queue_length(self) -> int:
        """How many writes wait for the writer."""
        return self.commit.queue.writes

    def snapshot(self) -> dict[str, Any]:
        """Counters, timings and sizes as of now."""
        return self.metrics.snapshot()

    @property
    def metrics(self) -> Metrics:
        return self.stream.metrics

    @property
    def appender(self) -> Appender:
        """The appender that writes the segments now. After a failure, the policy may replace it."""
        return self._appender

    @property
    def failed(self) -> Exception | None:
        """The error that ended this log, if one did."""
        return self._error

    @property
    def aio(self) -> AsyncCommitLog:
        """This log for tasks: the same methods, to be awaited."""
        from forelog.commitlog.aio import AsyncCommitLog

        return AsyncCommitLog(self)

    def write_of(self, *args: Any, **kwargs: Any) -> Write:
        """What write() puts into the queue."""
        item = self._format.item(*args, **kwargs)
        return self._made([item], self._format.item_bytes(item))

    def write_of_batch(self, items: Iterable[Any]) -> Write:
        """What write_batch() puts into the queue."""
        if isinstance(items, bytes | bytearray | memoryview | str):
            raise TypeError(f"items is one {type(items).__name__}: expected several, or use write()")
        item = self._format.item
        batch = [item(*one) if isinstance(one, tuple) else item(one) for one in items]
        return self._made(batch, sum(map(self._format.item_bytes, batch)))

    def _made(self, items: list[Any], size: int) -> Write:
        if size > BATCH_BYTES_MAX:
            raise RecordTooLarge(
                f"{len(items)} items take up to {size} bytes in one write: the limit is {BATCH_BYTES_MAX}"
            )
        if self._error is not None:
            self._check_usable()
        write = Write(items, size)
        write.synced = self._waits
        return write

    def _control(self, control: Control) -> Write:
        self._check_usable()
        write = Write((), 0)
        write.control = control
        write.synced = control is Control.FLUSH
        return write

    def _put(self, write: Write) -> Sequence[Position] | None:
        if not write.synced:
            self.commit.post(write)
            return None
        positions: Positions = self.commit.submit(write)
        return positions

    def _check_usable(self) -> None:
        if self._error is not None:
            raise AppenderFailed(*self._error.args) from self._error

    # -- the writer: one thread at a time

    def _lone_writer(self) -> LoneWriter:
        """Make what writes for a waiting producer that has no company."""
        return self._appender.lone_writer(
            self.commit.queue, self._write_among, "write", sizes="batch_writes", failed=self._note_failed
        )

    def _write_among(self, item: Any) -> Position:
        """Write an item together with others, or in the rare cases."""
        positions: Positions = self.commit.submit(self._made([item], self._format.item_bytes(item)))
        return positions[0]

    def _note_failed(self, error: Exception) -> None:
        """Apply the policy to the error of a lone writer, which still keeps others from writing."""
        if self._error is None and not self._reaction.goes_on(self.path, error):
            self._error = error
        if self._appender.failed is not None and self._error is None:
            self._reopen()

    def _write_round(self, requests: list[Request[Any]]) -> None:
        """Write what producers handed in, in runs between controls; then sync once for all that wait."""
        writes = cast(list[Write], requests)
        run: list[Write] = []
        for write in writes:
            if write.control is None:
                run.append(write)
                continue
            self._attempt(self._append, run)
            run = []
            if write.control is Control.ROTATE:
                self._attempt(self._rotate, [write])
        self._attempt(self._append, run)
        self._attempt(self._sync, [write for write in writes if write.synced and write.error is None])
        if self._appender.unsynced_bytes >= self._flush_bytes and self._flush_due.empty():
            self._flush_due.put(None)
        if self._appender.failed is not None and self._error is None:
            self._reopen()  # only now: this round was written with the old one

    def _append(self, run: list[Write]) -> None:
        items = run[0].items if len(run) == 1 else [item for write in run for item in write.items]
        positions = self._appender.append_many(items)
        self.metrics.measure("batch_writes", len(items))
        if not self._waits:
            self._unsynced_writes += len(items)
            return
        row = 0
        for write in run:
            write.result = positions[row : row + len(write.items)]
            row += len(write.items)

    def _rotate(self, events: list[Write]) -> None:
        self._appender.roll()
        events[0].result = self._appender.open_segments[-1]
        self.metrics.add(rotations=1)

    def _sync(self, waiting: list[Write]) -> None:
        self._appender.sync()
        self._unsynced_writes = 0
        self.metrics.observe("write", time.perf_counter() - waiting[0].begun)

    def _attempt(self, work: Callable[[list[Write]], None], writes: list[Write]) -> None:
        """Run a step. If it fails, each of the writes gets the error, and the policy decides what happens next."""
        if not writes:
            return
        try:
            self._check_usable()
            work(writes)
        except Exception as error:
            for write in writes:
                write.error = error
            self._count_lost(writes)
            if self._error is None and not self._reaction.goes_on(self.path, error):
                self._error = error

    def _count_lost(self, writes: list[Write]) -> None:
        """Count the writes that nobody waits for and that may not be on stable storage."""
        lost = 0 if self._waits else sum(len(write.items) for write in writes)
        if self._appender.failed is not None:
            lost, self._unsynced_writes = lost + self._unsynced_writes, 0
        self.metrics.add(writes_lost=lost)

    def _reopen(self) -> None:
        """Reopen the log after a failed sync, to find out what is on disk, if the policy is to continue."""
        if self._closing:
            return
        try:
            with contextlib.suppress(ForelogError, OSError):
                self._appender.close()
            self._appender = self._open(timeout=0)  # another process may have been waiting for it
            self._lone = self._lone_writer()
        except (ForelogError, OSError) as error:
            logger.error("%s: couldn't be reopened: %s", self.path, error)

    def _flush_at_intervals(self) -> None:
        while not self._closing:
            with contextlib.suppress(Empty):
                self._flush_due.get(timeout=self._flush_interval)
            if self._closing or self._error is not None or not self._appender.unsynced_bytes:
                continue
            # On this thread, not on the writer's: writes continue meanwhile.
            count = self._unsynced_writes
            try:
                self._appender.sync()
                self._unsynced_writes = max(self._unsynced_writes - count, 0)
            except (ForelogError, OSError):
                # The reaction is the writer's, which alone may replace the appender: it will find the same.
                with contextlib.suppress(AppenderFailed, AppenderClosed):
                    self.commit.post(self._control(Control.FLUSH))

    def _gauges(self) -> dict[str, int]:
        return {"queue_length": self.commit.queue.writes, "queue_bytes": self.commit.queue.bytes}

    # -- the end

    def close(self) -> None:
        """Write and sync what is queued, refuse later writes, and release the log. Always ends.

        Under `behind` it raises if some queued write is not on stable storage.
        """
        try:
            _opened.remove(self)
        except KeyError:
            while not self._closed and not self.commit.is_committing():
                time.sleep(0.001)  # another thread closes it: when this returns, it is closed
            return
        try:
            self._closing = True
            self.commit.close(AppenderClosed(f"the commit log {self.path} is closed: open a new one"))
            self._flush_due.put(None)
            if self._flusher is not None and self._flusher is not threading.current_thread():
                self._flusher.join()
        except BaseException:
            _opened.add(self)  # interrupted: it can be closed again
            raise
        try:
            self._close_appender()
        finally:
            self.metrics.remove_source(self._gauges)
            self._closed = True
        if not self._waits:
            self._check_usable()

    def _close_appender(self) -> None:
        failed: ForelogError | OSError | None = self._appender.failed
        try:
            self._appender.close()
        except (ForelogError, OSError) as error:
            failed = failed or error
        if failed is not None and self._error is None:
            # No later write could report it: close() does.
            self._count_lost([])
            self._reaction.goes_on(self.path, failed)
            self._error = failed
            raise AppenderFailed(*failed.args) from failed

    def _forked(self) -> None:
        if self._closed:
            return
        self._error = AppenderFailed(
            errno.EPERM, f"{self.path}: this commit log is the parent process's; open one in the child"
        )
        self._closed = True
        _opened.discard(self)

    async def __aenter__(self) -> AsyncCommitLog:
        return self.aio

    async def __aexit__(self, *_: object) -> None:
        await self.aio.close()
