"""Which logs there are, and how they are cut into tasks.

Planning lists files with their sizes. It opens a segment only to cut one that is much larger than a task should
be, to find a time, by bisection, or to find the end, in the last one. Nothing here depends on Spark.
"""

from __future__ import annotations

import glob
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from forelog.errors import BadOption, LogNotFound
from forelog.files import Files, OSFiles
from forelog.formats import Captain, Format
from forelog.formats.m3 import M3
from forelog.formats.messages import Messages
from forelog.formats.state import MAGIC as STATE_MAGIC
from forelog.log.directory.directory import Directory
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.tenants import JOBS_MAGIC
from forelog.log.position import Position
from forelog.log.seek import chunk_bounds
from forelog.log.stream import Stream
from forelog.log.walk import Walk
from forelog.spark.options import ReadOptions, is_pattern
from forelog.spark.pruning import Wanted, wanted_segments
from forelog.spark.ranges import EVERYTHING, Ranges
from forelog.spark.remote import glob_remote, is_remote, remote_files, walk_remote
from forelog.spark.totals import Totals, enough

_SPLIT_AT = 1.5  # a segment is cut if it is so many times as large as a task should be
_PARTITION_BYTES_MIN = 1 << 20
_FORMATS: tuple[Format, ...] = (Captain(), M3(), Messages())


@dataclass(frozen=True, slots=True)
class Log:
    """A log to read: all that a task needs to open it."""

    path: str
    """The log's directory."""
    name: str
    """The log's name in the folder of logs."""
    format: Format
    """The log's format."""
    _stream: Stream | None = field(default=None, compare=False, repr=False)
    """The log with the last listing of its directory, which is used as long as it is right."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Log, (self.path, self.name, self.format)

    def stream(self) -> Stream:
        if self._stream is None:
            stream = Stream(self.path, format=self.format, files=files_of(self.path))
            object.__setattr__(self, "_stream", stream)
        assert self._stream is not None
        return self._stream


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a log for one task: from a position up to another."""

    log: Log
    """The log."""
    start: Position
    """The position where it begins."""
    stop: Position
    """The position where it ends."""
    since_ns: int | None = None
    """Only records from this time on."""
    until_ns: int | None = None
    """Only records before this time."""
    at_record: bool = False
    """Whether a record is known to begin at the start."""


_NONE: Mapping[str, Log] = {}


def files_of(path: str) -> Files:
    return remote_files(path) if is_remote(path) else OSFiles()


def check_codec(logs: Iterable[Log], codec: str) -> None:
    """Raise BadOption if a codec is for logs of another format."""
    for log in logs:
        if log.format.numbered_by_time != (codec == "messages"):
            right = "messages" if log.format.numbered_by_time else "records, or one for what is in them"
            raise BadOption(f"{log.path} is a log in the format {log.format.name}: read it with the codec {right}")


def find_logs(
    path: str, *, recursive: bool, wanted: Callable[[str], bool] = lambda _: True, known: Mapping[str, Log] = _NONE
) -> list[Log]:
    """The log at a path, or those in a folder, by name; of these only the `wanted` ones are opened.

    A log that is among the `known` ones, by its path, isn't looked at again.
    """
    path = path if is_remote(path) else os.path.abspath(path)  # tasks may run in another folder
    if not recursive:
        stream = Stream.open(path, files=files_of(path))
        return [Log(stream.path, os.path.basename(path.rstrip("/")), stream.format, stream)]
    logs = []
    root = path.rstrip("/")
    for folder, names in _walk(root):
        if any(fmt.segment_number(name) is not None for fmt in _FORMATS for name in names):
            log_name = os.path.relpath(folder, root)
            before = known.get(folder)
            if before is not None and any(before.format.segment_number(name) is not None for name in names):
                logs.append(before)
            elif wanted(log_name):
                stream = Stream.open(folder, files=files_of(folder))
                logs.append(Log(stream.path, log_name, stream.format, stream))
    return sorted(logs, key=lambda log: log.name)


def logs_of(
    options: ReadOptions, wanted: Callable[[str], bool] = lambda _: True, known: Mapping[str, Log] = _NONE
) -> list[Log]:
    """The logs that a reader's options name. Of several paths, each log is named by its whole path."""
    if not options.paths:
        return find_logs(options.path, recursive=options.recursive, wanted=wanted, known=known)
    logs = {}
    for given in options.paths:
        pattern = is_pattern(given)
        paths = _matching(given) if pattern else [given]
        found = []
        for path in paths:
            with suppress(LogNotFound) if pattern else nullcontext():
                found += find_logs(path, recursive=options.recursive)
        if pattern and not found:
            raise LogNotFound(f"there is no log at {given}")
        logs.update({log.path: replace(log, name=log.path) for log in found})
    return [log for path, log in sorted(logs.items()) if wanted(path)]


def _matching(pattern: str) -> list[str]:
    """The directories that a pattern names, without hidden ones."""
    if is_remote(pattern):
        return glob_remote(pattern)
    return [path for path in sorted(glob.glob(os.path.abspath(pattern), recursive=True)) if os.path.isdir(path)]


def codec_for(logs: Sequence[Log]) -> str:
    """The codec that fits all of these logs, by their formats and magic numbers."""
    codecs = {_codec_of(log.format) for log in logs} or {"records"}
    if len(codecs) > 1:
        raise BadOption(f"there are logs for the codecs {', '.join(sorted(codecs))}: read each kind by itself")
    return codecs.pop()


def _codec_of(fmt: Format) -> str:
    if isinstance(fmt, Captain):
        return {JOBS_MAGIC: "commands", STATE_MAGIC: "state"}.get(fmt.magic, "records")
    return "messages" if fmt.numbered_by_time else "datapoints"


def _walk(root: str) -> Iterator[tuple[str, list[str]]]:
    """All folders below a root, with the names of their files, without hidden ones."""
    if is_remote(root):
        yield from walk_remote(root)
        return
    if not os.path.isdir(root):
        raise LogNotFound(f"there is no folder {root}")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        yield folder, names


def plan(
    options: ReadOptions,
    logs: Sequence[Log],
    *,
    splits: bool,
    ranges: Ranges = EVERYTHING,
    totals: Totals | None = None,
    limit: int | None = None,
) -> list[Slice]:
    """The slices of the logs as they are now. `splits`: whether segments can be cut.

    What indexes tell is added to `totals`, and those segments are left out. With a `limit`, segments that aren't
    needed for as many records are left out.
    """
    parts: list[tuple[Log, Wanted, Position, Position]] = []
    for log in () if ranges.empty else logs:
        if limit == 0:
            break
        stream = log.stream()
        start = options.start or Position(0, 0)
        wanted = wanted_segments(stream.directory, start, options.since_ns, options.until_ns, ranges)
        whole = [number for number in wanted.numbers if Position(number, 0) >= start]
        if totals is not None:
            known = set(whole) - set(totals.take(stream.directory, whole))
            wanted = replace(wanted, numbers=[number for number in wanted.numbers if number not in known])
        elif limit is not None and len(whole) == len(wanted.numbers):
            numbers, limit = enough(stream.directory, wanted.numbers, limit)
            wanted = replace(wanted, numbers=numbers)
        if not wanted.numbers:
            continue
        number = wanted.numbers[-1]
        # The end is looked for in the last segment. The others are as long as they are.
        stop = Position(number + 1, 0) if number < stream.directory.last() else end_of(stream)
        parts.append((log, wanted, start, stop))
    if options.partitions_min > 1:
        options = replace(options, partition_bytes=_smaller(parts, options))
    return [piece for part in parts for piece in _cut(*part, options, splits=splits)]


def _smaller(parts: Sequence[tuple[Log, Wanted, Position, Position]], options: ReadOptions) -> int:
    """The bytes of a task that make as many tasks as are asked for."""
    total = sum(
        _bytes_between(wanted.directory, number, max(start, Position(number, 0)), stop)
        for _, wanted, start, stop in parts
        for number in wanted.numbers
    )
    return max(min(options.partition_bytes, total // options.partitions_min), _PARTITION_BYTES_MIN)


def end_of(stream: Stream, known: Position = Position(0, 0)) -> Position:  # noqa: B008 - it doesn't change
    """The position after the last whole record: what is being written now is not looked for by tasks.

    It is looked for from a place that is known to come before it. A last segment without records ends at 0.
    """
    numbers = stream.directory.numbers()
    start = max(known, Position(numbers[-1] if numbers else 0, 0))
    walk = Walk(stream.directory, start=start, on_corruption="skip", numbers=numbers)
    try:
        for _ in walk:
            pass
        return walk.position
    finally:
        walk.close()


def between_entries(log: Log, begin: Position, end: Position) -> Position:
    """The last place up to `end` where a reader can stop. In M3's format a chunk may end inside an entry."""
    if not log.format.holds_entries:
        return end
    from forelog.commitlog.entries import EntryWalk

    while end > begin:
        walk = EntryWalk(log.stream(), start=Position(end.segment, 0), until=end, on_corruption="skip")
        try:
            for _ in walk:
                pass
        finally:
            walk.close()
        if walk.pending is None:
            break
        end = walk.pending
    return max(begin, end)


def cut(
    log: Log, stream: Stream, start: Position, stop: Position, options: ReadOptions, *, splits: bool
) -> list[Slice]:
    """A range of a log in slices of about `partition_bytes`: small segments together, large ones in parts."""
    wanted = wanted_segments(stream.directory, start, options.since_ns, options.until_ns, EVERYTHING)
    return _cut(log, wanted, start, stop, options, splits=splits)


def _cut(
    log: Log, wanted: Wanted, start: Position, stop: Position, options: ReadOptions, *, splits: bool
) -> list[Slice]:
    directory, numbers = wanted.directory, wanted.directory.numbers()
    slices: list[Slice] = []
    open_: list[Position] = []  # where the slice begins that more may come to, and where it ends
    size = 0

    def add(low: Position, high: Position) -> None:
        slices.append(Slice(log, low, high, options.since_ns, options.until_ns, at_record=low != start))

    for number in wanted.numbers:
        first, last = max(start, Position(number, 0)), min(stop, Position(number + 1, 0))
        if splits and first < last:
            first, last = wanted.part(number, first, last)
        if first >= last:
            continue
        segment_bytes = _bytes_between(directory, number, first, last)
        large = splits and segment_bytes > _SPLIT_AT * options.partition_bytes
        follows = bool(open_) and first.offset == 0 and _follows(numbers, open_[1], number)
        if open_ and (large or not follows or size + segment_bytes > options.partition_bytes):
            add(open_[0], open_[1])
            open_, size = [], 0
        if large:
            for low, high in _split(directory, number, first, last, options.partition_bytes):
                add(low, high)
            continue
        open_ = [open_[0] if open_ else first, last]
        size += segment_bytes
    if open_:
        add(open_[0], open_[1])
    return slices


def _follows(numbers: list[int], end: Position, number: int) -> bool:
    """Whether a segment is the first one after a place where another one ends."""
    place = bisect_left(numbers, end.segment)
    return end.offset == 0 and place < len(numbers) and numbers[place] == number


def _bytes_between(directory: Directory, number: int, first: Position, last: Position) -> int:
    found = directory.files.stat(directory.segment_path(number))
    size = found[0] if found else 0
    end = min(size, last.offset) if last.segment == number else size
    return max(end - first.offset, 0)


def _split(
    directory: Directory, number: int, first: Position, last: Position, partition_bytes: int
) -> list[tuple[Position, Position]]:
    """Parts of one segment, each from one record to another."""
    try:
        reader = SegmentReader(directory, number)
    except FileNotFoundError:  # cleaned away since it was listed
        return [(first, last)]
    try:
        index = reader.index
    finally:
        reader.close()
    if index is not None:
        marks = [Position(number, offset) for offset in index.marks[::2]]
    else:
        marks = [low for low, _ in chunk_bounds(directory, number, first, last)]
    bounds = [first]
    begin = max(first, Position(number, directory.format.header_bytes))  # before it there is nothing to read
    for mark in marks:
        if begin < mark < last and mark.offset - bounds[-1].offset >= partition_bytes:
            bounds.append(mark)
    return list(zip(bounds, [*bounds[1:], last], strict=True))
