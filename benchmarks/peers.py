"""What else a Python program could keep its records in.

Each function opens a new store in `path`, does one round and returns the seconds that its writes took,
without opening and closing. All get the payload as it is; keys are 64 bit numbers in ascending order, which
is what these stores like best, and are made beforehand where the store takes a batch as one object.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LMDB_MAP_BYTES = 4 << 30  # an upper bound of address space, not of disk


def missing() -> list[str]:
    """The peers that aren't installed."""
    modules = {"lmdb": "lmdb", "rocksdict": "rocksdict", "persist-queue": "persistqueue", "crc32c": "crc32c"}
    return [name for name, module in modules.items() if not has(module)]


def has(module: str) -> bool:
    """Whether a peer is installed."""
    return importlib.util.find_spec(module) is not None


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _sqlite(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path / "log.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
    return connection


def sqlite_commits(path: Path, payload: bytes, count: int, synchronous: str) -> float:
    """One INSERT for each commit."""
    connection = _sqlite(path, synchronous)
    try:
        execute, insert, row = connection.execute, "INSERT INTO log (payload) VALUES (?)", (payload,)
        start = time.perf_counter()
        for _ in range(count):
            execute(insert, row)
        return time.perf_counter() - start
    finally:
        connection.close()


def sqlite_batches(path: Path, payload: bytes, batches: int, batch: int, synchronous: str) -> float:
    """`batch` INSERTs for each commit."""
    connection = _sqlite(path, synchronous)
    rows = [(payload,)] * batch
    try:
        start = time.perf_counter()
        for _ in range(batches):
            connection.execute("BEGIN")
            connection.executemany("INSERT INTO log (payload) VALUES (?)", rows)
            connection.execute("COMMIT")
        return time.perf_counter() - start
    finally:
        connection.close()


def lmdb_batches(
    path: Path, payload: bytes, batches: int, batch: int, *, sync: bool, one_call: bool = True
) -> float:
    """`batch` puts for each transaction: all in one call, appended to the last page, or with a call for each."""
    import lmdb

    environment = lmdb.open(str(path), map_size=LMDB_MAP_BYTES, sync=sync)
    numbers = itertools.count()
    items = [[(_key(next(numbers)), payload) for _ in range(batch)] for _ in range(batches)]
    try:
        start = time.perf_counter()
        for some in items:
            with environment.begin(write=True) as transaction:
                if one_call:
                    transaction.cursor().putmulti(some, append=True)
                else:
                    for key, value in some:
                        transaction.put(key, value)
        return time.perf_counter() - start
    finally:
        environment.close()


def _rocksdb(path: Path, *, sync: bool) -> Any:
    from rocksdict import Options, Rdict, WriteOptions

    database = Rdict(str(path / "rocksdb"), Options(raw_mode=True))
    options = WriteOptions()
    options.sync = sync
    database.set_write_options(options)
    return database


def rocksdb_puts(path: Path, payload: bytes, count: int, *, sync: bool, threads: int = 1) -> float:
    """One put for each record, with the write-ahead log on; `count` is for each thread."""
    database = _rocksdb(path, sync=sync)
    keys = [[_key(thread << 32 | number) for number in range(count)] for thread in range(threads)]

    def put_all(own: list[bytes]) -> None:
        for key in own:
            database[key] = payload

    try:
        if threads == 1:
            start = time.perf_counter()
            put_all(keys[0])
            return time.perf_counter() - start
        return seconds_of_threads([functools.partial(put_all, own) for own in keys])
    finally:
        database.close()


def rocksdb_batches(path: Path, payload: bytes, batches: int, batch: int, *, sync: bool) -> float:
    """`batch` puts for each write batch, with the write-ahead log on."""
    from rocksdict import WriteBatch

    database = _rocksdb(path, sync=sync)
    keys = [[_key(i * batch + j) for j in range(batch)] for i in range(batches)]
    try:
        start = time.perf_counter()
        for some in keys:
            writes = WriteBatch(raw_mode=True)
            for key in some:
                writes.put(key, payload)
            database.write(writes)
        return time.perf_counter() - start
    finally:
        database.close()


def persist_queue_puts(path: Path, payload: bytes, count: int) -> float:
    """One put into a file queue, which syncs whenever it starts a new file: after each 100."""
    from persistqueue import Queue

    queue = Queue(str(path / "queue"), tempdir=str(path))
    start = time.perf_counter()
    for _ in range(count):
        queue.put(payload)
    return time.perf_counter() - start


def seconds_of_threads(functions: list[Callable[[], None]]) -> float:
    """Run each in a thread of its own, from one start to the last end."""
    gate = threading.Barrier(len(functions) + 1)

    def run(function: Callable[[], None]) -> None:
        gate.wait()
        function()

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start
