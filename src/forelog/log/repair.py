"""Repair a damaged log, and keep what was wrong with it.

`plan_repair` lists what would be done and changes nothing. `apply_repairs` does it, while nobody else uses the
log. Before a file is changed it is copied, durably, and no copy replaces an older one:

====================================  =========================================  ==================
what is wrong                         what is done                               what is kept
====================================  =========================================  ==================
torn tail of the last segment         cut; a new segment is started after it     NAME.torn
last segment damaged, or synced       a new segment is started after it, so
bytes of it or segments missing       that positions stay unique
damaged records                       the segment is rewritten without them      NAME.broken
0 to 7 bytes, or a header of zeros    the header is written                      NAME.broken
an index that is damaged or missing   it is built anew
a rewritten segment's damaged map     its records get new positions, after       NAME.broken.map
                                      all that it has ever had
unfinished rewrites, stale indexes    they are removed
another log's header                  nothing: it is only reported
====================================  =========================================  ==================

Each step is atomic: a rename, or a step that opening the log to append would take too. A crash between two steps
leaves the log no worse than before, and applying the repairs again does the rest.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> with stream.appender() as log:
...     _ = log.append(b"whole")
>>> with open(f"{stream.path}/000000001.log", "ab") as file:
...     _ = file.write(bytes(3))
>>> [repair.kind for repair in plan_repair(stream)]
['tail']
>>> apply_repairs(stream)[0].copies
['000000001.torn']
>>> plan_repair(stream)
[]
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from forelog.files import File, removed_on_failure, write_all
from forelog.formats import Block
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import IndexBuilder, SegmentIndex, decode_index, write_index
from forelog.log.directory.place import copy_bytes, read_exactly
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.watermark import Watermark
from forelog.log.position import Position
from forelog.log.recovery import recover
from forelog.log.rewrite import (
    logical_end_of,
    remove_stale_indexes,
    rewrite_path,
    rewrite_segment,
)
from forelog.log.stream import Stream
from forelog.log.verify import JOURNAL_HAS_MORE, SegmentReport, VerifyReport, check, verify
from forelog.log.walk import Progress, Walk

logger = logging.getLogger("forelog")

# First what a journal has; then mending a tail seals the segment before it, which wants its index.
_ROUNDS_MAX = 5

_NEW_POSITIONS_AT = 1 << 48  # no segment is that large: a position from here on was never given to a record

Kind = Literal["tail", "header", "records", "index", "map", "debris", "foreign"]


@dataclass(slots=True)
class Repair:
    """One thing that is wrong, and what is done about it."""

    kind: Kind
    """Which step of the repair it is."""
    path: str
    """The file that is repaired."""
    problem: str
    """What is wrong with the file."""
    action: str
    """What the repair does."""
    damage: bool
    """Whether something is damaged or lost; else it is only untidy."""
    segment: int = -1
    """The number of the segment; -1 if the repair is about none in particular."""
    copies: list[str] = field(default_factory=list)
    """The names of the files in which the old bytes are kept, once the repair was applied."""

    @property
    def possible(self) -> bool:
        """Whether anything can be done about the problem."""
        return self.kind != "foreign"

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}: {self.action}"


def plan_repair(stream: Stream, *, progress: Progress | None = None, timeout: float | None = None) -> list[Repair]:
    """List what apply_repairs() would do, in order. Nothing is changed, and the log may be in use."""
    return _plan(stream.directory, verify(stream, progress=progress, timeout=timeout))


def apply_repairs(
    stream: Stream, *, progress: Progress | None = None, timeout: float | None = None
) -> list[Repair]:
    """Repair a log. Returns what was done, in order, and what couldn't be done.

    Waits until nobody appends or reads, at most `timeout` seconds for each, and then decides what to do.
    """
    directory = stream.directory
    directory.names()
    done: list[Repair] = []
    with directory.append_lock(timeout=timeout), directory.read_lock(exclusive=True, timeout=timeout):
        for _ in range(_ROUNDS_MAX):
            repairs = _plan(directory, check(directory, progress=progress, alone=True))
            possible = [repair for repair in repairs if repair.possible]
            if not possible:
                break
            for repair in possible:
                _apply_one(directory, repair)
            done += possible
    return done + [repair for repair in repairs if not repair.possible]


def _apply_one(directory: Directory, repair: Repair) -> None:
    before = set(directory.names())
    _STEPS[repair.kind](directory, repair)
    repair.copies = _copies(set(directory.names()) - before)
    logger.info("%s", repair)


def _copies(names: set[str]) -> list[str]:
    return sorted(name for name in names if {"torn", "broken"} & set(name.split(".")))


# -- planning


def _plan(directory: Directory, report: VerifyReport) -> list[Repair]:
    if report.journal_bytes:  # first of all: the rest is to be looked at when they are there
        last, problem = report.segments[-1], f"it {JOURNAL_HAS_MORE % report.journal_bytes}"
        return [Repair("tail", last.path, problem, "put them back", True, last.number)]
    plan = _plan_tail(report)
    for segment in report.segments:
        if repair := _plan_segment(segment, cut=any(step.segment == segment.number for step in plan)):
            plan.append(repair)
    for name in (*report.rewrites, *report.indexes_stale):
        problem = "an interrupted rewrite left it" if name in report.rewrites else "it is an index of no segment"
        plan.append(Repair("debris", f"{directory.path}/{name}", problem, "remove it", damage=False))
    for segment in report.segments:
        wanted = segment.index in ("missing", "unusable", "damaged")
        if wanted and all(step.segment != segment.number for step in plan):
            plan.append(_plan_index(segment))  # what rewrites a segment writes its index too
    return plan


def _plan_index(segment: SegmentReport) -> Repair:
    if segment.index == "missing":
        return Repair("index", segment.path, "it has no index", "build it anew", False, segment.number)
    if segment.index == "unusable":
        return Repair("index", segment.path, "its index can't be used", "build it anew", False, segment.number)
    if not segment.rewritten:
        problem = "its index is damaged or doesn't fit its records"
        return Repair("index", segment.path, problem, "build it anew", True, segment.number)
    problem = "it was rewritten, and the map of its positions is damaged or doesn't fit its records"
    action = (
        "give its records new positions after all old ones, so that who resumes in it reads it again and misses "
        "nothing; keep the damaged map as NAME.broken.map"
    )
    return Repair("map", segment.path, problem, action, True, segment.number)


def _plan_tail(report: VerifyReport) -> list[Repair]:
    """Plan the repair of a tail, which opening the log to append would do as well."""
    if report.synced_segment_missing is not None:
        problem = f"segment {report.synced_segment_missing} had been synced and is gone"
        return [Repair("tail", report.path, problem, "go on in a new segment after it", damage=True)]
    if not report.segments or report.segments[-1].header == "foreign":
        return []
    last = report.segments[-1]
    if report.synced_bytes_missing:
        problem = f"{report.synced_bytes_missing} synced bytes are missing at its end"
        return [Repair("tail", last.path, problem, "go on in a new segment after it", True, last.number)]
    if last.torn is None or report.live:
        return []
    if last.torn.physical_offset == 0:
        problem = f"a crash left {last.torn.byte_count} bytes of a segment that was being created"
        return [Repair("tail", last.path, problem, "write its header", True, last.number)]
    problem = f"torn tail of {last.torn.byte_count} bytes after {last.torn.position} ({last.torn.reason})"
    return [Repair("tail", last.path, problem, "keep them in NAME.torn and cut them off", True, last.number)]


def _plan_segment(segment: SegmentReport, *, cut: bool) -> Repair | None:
    if segment.header == "foreign":
        problem = f"{segment.header_defect}: another log's segment, or a damaged header"
        action = "left as it is; move it away, or mend its first bytes by hand if they are known"
        return Repair("foreign", segment.path, problem, action, True, segment.number)
    if segment.header == "unfinished":
        if cut:
            return None
        problem = f"{segment.header_defect}: it was never finished, or was zeroed"
        action = "write the header, keep what is whole behind it, and the original as NAME.broken"
        return Repair("header", segment.path, problem, action, True, segment.number)
    if not segment.defects:
        return None
    first = segment.defects[0]
    places = "one damaged place" if segment.defects_found == 1 else f"{segment.defects_found} damaged places"
    problem = f"{places} of {segment.defect_bytes} bytes, from {first.position} on ({first.reason})"
    whole = f"its {segment.records} whole records" if segment.records != 1 else "its one whole record"
    action = f"rewrite it with {whole}, and keep the original as NAME.broken"
    return Repair("records", segment.path, problem, action, True, segment.number)


# -- the steps


def _mend_tail(directory: Directory, repair: Repair) -> None:  # noqa: ARG001
    """Recover the log as an appender does, and close it."""
    from forelog.log.metrics import Metrics

    with contextlib.closing(Watermark(directory)) as watermark:
        tail, _ = recover(directory, watermark, Metrics())
        tail.file.close()


def _mend_records(directory: Directory, repair: Repair) -> None:
    if repair.segment == directory.numbers()[-1]:
        # The last segment's damage is below what had been synced: recovery leaves it and starts the next
        # segment, and from then on nothing is ever appended to this one.
        _mend_tail(directory, repair)
    keep_copy(directory, repair.segment)
    _mend_map(directory, repair)
    _drop_damage(directory, repair.segment)


def _mend_header(directory: Directory, repair: Repair) -> None:
    number = repair.segment
    keep_copy(directory, number)
    _replace(directory, number, header_only=False)
    _mend_map(directory, repair)
    if number != directory.numbers()[-1] and _has_damage(directory, number):
        _drop_damage(directory, number)  # the copy has its bytes too


def _build_index(directory: Directory, repair: Repair) -> None:
    number = repair.segment
    directory.files.remove(directory.index_path(number, directory.segment_bytes(number) or 0))
    builder = IndexBuilder(number)
    with contextlib.closing(Walk(directory, start=Position(number, 0), stop=Position(number + 1, 0))) as walk:
        for block in walk:
            builder.add(block.offsets, block.scan.times)
    with contextlib.closing(SegmentReader(directory, number)) as reader:
        tail = read_exactly(reader.file, 4, reader.size - 4)
        index = builder.build(reader.size, reader.size, tail)
        write_index(directory.files, directory.index_path(number, reader.size), index, sync=True)
    directory.sync()


def _mend_map(directory: Directory, repair: Repair) -> None:
    """Repair the map of a segment that is about to be rewritten, if it needs one."""
    if not _trust_map(directory, repair.segment):
        _build_map(directory, repair)


def _build_map(directory: Directory, repair: Repair) -> None:
    """Make a map in which every old position leads to the segment's first record, and no new position is an old
    one."""
    number = repair.segment
    shift = _NEW_POSITIONS_AT * (1 + len(_broken_maps(directory, number))) - directory.format.header_bytes
    builder = IndexBuilder(number)
    for block, _ in _good_blocks(directory, number):
        builder.add(array("q", (offset + shift for offset in block.scan.offsets)), block.scan.times)
    with contextlib.closing(SegmentReader(directory, number)) as reader:
        _keep(directory, reader.index_path, number, ".broken.map")
        tail = read_exactly(reader.file, 4, reader.size - 4)
        first = directory.format.header_bytes
        index = builder.build(reader.size, reader.size + shift, tail, array("q", (first + shift, first)))
        _replace_index(directory, directory.map_path(number, reader.size), index)
        directory.files.remove(directory.index_path(number, reader.size))


def _broken_maps(directory: Directory, number: int) -> list[str]:
    """The copies of damaged maps that earlier repairs have kept."""
    prefix = directory.side_path(number, ".broken.map").rpartition("/")[2]
    return [name for name in directory.names() if name.startswith(prefix) and not name.endswith(".part")]


def _remove(directory: Directory, repair: Repair) -> None:
    directory.files.remove(repair.path)
    directory.sync()


_STEPS = {
    "tail": _mend_tail,
    "header": _mend_header,
    "records": _mend_records,
    "index": _build_index,
    "map": _build_map,
    "debris": _remove,
}


# -- what they are made of


def keep_copy(directory: Directory, number: int) -> str:
    """Copy a segment to NAME.broken, or .broken.2 and so on; it is on disk when this returns."""
    return _keep(directory, directory.segment_path(number), number, ".broken")


def _keep(directory: Directory, path: str, number: int, suffix: str) -> str:
    """Copy a file to the segment's name with a suffix, or with the suffix and .2 and so on, durably."""
    files = directory.files
    part = directory.side_path(number, f"{suffix}.part")
    with contextlib.closing(files.open_read(path)) as source:
        _copy(source, 0, part, b"", directory)
    copy = directory.free_path(number, suffix)
    files.rename(part, copy)
    directory.sync()
    return copy


def _copy(source: File, start: int, target: str, head: bytes, directory: Directory) -> None:
    """Write `head`, then what `source` has from `start` on, to a new file."""
    files = directory.files
    files.remove(target)
    with removed_on_failure(files, target), contextlib.closing(files.open_append(target)) as copy:
        write_all(copy, head)
        copy_bytes(source, start, copy)
        copy.sync()


def _replace(directory: Directory, number: int, *, header_only: bool) -> None:
    """Replace a segment's first bytes by a right header, and keep its records unless `header_only`."""
    path, fmt = directory.segment_path(number), directory.format
    with contextlib.closing(directory.files.open_read(path)) as source:
        start = source.size() if header_only else fmt.header_bytes
        _copy(source, start, rewrite_path(directory, number), fmt.header(), directory)
    directory.sync()
    directory.files.rename(rewrite_path(directory, number), path)
    directory.sync()
    remove_stale_indexes(directory, number, directory.segment_bytes(number))


def _good_blocks(directory: Directory, number: int) -> Iterator[tuple[Block, bytearray]]:
    """The records of a segment that can be read, all of them to keep."""
    start, stop = Position(number, 0), Position(number + 1, 0)
    with contextlib.closing(Walk(directory, start=start, stop=stop, on_corruption="skip")) as walk:
        for block in walk:
            yield block, bytearray(b"\1") * len(block.scan.offsets)


def _has_damage(directory: Directory, number: int) -> bool:
    with contextlib.closing(
        Walk(directory, start=Position(number, 0), stop=Position(number + 1, 0), on_corruption="stop")
    ) as walk:
        return any(False for _ in walk) or bool(walk.defects)


def _drop_damage(directory: Directory, number: int) -> None:
    """Rewrite a sealed segment with its whole records only."""
    blocks = _good_blocks(directory, number)
    first = next(blocks, None)
    if first is None:
        _replace(directory, number, header_only=True)
    else:
        rewrite_segment(directory, number, _chain(first, blocks), logical_end_of(directory, number))


def _chain(
    first: tuple[Block, bytearray], rest: Iterator[tuple[Block, bytearray]]
) -> Iterator[tuple[Block, bytearray]]:
    yield first
    yield from rest


def _trust_map(directory: Directory, number: int) -> bool:
    """Keep the map of a rewritten segment whose last bytes are damaged. Returns whether that repairs it.

    A map names the last four bytes of its segment. If these bytes are damaged, the map is still right if its
    own checksum, number and size are. Without the map the segment's positions would change.
    """
    with contextlib.closing(SegmentReader(directory, number)) as reader:
        if reader.index is not None or directory.files.stat(reader.index_path) is None:
            return True
        with contextlib.closing(directory.files.open_read(reader.index_path)) as file:
            index = decode_index(read_exactly(file, file.size(), 0))
        if index is None or (index.segment, index.physical_bytes) != (number, reader.size):
            return not reader.map_damaged
        index.tail = read_exactly(reader.file, 4, reader.size - 4)
        _replace_index(directory, reader.index_path, index)
        return True


def _replace_index(directory: Directory, path: str, index: SegmentIndex) -> None:
    write_index(directory.files, f"{path}.rw", index, sync=True)
    directory.files.rename(f"{path}.rw", path)
    directory.sync()
