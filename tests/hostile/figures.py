"""What a process uses, as the kernel counts it."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["Figures", "cpu_seconds", "figures", "folder_bytes", "forget_peak", "waited_ns"]

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


def waited_ns(task: str) -> int:
    """How long a thread was ready to run and had no processor: no fault of its own."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{task}/schedstat").read_text().split()[1])
    return 0


def folder_bytes(folder: str | Path) -> int:
    """What is in a folder and the folders in it. Files come and go meanwhile."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total
