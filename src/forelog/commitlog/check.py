"""Read a whole log in M3's format, to count what is in it and find what can't be read.

`forelog.verify` checks chunks; this checks and counts the entries in them. Nothing is changed.

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

import contextlib
from dataclasses import dataclass, field

from forelog.commitlog.entries import EntryWalk
from forelog.formats.m3.entries import SeriesTable
from forelog.formats.m3.summary import Summary, count_series
from forelog.log.made import Reached
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import Defect, Progress


@dataclass(slots=True)
class EntriesReport(Summary):
    """The number of a log's entries, series and so on, and the entries that can't be read."""

    defects: list[Defect] = field(default_factory=list)
    """The first thousand messages that can't be read, in chunks that can."""
    torn: Defect | None = None
    """What lies at the end of the last file and isn't a whole entry."""


def check_entries(
    stream: Stream, *, progress: Progress | None = None, timeout: float | None = None
) -> EntriesReport:
    """Read every entry; `progress(done_bytes, total_bytes)` is called for each block."""
    report = EntriesReport()
    walk = EntryWalk(stream, on_corruption="skip")
    reached = Reached(stream.segments(), progress)
    known: set[bytes] = set()
    table: SeriesTable | None = None
    with stream.directory.read_lock(timeout=timeout), contextlib.closing(walk):
        for block in walk:
            if table is not None and table is not block.series:
                known.update(table.metadata())
            table = block.series
            report.add(block)
            reached(block.segment, block.entries.offsets[-1])
        known.update(table.metadata() if table is not None else ())
        report.series = len(known)
        report.namespaces = count_series(known)
        report.defects, report.torn = walk.message_defects, walk.torn
    return report


def check_file(stream: Stream, number: int, *, last: bool) -> tuple[list[Defect], Defect | None]:
    """The messages of one file that can't be read, and the torn end, which only the last file can have.

    The caller holds the read lock. Each file names its own series, so files can be checked one by one: together
    they give the result of `check_entries`.
    """
    until = None if last else Position(number + 1, 0)
    with contextlib.closing(
        EntryWalk(stream, start=Position(number, 0), until=until, on_corruption="skip")
    ) as walk:
        for _ in walk:
            pass
        if not last:
            walk.finish()  # in the last one it is a torn end
        return walk.message_defects, walk.torn if last else None
