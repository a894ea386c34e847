"""Reading a log in M3's format to its end, to know what is in it and whether all of it can be read.

`forelog.verify` checks chunks; this checks what they say, and counts it. Nothing is changed.

>>> import tempfile
>>> from forelog import Stream
>>> from forelog.commitlog import CommitLog
>>> from forelog.formats.m3 import Series
>>> folder = tempfile.mkdtemp()
>>> with CommitLog(folder, format="m3") as log:
...     _ = log.write_batch([(Series(b"cpu"), (1_000, 0.5)), (Series(b"cpu"), (2_000, 0.25))])
>>> report = check_entries(Stream.open(folder))
>>> report.entries, report.series, report.namespaces, report.defects
(2, 1, {b'default': 1}, [])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from forelog.commitlog.entries import EntryBlock, EntryWalk, SeriesTable
from forelog.kernel import m3_parse_metadata
from forelog.log.directory.segments import READ_LOCK
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import Defect

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class EntriesReport:
    """What is in a log's entries."""

    entries: int = 0
    annotations: int = 0
    series: int = 0
    """Different ones, in all files."""
    namespaces: dict[bytes, int] = field(default_factory=dict)
    """How many series each has."""
    timestamp_min_ns: int | None = None
    timestamp_max_ns: int | None = None
    created_min_ns: int | None = None
    created_max_ns: int | None = None
    defects: list[Defect] = field(default_factory=list)
    """The first thousand messages that can't be read, in chunks that can."""
    torn: Defect | None = None
    """What lies at the end of the last file and is no whole entry."""

    def _add(self, block: EntryBlock) -> None:
        entries = block.entries
        self.entries += len(entries.series)
        self.annotations += sum(entries.annotated)
        times = min(entries.timestamps), max(entries.timestamps)
        created = min(entries.created), max(entries.created)
        if self.timestamp_min_ns is None or self.timestamp_max_ns is None:
            self.timestamp_min_ns, self.timestamp_max_ns = times
        self.timestamp_min_ns = min(self.timestamp_min_ns, times[0])
        self.timestamp_max_ns = max(self.timestamp_max_ns, times[1])
        if self.created_min_ns is None or self.created_max_ns is None:
            self.created_min_ns, self.created_max_ns = created
        self.created_min_ns = min(self.created_min_ns, created[0])
        self.created_max_ns = max(self.created_max_ns, created[1])


def check_entries(
    stream: Stream, *, progress: Progress | None = None, timeout: float | None = None
) -> EntriesReport:
    """Read every entry; `progress(done_bytes, total_bytes)` is called for each block."""
    report = EntriesReport()
    walk = EntryWalk(stream, on_corruption="skip")
    sizes = {info.number: info.byte_count for info in stream.segments()}
    total = sum(sizes.values())
    lock = stream._directory.files.lock(f"{stream.path}/{READ_LOCK}", exclusive=False, timeout=timeout)
    known: set[bytes] = set()
    table: SeriesTable | None = None
    try:
        for block in walk:
            if table is not None and table is not block.series:
                known.update(table.metadata())
            table = block.series
            report._add(block)
            if progress is not None:
                before = sum(size for number, size in sizes.items() if number < block.segment)
                progress(min(before + block.entries.offsets[-1], total), total)
        known.update(table.metadata() if table is not None else ())
        report.series = len(known)
        report.namespaces = dict(sorted(Counter(m3_parse_metadata(raw)[1] for raw in known).items()))
        report.defects, report.torn = walk.message_defects, walk.torn
    finally:
        walk.close()
        lock.release()
    return report


def check_file(stream: Stream, number: int, *, last: bool) -> tuple[list[Defect], Defect | None]:
    """The messages of one file that can't be read, and its torn end, which only the last one has.

    For who holds the read lock. Each file names its own series: together they say what `check_entries` says.
    """
    until = None if last else Position(number + 1, 0)
    walk = EntryWalk(stream, start=Position(number, 0), until=until, on_corruption="skip")
    try:
        for _ in walk:
            pass
        if not last:
            walk._unfinished()  # in the last one it is a torn end
        return walk.message_defects, walk.torn if last else None
    finally:
        walk.close()
