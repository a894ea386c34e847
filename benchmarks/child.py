"""What is measured in a process of its own: a scan in plain Python, or its peak memory. Run by path, prints JSON.

child.py cursor PATH REPEATS      loop over the log with a cursor, the best of some times
child.py plain_cursor PATH REPEATS   the same where records are scanned in plain Python
child.py append PATH BYTES        append batches of 1,000 records until the log has so many bytes
child.py bare PATH BYTES          the same writes and syncs without a log
child.py verify PATH              check every byte of it
child.py scan PATH                read it as Arrow batches
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forelog import Stream, kernel
from forelog.formats.captain import Captain
from forelog.log.appender import SEGMENT_BYTES

PAYLOAD = b"x" * 100
BATCH_BYTES = 1000 * len(kernel.captain_encode(PAYLOAD, 0))


def peak_bytes() -> int:
    """The most memory this process had at once.

    Linux lets a program inherit the peak that its parent had when it started it, in what getrusage tells,
    so the figure of the address space itself comes first.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cursor(path: str, repeats: str) -> dict[str, Any]:
    stream = Stream(path)
    best, records = float("inf"), 0
    for _ in range(int(repeats)):
        with stream.cursor() as rows:
            records = 0
            start = time.perf_counter()
            for _ in rows:
                records += 1
            best = min(best, time.perf_counter() - start)
    return {"records": records, "records_per_second": records / best}


def plain_cursor(path: str, repeats: str) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.kernel import oracle

    Captain.scan = staticmethod(oracle.captain_scan)
    return cursor(path, repeats)


def append(path: str, byte_count: str) -> dict[str, Any]:
    batch = [PAYLOAD] * 1000
    batches = max(1, int(byte_count) // BATCH_BYTES)
    start = time.perf_counter()
    with Stream(path).appender() as log:
        for _ in range(batches):
            log.append_many(batch)
    return {"seconds": time.perf_counter() - start, "bytes": batches * BATCH_BYTES, "peak_bytes": peak_bytes()}


def bare(path: str, byte_count: str) -> dict[str, Any]:
    batch = b"x" * BATCH_BYTES
    batches = max(1, int(byte_count) // BATCH_BYTES)
    start = time.perf_counter()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    unsynced = 0
    for _ in range(batches):
        unsynced += os.write(fd, batch)
        if unsynced >= SEGMENT_BYTES:
            os.fdatasync(fd)
            unsynced = 0
    os.fdatasync(fd)
    os.close(fd)
    return {"seconds": time.perf_counter() - start, "bytes": batches * BATCH_BYTES, "peak_bytes": peak_bytes()}


def verify(path: str) -> dict[str, Any]:
    from forelog.log.verify import verify as check

    stream = Stream(path)
    start = time.perf_counter()
    if not check(stream).ok:
        raise RuntimeError(f"the log in {path} is damaged")
    return _read_whole(stream, start)


def _read_whole(stream: Stream, start: float) -> dict[str, Any]:
    seconds = time.perf_counter() - start
    byte_count = sum(info.byte_count for info in stream.segments())
    return {"seconds": seconds, "bytes": byte_count, "peak_bytes": peak_bytes()}


def scan(path: str) -> dict[str, Any]:
    import pyarrow.compute  # noqa: F401 - the same for every size, so not part of the time

    stream = Stream(path)
    start = time.perf_counter()
    for _ in stream.scan():
        pass
    return _read_whole(stream, start)


if __name__ == "__main__":
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "cursor": cursor,
        "plain_cursor": plain_cursor,
        "append": append,
        "bare": bare,
        "verify": verify,
        "scan": scan,
    }
    json.dump(commands[sys.argv[1]](*sys.argv[2:]), sys.stdout)
