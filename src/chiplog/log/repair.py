"""Making a damaged log whole again, and keeping what was wrong with it.

`plan_repair` says what would be done and changes nothing; `apply_repairs` does it, with the log to itself. What
is changed is copied first, durably, and no copy replaces an older one:

====================================  =========================================  ==================
what is wrong                         what is done                               what is kept
====================================  =========================================  ==================
torn tail of the last segment         cut; a new segment is started after it     NAME.torn
last segment damaged, or synced       a new segment is started after it, so
bytes of it or segments missing       that positions stay unique
damaged records                       the segment is rewritten without them      NAME.broken
0 to 7 bytes, or a header of zeros    the header is written                      NAME.broken
an index that is damaged or missing   it is built anew
unfinished rewrites, stale indexes    they are removed
another log's header                  nothing: it is only told
====================================  =========================================  ==================

Each step is whole by itself: either a rename makes it, or it is one that opening the log to append would
make too. A crash between two of them leaves a log that is no worse, and applying again goes on.

>>> import chiplog, tempfile
>>> stream = chiplog.Stream(tempfile.mkdtemp())
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from chiplog.files import File
from chiplog.log.index import IndexBuilder, decode_index, write_index
from chiplog.log.position import Position
from chiplog.log.recovery import recover
from chiplog.log.rewrite import (
    logical_end_of,
    remove_stale_indexes,
    rewrite_path,
    rewrite_segment,
)
from chiplog.log.segments import APPEND_LOCK, READ_LOCK, Directory, SegmentReader, read_exactly
from chiplog.log.stream import Stream
from chiplog.log.verify import Progress, SegmentReport, VerifyReport, check, verify
from chiplog.log.walk import Block, Walk
from chiplog.log.watermark import Watermark

logger = logging.getLogger("chiplog")

_COPY_BYTES = 1 << 20
_ROUNDS_MAX = 4  # mending a tail seals the segment before it, which then wants its index; no more follows

Kind = Literal["tail", "header", "records", "index", "debris", "foreign"]


@dataclass(slots=True)
class Repair:
    """One thing that is wrong, and what is done about it."""

    kind: Kind
    path: str
    problem: str
    action: str
    damage: bool
    """Whether something is damaged or lost; else it is only untidy."""
    segment: int = -1
    """Its number; -1 if it is about none in particular."""
    copies: list[str] = field(default_factory=list)
    """After it was applied: the names of the files in which the old bytes are kept."""

    @property
    def possible(self) -> bool:
        """Whether anything can be done about it."""
        return self.kind != "foreign"

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}: {self.action}"


def plan_repair(stream: Stream, *, progress: Progress | None = None, timeout: float | None = None) -> list[Repair]:
    """What apply_repairs() would do, in order. Nothing is changed, and the log may be in use."""
    return _plan(stream._directory, verify(stream, progress=progress, timeout=timeout))


def apply_repairs(
    stream: Stream, *, progress: Progress | None = None, timeout: float | None = None
) -> list[Repair]:
    """Repair a log: what was done, in order, with what could not be.

    Waits until nobody appends or reads, at most `timeout` seconds for each; what is done is decided then.
    """
    directory = stream._directory
    directory.names()
    done: list[Repair] = []
    with _locked(directory, APPEND_LOCK, timeout), _locked(directory, READ_LOCK, timeout):
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


@contextlib.contextmanager
def _locked(directory: Directory, name: str, timeout: float | None) -> Iterator[None]:
    lock = directory.files.lock(f"{directory.path}/{name}", exclusive=True, timeout=timeout)
    try:
        yield
    finally:
        lock.release()


def _copies(names: set[str]) -> list[str]:
    return sorted(name for name in names if {"torn", "broken"} & set(name.split(".")))


# -- planning


def _plan(directory: Directory, report: VerifyReport) -> list[Repair]:
    plan = _plan_tail(report)
    for segment in report.segments:
        if repair := _plan_segment(segment, cut=any(step.segment == segment.number for step in plan)):
            plan.append(repair)
    for name in (*report.rewrites, *report.indexes_stale):
        problem = "an interrupted rewrite left it" if name in report.rewrites else "it is an index of no segment"
        plan.append(Repair("debris", f"{directory.path}/{name}", problem, "remove it", damage=False))
    for segment in report.segments:
        if segment.index not in ("missing", "damaged") or any(step.segment == segment.number for step in plan):
            continue  # what rewrites a segment writes its index too
        damaged = segment.index == "damaged"
        problem = "its index is damaged or doesn't fit its records" if damaged else "it has no index"
        action = "build it anew"
        if damaged:
            action += "; if cleaning had rewritten the segment, positions in it move"
        plan.append(Repair("index", segment.path, problem, action, damaged, segment.number))
    return plan


def _plan_tail(report: VerifyReport) -> list[Repair]:
    """What opening the log to append would do as well."""
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
    """Recover the log as an appender does, and leave it."""
    from chiplog.log.metrics import Metrics

    watermark = Watermark(directory.files, directory.path)
    try:
        tail, _ = recover(directory, watermark, Metrics())
        tail.file.close()
    finally:
        watermark.close()


def _mend_records(directory: Directory, repair: Repair) -> None:
    if repair.segment == directory.numbers()[-1]:
        # The last segment's damage is below what had been synced: recovery leaves it and starts the next
        # segment, and from then on nothing is ever appended to this one.
        _mend_tail(directory, repair)
    keep_copy(directory, repair.segment)
    _trust_index(directory, repair.segment)
    _drop_damage(directory, repair.segment)


def _mend_header(directory: Directory, repair: Repair) -> None:
    number = repair.segment
    keep_copy(directory, number)
    _replace(directory, number, header_only=False)
    if number != directory.numbers()[-1] and _has_damage(directory, number):
        _drop_damage(directory, number)  # the copy has its bytes too


def _build_index(directory: Directory, repair: Repair) -> None:
    number = repair.segment
    found = directory.files.stat(directory.segment_path(number))
    directory.files.remove(directory.index_path(number, found[0] if found else 0))
    builder = IndexBuilder(number)
    walk = Walk(directory, start=Position(number, 0), stop=Position(number + 1, 0))
    try:
        for block in walk:
            builder.add(block.offsets, block.scan.times)
    finally:
        walk.close()
    reader = SegmentReader(directory, number)
    try:
        tail = read_exactly(reader.file, 4, reader.size - 4)
        index = builder.build(reader.size, reader.size, tail)
        write_index(directory.files, directory.index_path(number, reader.size), index, sync=True)
    finally:
        reader.close()
    directory.sync()


def _remove(directory: Directory, repair: Repair) -> None:
    directory.files.remove(repair.path)
    directory.sync()


_STEPS = {
    "tail": _mend_tail,
    "header": _mend_header,
    "records": _mend_records,
    "index": _build_index,
    "debris": _remove,
}


# -- what they are made of


def keep_copy(directory: Directory, number: int) -> str:
    """Copy a segment to NAME.broken, or .broken.2 and so on; it is on disk when this returns."""
    files = directory.files
    part = directory.side_path(number, ".broken.part")
    source = files.open_read(directory.segment_path(number))
    try:
        _copy(source, 0, part, b"", directory)
    finally:
        source.close()
    for attempt in range(1, 10_000):
        path = directory.side_path(number, ".broken" if attempt == 1 else f".broken.{attempt}")
        if files.stat(path) is None:
            break
    files.rename(part, path)
    directory.sync()
    return path


def _copy(source: File, start: int, target: str, head: bytes, directory: Directory) -> None:
    """Write `head`, then what `source` has from `start` on, to a new file."""
    directory.files.remove(target)
    copy = directory.files.open_append(target)
    try:
        data, place, size = head, start, source.size()
        while True:
            while data:
                data = data[copy.write(data) :]
            if place >= size:
                break
            data = read_exactly(source, min(_COPY_BYTES, size - place), place)
            if not data:
                break
            place += len(data)
        copy.sync()
    finally:
        copy.close()


def _replace(directory: Directory, number: int, *, header_only: bool) -> None:
    """Put a right header in place of a segment's first bytes; without records if `header_only`."""
    path, fmt = directory.segment_path(number), directory.format
    source = directory.files.open_read(path)
    try:
        start = source.size() if header_only else fmt.header_bytes
        _copy(source, start, rewrite_path(directory, number), fmt.header(), directory)
    finally:
        source.close()
    directory.sync()
    directory.files.rename(rewrite_path(directory, number), path)
    directory.sync()
    found = directory.files.stat(path)
    remove_stale_indexes(directory, number, found[0] if found else None)


def _good_blocks(directory: Directory, number: int) -> Iterator[tuple[Block, bytearray]]:
    """The records of a segment that can be read, all of them to keep."""
    start, stop = Position(number, 0), Position(number + 1, 0)
    walk = Walk(directory, start=start, stop=stop, on_corruption="skip")
    try:
        for block in walk:
            yield block, bytearray(b"\1") * len(block.scan.offsets)
    finally:
        walk.close()


def _has_damage(directory: Directory, number: int) -> bool:
    walk = Walk(directory, start=Position(number, 0), stop=Position(number + 1, 0), on_corruption="stop")
    try:
        return any(False for _ in walk) or bool(walk.defects)
    finally:
        walk.close()


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


def _trust_index(directory: Directory, number: int) -> None:
    """Keep the map of a rewritten segment whose last bytes are damaged.

    An index names the last four bytes of its segment. Where those are what is damaged, the index is still
    right, if its own checksum, number and size are; without it the segment's positions would move.
    """
    reader = SegmentReader(directory, number)
    try:
        path = directory.index_path(number, reader.size)
        if reader.index is not None or directory.files.stat(path) is None:
            return
        file = directory.files.open_read(path)
        try:
            index = decode_index(read_exactly(file, file.size(), 0))
        finally:
            file.close()
        if index is None or (index.segment, index.physical_bytes) != (number, reader.size) or not index.runs:
            return
        index.tail = read_exactly(reader.file, 4, reader.size - 4)
        write_index(directory.files, f"{path}.rw", index, sync=True)
        directory.files.rename(f"{path}.rw", path)
        directory.sync()
    finally:
        reader.close()
