"""What many threads of one program could write to at the same time: the commit log, and what else there is.

A store is opened by its constructor. `write` may be called by any thread; it returns when the write is safe if
the store is one that waits, else earlier, and then `flush` returns when all writes are.

The peers get what was measured to be better for them: sqlite3 a connection for each thread where it doesn't
sync, one that threads take turns with where it does; LMDB its append mode.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sqlite3
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from benchmarks.peers import LMDB_MAP_BYTES
from forelog.commitlog.log import FLUSH_BYTES, FLUSH_INTERVAL_MS, QUEUE_MAX_WRITES

BUSY_SECONDS = 60


class Store(Protocol):
    """Something to write to. It is a context manager, which closes it."""

    def write(self, payload: bytes, /) -> object:
        """Keep this payload."""

    def flush(self) -> None:
        """Return when everything that was written before is on stable storage."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Closing(contextlib.AbstractContextManager[Any]):
    """Closes at the end of a with-block."""

    def close(self) -> None:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Sqlite(_Closing):
    """One INSERT for each commit. `shared` is one connection for all threads, else each has its own."""

    def __init__(self, path: Path, synchronous: str, *, shared: bool) -> None:
        self._path = path / "log.sqlite"
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._own = threading.local()
        self._first = self._connect()
        self._first.execute("PRAGMA journal_mode=WAL")
        self._first.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        self.write = self._write_in_turn if shared else self._write

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
        )
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        self._connections.append(connection)
        return connection

    def _write(self, payload: bytes) -> None:
        try:
            connection = self._own.connection
        except AttributeError:
            connection = self._own.connection = self._connect()
        connection.execute("INSERT INTO log (payload) VALUES (?)", (payload,))

    def _write_in_turn(self, payload: bytes) -> None:
        with self._lock:
            self._first.execute("INSERT INTO log (payload) VALUES (?)", (payload,))

    def flush(self) -> None:
        # A checkpoint syncs the write-ahead log before it copies from it, then the database.
        self._first.execute("PRAGMA synchronous=FULL")
        self._first.execute("PRAGMA wal_checkpoint(FULL)")

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class Lmdb(_Closing):
    """One put for each transaction, of which there is one at a time."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        import lmdb

        self._environment = lmdb.open(str(path), map_size=LMDB_MAP_BYTES, sync=sync)
        self._numbers = itertools.count()

    def write(self, payload: bytes) -> None:
        with self._environment.begin(write=True) as transaction:
            # Numbered inside, where nobody else is, so that keys ascend.
            transaction.put(next(self._numbers).to_bytes(8, "big"), payload, append=True)

    def flush(self) -> None:
        self._environment.sync(True)

    def close(self) -> None:
        self._environment.close()


class _Waiting(NamedTuple):
    """What a producer puts into the queue: a line, None for nothing more, and whom to tell of the sync."""

    line: bytes | None
    done: threading.Event | None = None


class QueueAndFile(_Closing):
    """queue.Queue, one thread that writes lines to a file and syncs it: what is written in an afternoon.

    The queue has as much room as the commit log's, and is synced as often. There is no checksum, nothing is
    rotated, and nothing is done about errors.
    """

    def __init__(self, path: Path, *, waits: bool) -> None:
        self._fd = os.open(path / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._queue: queue.Queue[_Waiting] = queue.Queue(QUEUE_MAX_WRITES)
        self._unsynced_bytes = 0
        self._synced_at = time.monotonic()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self.write = self._write_and_wait if waits else self._write

    def _write(self, payload: bytes) -> None:
        self._queue.put(_Waiting(payload + b"\n"))

    def _write_and_wait(self, payload: bytes) -> None:
        done = threading.Event()
        self._queue.put(_Waiting(payload + b"\n", done))
        done.wait()

    def flush(self) -> None:
        done = threading.Event()
        self._queue.put(_Waiting(b"", done))
        done.wait()

    def close(self) -> None:
        self._queue.put(_Waiting(None))
        self._thread.join()
        os.close(self._fd)

    def _serve(self) -> None:
        interval = FLUSH_INTERVAL_MS / 1000
        while True:
            try:
                some = self._take(interval)
            except queue.Empty:
                self._sync()
                continue
            lines = b"".join(one.line for one in some if one.line)
            os.write(self._fd, lines)
            self._unsynced_bytes += len(lines)
            waiting = [one.done for one in some if one.done is not None]
            late = time.monotonic() - self._synced_at >= interval
            if waiting or late or self._unsynced_bytes >= FLUSH_BYTES:
                self._sync()
            for done in waiting:
                done.set()
            if some[-1].line is None:
                return

    def _take(self, timeout: float) -> list[_Waiting]:
        """Everything that is queued, at least one."""
        some = [self._queue.get(timeout=timeout)]
        with contextlib.suppress(queue.Empty):
            while some[-1].line is not None:
                some.append(self._queue.get_nowait())
        return some

    def _sync(self) -> None:
        if self._unsynced_bytes:
            os.fdatasync(self._fd)
        self._unsynced_bytes, self._synced_at = 0, time.monotonic()


class Usage(NamedTuple):
    """What a run took."""

    seconds: float
    cpu_seconds: float
    """Of all threads of this process, in Python and in the system."""

    @property
    def cpu_per_second(self) -> float:
        return self.cpu_seconds / self.seconds


def write_from_threads(store: Store, payload: bytes, threads: int, each: int) -> Usage:
    """`each` writes from each thread, and a flush: what it took from the threads' start to the flush's end."""
    began: list[float] = []
    gate = threading.Barrier(threads, action=lambda: began.extend((time.perf_counter(), time.process_time())))

    def write_all() -> None:
        write = store.write
        gate.wait()
        for _ in range(each):
            write(payload)

    writers = [threading.Thread(target=write_all) for _ in range(threads)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    store.flush()
    start, cpu = began
    return Usage(time.perf_counter() - start, time.process_time() - cpu)
