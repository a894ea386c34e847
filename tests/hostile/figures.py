"""What a process uses, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Figures",
    "Threads",
    "cpu_seconds",
    "figures",
    "folder_bytes",
    "forget_peak",
    "queued_ns",
    "stall_seconds",
    "threads",
]

_TICKS = os.sysconf("SC_CLK_TCK")
_KEPT = re.compile(r"^(VmRSS|VmHWM):\s+(\d+)", re.M)


class Figures(NamedTuple):
    """Of one moment."""

    rss_bytes: int
    peak_bytes: int
    """Since `forget_peak`."""
    written_bytes: int
    """To the disk, as far as the kernel was to write it there."""
    files: int
    threads: int
    cpu_seconds: float
    at: float


def figures(pid: int) -> Figures:
    """What a process uses now."""
    process = Path(f"/proc/{pid}")
    memory = {name: int(kib) * 1024 for name, kib in _KEPT.findall((process / "status").read_text())}
    written = re.search(r"^write_bytes: (\d+)", (process / "io").read_text(), re.M)
    return Figures(
        memory.get("VmRSS", 0),
        memory.get("VmHWM", 0),
        int(written[1]) if written else 0,
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
        cpu_seconds(pid),
        time.monotonic(),
    )


def forget_peak(pid: int) -> None:
    """Let the peak of a process's memory be what it has now."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    """Processor time that all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Threads(NamedTuple):
    """What the scheduler has given each thread of a process, in nanoseconds."""

    ran: dict[str, int]
    """Time on a processor."""
    queued: dict[str, int]
    """Time ready to run, without a processor."""

    def since(self, before: Threads) -> Threads:
        """The same since an earlier moment."""
        return Threads(
            {task: ns - before.ran.get(task, 0) for task, ns in self.ran.items()},
            {task: ns - before.queued.get(task, 0) for task, ns in self.queued.items()},
        )


def threads(pid: int) -> Threads:
    """What the threads of a process have been given until now."""
    found = Threads({}, {})
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            words = _scheduled(f"{pid}/task/{task}")
            found.ran[task], found.queued[task] = words
    return found


def queued_ns(task: str) -> int:
    """How long a thread, named as below /proc, was ready to run and had no processor."""
    return _scheduled(task)[1]


def _scheduled(task: str) -> tuple[int, int]:
    with contextlib.suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{task}/schedstat").read_text().split()
        return int(words[0]), int(words[1])
    return 0, 0


def stall_seconds(took: float, server: Threads, queued: int) -> float:
    """How much of a round trip isn't the machine's doing.

    `server` is what the server's threads were given meanwhile, and `queued` how long the client had no processor.
    The time is taken off in which the client had no processor, or the server: the two of its threads that waited
    longest, because one that has the interpreter's lock makes the event loop wait too. But what a thread of the
    server has worked counts in any case.

    >>> stall_seconds(0.3, Threads({"1": 20_000_000}, {"1": 150_000_000, "2": 100_000_000}), 30_000_000)
    0.02
    >>> stall_seconds(0.3, Threads({"1": 200_000_000}, {"1": 150_000_000}), 0)
    0.2
    """
    most = sorted(server.queued.values(), reverse=True)[:2]
    worked = max(server.ran.values(), default=0) / 1e9
    return round(max(took - (sum(most) + queued) / 1e9, min(worked, took), 0.0), 6)


def folder_bytes(folder: str | Path) -> int:
    """What is in a folder and the folders in it. Files come and go meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total
