"""Opening a log of a thousand segments: which bytes are read for it.

Counted at the door: the stream gets a disk that notes every read of every file.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, Settings, count_goal, payload, plain_row
from forelog import Stream
from forelog.files import File, OSFiles

SEGMENTS = 1000
SEGMENT_BYTES = 64 << 10


class CountedFile:
    """A file that notes how many bytes are read from it."""

    def __init__(self, file: File, name: str, reads: Counter[str]) -> None:
        self._file = file
        self._name = name
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        count = self._file.read_into(buffer, offset)
        self._reads[self._name] += count
        return count


@dataclass
class CountingFiles(OSFiles):
    """The operating system's files, with the bytes read from each."""

    reads: Counter[str] = field(default_factory=Counter)

    def open_read(self, path: str) -> File:
        return CountedFile(super().open_read(path), os.path.basename(path), self.reads)

    def open_append(self, path: str) -> File:
        return CountedFile(super().open_append(path), os.path.basename(path), self.reads)


@dataclass(frozen=True)
class Opening:
    """What one way to open a log took."""

    name: str
    seconds: float
    reads: Counter[str]
    reads_a_record: bool = False


def _open_appender(path: str, _: int) -> Opening:
    files = CountingFiles()
    start = time.perf_counter()
    log = Stream(path, files=files).appender()
    seconds = time.perf_counter() - start
    reads = Counter(files.reads)
    log.close()
    return Opening("opening to append", seconds, reads)


def _open_cursor(path: str, _: int) -> Opening:
    files = CountingFiles()
    start = time.perf_counter()
    with Stream(path, files=files).cursor():
        return Opening("opening a cursor", time.perf_counter() - start, Counter(files.reads))


def _seek(path: str, middle_ns: int) -> Opening:
    files = CountingFiles()
    start = time.perf_counter()
    with Stream(path, files=files).cursor(since=middle_ns) as cursor:
        next(cursor)
        seconds = time.perf_counter() - start
        return Opening(
            "cursor(since=...) and its first record", seconds, Counter(files.reads), reads_a_record=True
        )


def _build(path: Path, segments: int) -> tuple[str, int]:
    """A log with so many sealed segments; its path and the time of a record in its middle."""
    stream = Stream(path / "log")
    some = [payload()] * 100
    middle_ns = 0
    with stream.appender(segment_bytes=SEGMENT_BYTES) as log:
        while log.append_many(some)[-1].segment <= segments:
            if not middle_ns and log.position.segment > segments // 2:
                middle_ns = time.time_ns()
    return stream.path, middle_ns


def opening(settings: Settings) -> Figure:
    """Open to append, open to read, open at a time."""
    segments = settings.count(SEGMENTS, least=4)
    figure = Figure("open", f"Opening a log of {segments:,} sealed segments")
    with settings.scratch() as path:
        settings.tell(f"writing {segments} segments")
        log, middle_ns = _build(path, segments)
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(log)}
        last = max(name for name in sizes if name.endswith(".log"))
        sealed = {name: size for name, size in sizes.items() if name.endswith(".log") and name != last}
        for way in (_open_cursor, _seek, _open_appender):
            settings.tell(f"opening: {way.__name__.strip('_').replace('_', ' ')}")
            found = way(log, middle_ns)
            _report(figure, found, sealed, last)
    log_bytes = sum(sealed.values()) + sizes[last]
    figure.rows.append(plain_row("the log", "bytes", log_bytes))
    figure.notes.append(
        "Opening to append checks the last segment, which isn't sealed, from start to end. "
        f"Segments have {SEGMENT_BYTES >> 10} KiB here, less than the block of 1 MiB that reading starts with, "
        "so that a cursor's first record brings in the whole segment that it is in."
    )
    return figure


def _report(figure: Figure, found: Opening, sealed: dict[str, int], last: str) -> None:
    of_sealed = sum(found.reads[name] for name in sealed)
    figure.rows += [
        plain_row(f"{found.name}: read of sealed segments", "bytes", of_sealed),
        plain_row(f"{found.name}: read of the last one", "bytes", found.reads[last]),
        plain_row(f"{found.name}: read of anything", "bytes", found.reads.total()),
        plain_row(f"{found.name}: time", "ms", found.seconds * 1000),
    ]
    whole = sum(found.reads[name] >= size for name, size in sealed.items())
    text = f"sealed segments read whole: {found.name}"
    figure.goals.append(count_goal(text, whole, "segments", at_most=None if found.reads_a_record else 0))
