"""What the figures were measured on; without names of hosts, users or directories."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from forelog import __version__, kernel

_PEERS = ("lmdb", "rocksdict", "persist-queue", "crc32c", "pyarrow")


def describe(directory: Path) -> dict[str, str]:
    """Everything that a reader needs to judge the figures."""
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "forelog": __version__,
        "crc32c": "hardware" if kernel.crc32c_hardware() else "tables",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "filesystem": _filesystem(directory),
        "sqlite3": sqlite3.sqlite_version,
    }
    for name in _PEERS:
        try:
            facts["crc32c package" if name == "crc32c" else name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return facts


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / (1 << 30):.0f} GiB"
    except (ValueError, OSError):
        return "unknown"


def _filesystem(directory: Path) -> str:
    """The kind of filesystem that the logs were written to."""
    place = str(directory.resolve())
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return kind
    for line in mounts:
        mount, fstype = line.split()[1:3]
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fstype
    return kind
