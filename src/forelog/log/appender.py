"""Writing to a log.

One appender at a time, across processes, holds `append.lock`; any number of threads and tasks may use it
at once. The sync policy says what `append` promises when it returns:

========  ======================================  =============================================
os        handed to the operating system          survives the process
interval  synced every `sync_interval_ms`         survives power loss, less the last interval
always    synced before append returns            survives power loss
========  ======================================  =============================================

A failed or short write is undone by cutting the segment back to its last whole record. A failed sync can't be
undone: nobody knows what is on disk. Then the appender has *failed*: every later call raises, until the log is
reopened, which reads what is really there.

>>> import forelog, tempfile
>>> with forelog.Stream(tempfile.mkdtemp()).appender(sync="always") as log:
...     print(log.append(b"one"), log.append_many([b"two", b"three"])[-1])
000000001:8 000000001:54
"""

from __future__ import annotations

import contextlib
import enum
import errno
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Self, cast

from forelog import kernel
from forelog.bounds import TIMER_MS_MAX, check_whole
from forelog.errors import AppenderClosed, AppenderFailed, ForelogError, RecordTooLarge
from forelog.files.forks import let_go_in_children
from forelog.kernel import BoundedQueue, LoneWriter
from forelog.kernel.types import REENTERED, TIME_MAX
from forelog.log.active import ActiveSegment
from forelog.log.commit import GroupCommit, Request
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import EndMark
from forelog.log.directory.journal import JOURNAL_BYTES_MAX
from forelog.log.directory.tenants import refuse_others
from forelog.log.directory.watermark import Watermark
from forelog.log.metrics import Metrics
from forelog.log.position import Position, Positions
from forelog.log.recovery import recover

SEGMENT_BYTES = 64 << 20
SYNC_INTERVAL_MS = 1000
BATCH_BYTES_MAX = 256 << 20
_HEAD_BYTES = 16  # what a record's time is in

Payload = bytes | bytearray | memoryview


class SyncPolicy(enum.StrEnum):
    """When appended records are synced."""

    OS = "os"
    INTERVAL = "interval"
    ALWAYS = "always"


Sync = SyncPolicy | Literal["os", "interval", "always"]
Visible = Literal["written", "synced"]


class Appender:
    """Appends records; make one with `Stream.appender()`."""

    def __init__(
        self,
        directory: Directory,
        metrics: Metrics,
        *,
        sync: Sync = SyncPolicy.OS,
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        segment_bytes: int = SEGMENT_BYTES,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        journal_bytes: int = 0,
        spare: bool = False,
        visible: Visible | None = None,
        timeout: float | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        try:
            self._policy = SyncPolicy(sync)
        except ValueError:
            raise ValueError(f"sync is {sync!r}: expected 'os', 'interval' or 'always'") from None
        check_whole("sync_interval_ms", sync_interval_ms, most=TIMER_MS_MAX)
        check_whole("segment_bytes", segment_bytes)
        check_whole("batch_bytes_max", batch_bytes_max)
        check_whole("journal_bytes", journal_bytes, least=0, most=JOURNAL_BYTES_MAX)  # 0: none
        if visible not in (None, "written", "synced"):
            raise ValueError(f"visible is {visible!r}: expected 'written' or 'synced'")
        self._visible = visible or ("synced" if self._policy is SyncPolicy.ALWAYS else "written")
        self._directory = directory
        self._metrics = metrics
        self._segment_bytes = segment_bytes
        self._batch_bytes_max = batch_bytes_max
        self._closed = False
        self._core = kernel.AppendCore(
            directory.format.encode, lambda *write: self.active.undo(*write), self._append_resting, Position, clock
        )
        self._core.frame_bytes_max = batch_bytes_max
        self._core.step_ns = int(directory.format.numbered_by_time)
        self._clock = clock
        self._commit: GroupCommit[Positions | Position] | None = None
        if self._policy is SyncPolicy.ALWAYS:
            self._commit = GroupCommit(self._commit_round)
        self._open(timeout, journal_bytes=journal_bytes, spare=spare)
        # The same without a Python frame, until something special is due, or company comes under `always`.
        self._lone: LoneWriter | None = None
        if self._commit is None:
            self.append = self._core.append  # type: ignore[method-assign]
        else:
            self._lone = self.lone_writer(self._commit.queue, self._append_among, "append")
            self.append = self._lone.append  # type: ignore[method-assign]
        self.place = self._core.place  # type: ignore[method-assign]
        self._stop_interval = threading.Event()
        self._interval_thread: threading.Thread | None = None
        if self._policy is SyncPolicy.INTERVAL:
            seconds = sync_interval_ms / 1000
            self._interval_thread = threading.Thread(
                target=self._sync_at_intervals, args=(seconds,), name="forelog-sync", daemon=True
            )
            self._interval_thread.start()

    # -- opening and closing

    def _open(self, timeout: float | None, *, journal_bytes: int, spare: bool) -> None:
        self._directory.check(to_append=True)
        refuse_others(self._directory.files, self._directory.path, "a log", fmt=self._directory.format)
        self._directory.make()
        with contextlib.ExitStack() as undo:
            self._lock = self._directory.append_lock(timeout=timeout)
            undo.callback(self._lock.release)
            watermark = Watermark(self._directory)
            undo.callback(watermark.close)
            end = EndMark(self._directory)
            undo.callback(end.close, in_order=False)
            tail, self.recovery = recover(self._directory, watermark, self._metrics, self._clock, end.found)
            self.active = ActiveSegment(  # what is under the appender: public for tests that drive it
                self._directory,
                self._metrics,
                self._core,
                watermark,
                end,
                tail,
                waits=self._visible == "synced",
                segment_bytes=self._segment_bytes,
                journal_bytes=journal_bytes,
                spare=spare,
            )
            undo.pop_all()
        let_go_in_children(self)

    def close(self) -> None:
        """Sync, and always close. Raises if this sync, or an earlier one that was not reported, failed."""
        if self._commit is not None:
            self._commit.close(self._closed_error())
        with self._core:
            if self._closed:
                return
            self._closed = True
            self._core.rest_at = -1
        self._stop_interval.set()
        if self._interval_thread is not None:
            self._interval_thread.join()
        synced = False
        try:
            if self.active.error is None:
                self._mend()
                self._core.rest_at = -1
                self.active.sync_to(self._core.segment, self._core.offset, settle=True)
                synced = True
        finally:
            self.active.close(in_order=synced)
            self._lock.release()
        if not self.active.told:
            self.active.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        from forelog.log.aio import in_thread

        await in_thread(self.close)

    # -- appending

    def append(self, payload: Payload) -> Position:
        """Append one record and return its position, once it is as safe as the sync policy says."""
        return cast(Position, self._core.append(payload) if self._lone is None else self._lone.append(payload))

    def _append_among(self, payload: Payload) -> Position:
        """Append and sync together with others, or in the rare cases."""
        fmt = self._directory.format
        item = fmt.item(payload)
        request = self._request((item,), fmt.item_bytes(item))
        request.alone = True
        return cast(Position, self._group().submit(request))

    def _group(self) -> GroupCommit[Positions | Position]:
        if self._core.held:
            raise RuntimeError(REENTERED)  # a signal handler: its round would wait for what this thread holds
        if self._commit is None:
            raise self._closed_error()
        return self._commit

    def _append_resting(self, payload: Payload) -> Position:
        """Append in the rare cases: at a full segment, or after a close or a failure."""
        start = time.perf_counter()
        with self._core:
            positions = self._write_batch((payload,))
        self._metrics.observe("append", time.perf_counter() - start)
        return positions[0]

    def append_many(self, payloads: Iterable[Payload]) -> Positions:
        """Append records with one write and one sync; return their positions.

        They share one time and one segment. Readers see all of them or none, also if the process is killed in
        the middle. After a power loss the log may have the first of them, in order.
        """
        batch = payloads if isinstance(payloads, list | tuple) else list(payloads)
        found = self._core.append_many(batch) if self._lone is None else self._lone.append_many(batch)
        if found is not None:
            return Positions(*found)
        if self._lone is not None:
            request = self._request_of(batch)
            return cast(Positions, self._group().submit(request))
        start = time.perf_counter()
        with self._core:
            positions = self._write_batch(batch)
        self._metrics.observe("append_many", time.perf_counter() - start)
        return positions

    def append_encoded(self, data: bytes | memoryview, starts: array[int]) -> Positions:
        """Append records that are already encoded, with their times, with one write and one sync.

        `starts` has the offset in `data` at which each one begins. The first time must be `next_time()` or
        later. In a format whose segments are numbered by time, each time must be later than the one before.
        Nothing else is checked.
        """
        begun = time.perf_counter()
        fmt, core = self._directory.format, self._core
        with core:
            self._check_usable()
            self._mend()
            if not starts:
                return Positions(core.segment, core.offset, starts)
            self._check_size(len(data), len(starts))
            first_ns, last_ns = (
                fmt.exact_time(bytes(data[at : at + _HEAD_BYTES])) for at in (starts[0], starts[-1])
            )
            earliest = core.time_ns + core.step_ns
            if (
                fmt.encode is None
                or starts[0]
                or last_ns == TIME_MAX
                or not earliest <= first_ns <= last_ns - core.step_ns * (len(starts) - 1)
            ):
                raise ValueError(
                    f"{len(starts)} encoded records from {first_ns} to {last_ns}: expected records one after the "
                    f"other, the first at the start, of {earliest} or later"
                )
            self._begin_batch(first_ns)
            positions = Positions(core.segment, self.active.write(data, starts, first_ns, last_ns), starts)
            segment, end = core.segment, core.offset
        if self._policy is SyncPolicy.ALWAYS:
            self.active.sync_to(segment, end)
        self._metrics.observe("append_many", time.perf_counter() - begun)
        return positions

    def next_time(self) -> int:
        """The time that a record would get now: that of the clock, or the time just after the last record's."""
        with self._core:
            self._check_usable()
            return int(self._core.stamp())

    async def append_async(self, payload: Payload) -> Position:
        """Append a record from a task. Under `always` the sync is awaited; otherwise the write is done at once."""
        return (await self.append_many_async((payload,)))[0]

    async def append_many_async(self, payloads: Iterable[Payload]) -> Sequence[Position]:
        """Append records from a task, as append_many() does."""
        from forelog.log import aio

        if self._commit is not None:
            return cast(Positions, await aio.submit(self._commit, self._request_of(payloads)))
        if self._core.locked or self._core.offset >= self._segment_bytes:
            # Starting a segment syncs, and so may whoever holds the lock: not on the event loop's thread.
            return await aio.in_thread(self.append_many, payloads)
        return self.append_many(payloads)

    async def sync_async(self) -> None:
        """Sync from a task, as sync() does."""
        from forelog.log import aio

        await aio.in_thread(self.sync)

    def lone_writer(
        self,
        queue: BoundedQueue,
        among: Callable[[Any], Any],
        timing: str,
        *,
        sizes: str | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> LoneWriter:
        """A writer that appends and syncs by itself while nobody else uses `queue`.

        Otherwise it calls `among(payload)`. `timing` and `sizes` are what it counts as in the metrics. `failed` is
        called with an error, before anyone else may write.
        """
        metrics = self._metrics
        return LoneWriter(
            self._core,
            queue,
            among,
            metrics.timing(timing),
            None if sizes is None else metrics.size(sizes),
            failed,
        )

    def roll(self) -> Position:
        """Seal the current segment and start the next, unless it is empty. Returns where the next record goes.

        With a spare this takes no longer than an append; `wait_sealed` waits until the old segment is sealed.
        """
        with self._core:
            self._check_usable()
            self._mend()
            if self._core.offset > self._directory.format.header_bytes:
                self.active.roll()
            return Position(self._core.segment, self._core.offset)

    def sync(self) -> None:
        """Return when everything appended so far is on stable storage, whatever the policy."""
        with self._core:
            self._check_usable()
            segment, offset = self._core.segment, self._core.offset
        self.active.sync_to(segment, offset)

    def wait_sealed(self, timeout: float | None = None) -> bool:
        """Wait until all earlier segments are sealed and the current one is named. False after `timeout`."""
        return self.active.wait_sealed(timeout)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until there is a spare again, and a roll doesn't wait. Also returns if there can't be one."""
        return self.active.wait_ready(timeout)

    @property
    def unsynced_bytes(self) -> int:
        """The number of bytes of the current segment that may not be on stable storage yet."""
        return self.active.unsynced_bytes()

    @property
    def open_segments(self) -> list[str]:
        """The paths of the segments that are being written or sealed, in order."""
        return self.active.paths()

    @property
    def position(self) -> Position:
        """Where the next record will be, unless a new segment is started for it."""
        with self._core:
            return Position(self._core.segment, self._core.offset)

    def place(self) -> tuple[int, int]:
        """The same, without waiting for an append that is under way: it may go there first."""
        return self._core.place()

    @property
    def failed(self) -> AppenderFailed | None:
        """The error that ended this appender, if one did."""
        return self.active.error

    def _request_of(self, payloads: Iterable[Payload]) -> Request[Positions | Position]:
        """A request with payloads copied where needed, so nobody can change them while they wait in a queue."""
        fmt = self._directory.format
        items = [fmt.item(payload) for payload in payloads]
        return self._request(items, sum(map(fmt.item_bytes, items)))

    def _request(self, items: Sequence[object], size: int) -> Request[Positions | Position]:
        """A request with these items, if the bytes that they may become aren't too many."""
        if size > self._batch_bytes_max:
            raise RecordTooLarge(
                f"{len(items)} records take up to {size} bytes in one append: the limit is batch_bytes_max = "
                f"{self._batch_bytes_max}"
            )
        self._check_usable()
        return Request(items, size)

    # -- with the core held

    def _write_batch(self, payloads: Sequence[Payload], *, checked: bool = False) -> Positions:
        self._check_usable()
        self._mend()
        core = self._core
        if not payloads:  # no record: so no time that a segment's number or its index could be by
            return Positions(core.segment, core.offset, array("q"))
        now = self._begin_batch()
        encoder = self.active.encoder
        data, starts = encoder.encode_many(payloads, now)
        if not checked:
            self._check_size(len(data), len(starts))
        offset = self.active.write(data, starts, now, now + (len(payloads) - 1) * core.step_ns)
        return Positions(core.segment, offset, encoder.places())

    def _check_size(self, size: int, records: int) -> None:
        if size > self._batch_bytes_max:
            raise RecordTooLarge(
                f"{records} records take {size} bytes in one append: the limit is batch_bytes_max = "
                f"{self._batch_bytes_max}"
            )

    def _begin_batch(self, time_ns: int | None = None) -> int:
        """Make the batch's segment the current one. Returns the time of its first record."""
        core = self._core
        filled = core.offset > self._directory.format.header_bytes
        full = filled and (core.offset >= self._segment_bytes or self.active.was_cut)
        now = int(core.stamp()) if time_ns is None else time_ns
        if not core.step_ns:
            if full:
                self.active.roll()
            return now
        # Where a segment has its number by its first record's time, that is decided first.
        self._directory.format.next_number(0, now)  # raises where no segment can have this time
        if full:
            self.active.roll(now)
        elif not filled and core.segment != now:
            self.active.renumber(now)
        return now

    def _check_usable(self) -> None:
        self.active.check()
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> AppenderClosed:
        return AppenderClosed(f"the appender of {self._directory.path} is closed: open a new one")

    def _forked(self) -> None:
        # A child must not append: its offsets and its parent's would be the same.
        what = f"{self._directory.path}: this appender is the parent process's; open one in the child"
        self.active.disown(AppenderFailed(errno.EPERM, what))
        self._commit = None

    def _mend(self) -> None:
        """Cut off what an interrupted write left."""
        if self._core.torn:
            self.active.cut_back(self._core.offset, "an interrupted write")
            if self._directory.format.encode is None:
                self.active.start_over()  # the encoder may have taken in what is cut off

    # -- syncing

    def _commit_round(self, requests: list[Request[Positions | Position]]) -> None:
        """Write what several writers handed in with one write, and sync it."""
        payloads = [item for request in requests for item in request.items]
        with self._core:
            positions = self._write_batch(payloads, checked=True)
            segment, offset = self._core.segment, self._core.offset
        self.active.sync_to(segment, offset)
        row = 0
        for request in requests:
            after = row + len(request.items)
            request.result = positions[row] if request.alone else positions.part(row, after)
            row = after
        # The one that waited longest; to note every one would cost a tenth of the throughput.
        self._metrics.observe("append", time.perf_counter() - requests[0].begun)

    def _sync_at_intervals(self, interval: float) -> None:
        while not self._stop_interval.wait(interval):
            if self.active.unsynced_bytes():
                try:
                    self.sync()
                except ForelogError:
                    self.active.told = False  # only the program's log has it
                    return
