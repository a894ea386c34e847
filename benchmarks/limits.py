"""What the machine can do at best: the same bytes, without a log around them.

Each function does one round and returns the seconds that its loop took, without opening and closing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIECE_BYTES = 128 << 10


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def write_loop(path: Path, frame: bytes, count: int) -> float:
    """One write(2) for each record."""
    fd = _open(path)
    try:
        write = os.write
        start = time.perf_counter()
        for _ in range(count):
            write(fd, frame)
        return time.perf_counter() - start
    finally:
        os.close(fd)


def write_pieces(path: Path, data: bytes) -> float:
    """One write(2) for each 128 KiB."""
    fd = _open(path)
    view = memoryview(data)
    try:
        start = time.perf_counter()
        for at in range(0, len(view), PIECE_BYTES):
            os.write(fd, view[at : at + PIECE_BYTES])
        return time.perf_counter() - start
    finally:
        os.close(fd)


def write_and_sync(path: Path, frame: bytes, count: int) -> float:
    """One write(2) and one fdatasync(2) for each `frame`."""
    fd = _open(path)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(fd, frame)
            os.fdatasync(fd)
        return time.perf_counter() - start
    finally:
        os.close(fd)


def wake_ring(threads: int, laps: int) -> float:
    """Threads that only wake the next one and wait for the one before: what each waiting costs at least."""
    gates = [threading.Lock() for _ in range(threads)]
    for gate in gates:
        gate.acquire()

    def wait_and_wake(own: threading.Lock, following: threading.Lock) -> None:
        for _ in range(laps):
            own.acquire()
            following.release()

    pairs = zip(gates, [*gates[1:], gates[0]], strict=True)
    ring = [threading.Thread(target=wait_and_wake, args=pair) for pair in pairs]
    for thread in ring:
        thread.start()
    start = time.perf_counter()
    gates[0].release()
    for thread in ring:
        thread.join()
    return time.perf_counter() - start


def read_pass(paths: list[Path], block: bytearray) -> float:
    """Read files from start to end into the same block."""
    view = memoryview(block)
    start = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at = 0
            while count := os.preadv(fd, [view], at):
                at += count
        finally:
            os.close(fd)
    return time.perf_counter() - start


def crc_pass(crc32c: Callable[[Any], int], data: bytes) -> float:
    """One CRC-32C over everything."""
    start = time.perf_counter()
    crc32c(data)
    return time.perf_counter() - start


def copy_pass(data: bytes, target: bytearray) -> float:
    """One memcpy into memory that was touched before."""
    view = memoryview(target)
    start = time.perf_counter()
    view[:] = data
    return time.perf_counter() - start


def other_crc32c() -> Callable[[Any], int] | None:
    """The CRC-32C of the package of that name, if it is installed."""
    try:
        import crc32c
    except ImportError:
        return None
    function: Callable[[Any], int] = crc32c.crc32c
    return function
