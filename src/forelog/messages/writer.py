"""Write messages: buffered, flushed by size and by time, into files that are rotated by size.

A message gets its time when it is written, and is in the log once it is flushed: by `flush`, when the buffer is
full, or by a thread every `flush_interval_ms`. The sync policy says what a flushed message survives, as for any
log: `os` the end of the process, `always` a power loss. With `buffer_bytes=1` every write is flushed.

>>> import tempfile
>>> with MessageLogWriter(tempfile.mkdtemp(), sync="always") as log:
...     time_ns = log.write("plant/7/temp", b"21.5", {"unit": "C"})
...     position = log.flush()
>>> position.segment == time_ns, position.offset
(True, 42)
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from forelog.bounds import AGE_SECONDS_MAX, TIMER_MS_MAX, check_number, check_whole
from forelog.closing import Closing
from forelog.errors import AppenderClosed, ForelogError, LockTimeout
from forelog.files import Files
from forelog.formats.messages import PAYLOAD_BYTES_MAX, PROPERTIES_BYTES_MAX, Messages
from forelog.log.appender import SEGMENT_BYTES, SYNC_INTERVAL_MS, Sync, SyncPolicy
from forelog.log.position import Position
from forelog.log.stream import PathLike, PositionLike, Stream, as_position
from forelog.messages.retention import Retained, retain
from forelog.times import SECOND_NS

logger = logging.getLogger("forelog")

BUFFER_BYTES = 1 << 20
FLUSH_INTERVAL_MS = 100
RETAIN_EVERY_SECONDS = 60.0
_BUFFER_BYTES_MAX = 1 << 40
_LARGEST_BYTES = PAYLOAD_BYTES_MAX + PROPERTIES_BYTES_MAX + (1 << 17)  # of one message, and more


class MessageLogWriter(Closing):
    """Writes a log of messages, one writer at a time; any number of threads may use it.

    Files older than `retain_seconds`, and the oldest beyond `retain_bytes`, are removed when a new file begins
    and once a minute. `needed` returns the lowest position from which a reader still has to read, or None.
    Files from there on are kept.
    """

    def __init__(
        self,
        path: PathLike,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        flush_interval_ms: int | None = FLUSH_INTERVAL_MS,
        file_bytes: int = SEGMENT_BYTES,
        sync: Sync = SyncPolicy.OS,
        sync_interval_ms: int = SYNC_INTERVAL_MS,
        retain_seconds: float | None = None,
        retain_bytes: int | None = None,
        needed: Callable[[], Position | None] | None = None,
        timeout: float | None = None,
        files: Files | None = None,
        clock: Callable[[], int] | None = None,
        mode: int | None = None,
    ) -> None:
        check_whole("buffer_bytes", buffer_bytes, most=_BUFFER_BYTES_MAX)
        check_whole("file_bytes", file_bytes)
        check_number("flush_interval_ms", flush_interval_ms, least=1, most=TIMER_MS_MAX, or_none="for never")
        check_number("retain_seconds", retain_seconds, most=AGE_SECONDS_MAX, or_none="to keep everything")
        check_whole("retain_bytes", retain_bytes, least=0, or_none="to keep everything")
        self.stream = Stream(path, format="messages", files=files, clock=clock, mode=mode)
        self._format = Messages()
        self._buffer_bytes = buffer_bytes
        self._retain_seconds = retain_seconds
        self._retain_bytes = retain_bytes
        self._needed = needed
        self._lock = threading.RLock()
        self._frames: list[bytes] = []
        self._starts: array[int] = array("q")
        self._size = 0
        self._time_ns = 0
        self._closed = False
        self._failing = False
        self._appender = self.stream.appender(
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            segment_bytes=file_bytes,
            batch_bytes_max=buffer_bytes + _LARGEST_BYTES,
            timeout=timeout,
        )
        self.recovery = self._appender.recovery
        """What opening the log found and did."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if flush_interval_ms is not None:
            self._thread = threading.Thread(
                target=self._serve, args=(flush_interval_ms / 1000,), name="forelog-flush", daemon=True
            )
            self._thread.start()

    # -- writing

    def write(
        self,
        topic: str | bytes,
        payload: bytes | bytearray | memoryview = b"",
        properties: Mapping[str, Any] | None = None,
    ) -> int:
        """Take a message, and return its time, which no other message has. It is in the log once it is flushed.

        If the buffer is full and flushing it fails, that error is raised, and the message isn't taken.
        """
        item = self._format.item(topic, payload, properties)
        with self._lock:
            self._check_open()
            time_ns = max(self._appender.next_time(), self._time_ns + 1)
            frame = self._format.encode(item, time_ns)
            self._frames.append(frame)
            self._starts.append(self._size)
            self._size += len(frame)
            if self._size >= self._buffer_bytes:
                try:
                    self._flush()
                except BaseException:
                    if self._frames and self._frames[-1] is frame:
                        self._size -= len(self._frames.pop())
                        self._starts.pop()
                    raise
            self._time_ns = time_ns
            return time_ns

    def flush(self) -> Position:
        """Write all messages in the buffer to the log. Returns the position after the last one."""
        with self._lock:
            self._check_open()
            self._flush()
            return self._appender.position

    def sync(self) -> Position:
        """Flush, and return when everything is on stable storage, whatever the policy."""
        with self._lock:
            position = self.flush()
            self._appender.sync()
            return position

    def rotate(self) -> Position:
        """Flush, and begin a new file, unless the last one is empty."""
        with self._lock:
            self.flush()
            return self._appender.roll()

    @property
    def position(self) -> Position:
        """Where the log ends, without what is buffered."""
        return self._appender.position

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes of messages in the buffer."""
        return self._size

    @property
    def buffered_starts(self) -> list[int]:
        """Where each message in the buffer begins."""
        return list(self._starts)

    def _check_open(self) -> None:
        if self._closed:
            raise AppenderClosed(f"the writer of {self.stream.path} is closed: open a new one")

    def _flush(self) -> None:
        """Flush. The caller holds the lock."""
        if not self._frames:
            return
        before = self._appender.position
        try:
            segment = self._appender.append_encoded(b"".join(self._frames), self._starts).segment
        except BaseException as error:
            after = self._appender.position
            if not isinstance(error, Exception) and after != before and after.offset:
                self._forget_buffer()  # an interrupt came after they were written, all of them
            raise
        self._forget_buffer()
        if segment != before.segment:
            self._retain_by_itself()

    def _forget_buffer(self) -> None:
        self._frames, self._starts, self._size = [], array("q"), 0

    # -- forgetting

    def retain(
        self,
        keep_from: PositionLike | None = None,
        *,
        seconds: float | None = None,
        byte_count: int | None = None,
        force: bool = False,
        timeout: float | None = None,
    ) -> Retained:
        """Remove whole files: those in which all messages are older than `seconds`, and the oldest beyond
        `byte_count`.

        The defaults are the options of the writer. Files from `keep_from` on, or from the position that
        `needed` returns, stay, whatever their age. `force=True` removes them anyway, and logs that. Waits up to
        `timeout` seconds, or for ever, until no reader holds the log.
        """
        seconds = self._retain_seconds if seconds is None else seconds
        if keep_from is not None:
            keep: Position | None = as_position(keep_from)
        else:
            keep = self._needed() if self._needed is not None else None
        return retain(
            self.stream,
            before_ns=None if seconds is None else self.stream.now_ns() - int(seconds * SECOND_NS),
            keep_bytes=self._retain_bytes if byte_count is None else byte_count,
            keep_from=keep,
            force=force,
            timeout=timeout,
        )

    def _retain_by_itself(self) -> None:
        """Run retention. If a reader has the log or the disk fails, the next run removes the files."""
        if self._retain_seconds is None and self._retain_bytes is None:
            return
        try:
            self.retain(timeout=0)
        except LockTimeout:
            logger.debug("%s: somebody reads, old files are removed later", self.stream.path)
        except (ForelogError, OSError) as error:
            logger.warning("%s: old files couldn't be removed: %s", self.stream.path, error)

    # -- in the background

    def _serve(self, interval: float) -> None:
        due = time.monotonic() + RETAIN_EVERY_SECONDS
        while not self._stop.wait(interval):
            with self._lock:
                if self._closed:
                    return
                self._flush_by_itself()
                if time.monotonic() >= due:
                    due = time.monotonic() + RETAIN_EVERY_SECONDS
                    self._retain_by_itself()

    def _flush_by_itself(self) -> None:
        """Flush. After an error the buffer keeps its messages, and the next write, flush or close raises the
        error."""
        try:
            self._flush()
            self._failing = False
        except (ForelogError, OSError) as error:
            if not self._failing:
                self._failing = True
                logger.error("%s: %d bytes of messages wait in memory: %s", self.stream.path, self._size, error)

    def close(self) -> None:
        """Flush, sync and close. Always closes; raises if the flush or the sync failed."""
        self._stop.set()
        with self._lock:
            if self._closed:
                return
            try:
                self._flush()
            except BaseException:
                self._closed = True
                with contextlib.suppress(ForelogError, OSError):
                    self._appender.close()
                raise
            self._closed = True
            self._appender.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
