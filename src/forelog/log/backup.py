"""A complete, checked copy of a log as of one moment. Programs append and read meanwhile; cleaners wait.

::

    TARGET.part/                   while it is being made; removed if that fails
      000000001.log                segments, byte for byte, in ascending order; the last up to the end mark
      000000001.67108991.idx       their indexes: positions in the copy are those of the log
      append.synced                says that it was closed in order, and where it ends, so damage is noticed
    TARGET/                        when all of it is on stable storage and was read back

Cleaners wait meanwhile, as they do for any reader. Appenders don't: what they append later isn't in the copy.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from forelog.errors import CorruptRecord, TargetTaken
from forelog.files import Files, OSFiles, built_beside, write_all
from forelog.files.modes import PRIVATE
from forelog.log.directory.directory import Directory
from forelog.log.directory.place import if_there, read_exactly
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.watermark import Watermark, read_own_from
from forelog.log.position import Position
from forelog.log.walk import Progress, Walk

_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """The result of a backup."""

    path: str
    """The directory of the copy."""
    segments: int
    """How many segments the copy has."""
    records: int
    """How many records the copy has."""
    byte_count: int
    """The size of the copy's segments."""
    end: Position
    """The position after the copy's last record."""


def back_up(
    directory: Directory,
    target: str,
    *,
    progress: Progress | None = None,
    timeout: float | None = None,
    mode: int = PRIVATE,
) -> Backup:
    """Copy a log to a directory that isn't there yet, or is empty."""
    target = os.path.abspath(target)
    part = f"{target}.part"
    _check_target(directory, target)
    files = OSFiles(mode)
    files.make_dir(os.path.dirname(target))
    files.remove_dir(part)
    with directory.read_lock(timeout=timeout), built_beside(files, target, part):
        copy = Directory(files, part, directory.format)
        end = _copy_segments(directory, copy, progress)
        _mark(directory, copy, end)
        copy.sync()
        segments, records, byte_count = _read_back(copy, end)
    return Backup(target, segments, records, byte_count, end)


def _check_target(directory: Directory, target: str) -> None:
    if isinstance(directory.files, OSFiles):
        log = os.path.realpath(directory.path)
        if os.path.realpath(target) == log or os.path.realpath(target).startswith(f"{log}/"):
            raise TargetTaken(f"{target} is the log itself, or inside of it: choose another directory")
    if os.path.lexists(target) and (not os.path.isdir(target) or OSFiles().list_dir(target)):
        raise TargetTaken(f"{target} is there already and not empty: choose another directory for the backup")


def _copy_segments(directory: Directory, copy: Directory, progress: Progress | None) -> Position:
    numbers = directory.numbers()
    total = sum(directory.segment_bytes(number) or 0 for number in numbers)
    done, end = 0, Position(0, 0)
    for number in numbers:
        with if_there(SegmentReader, directory, number) as reader:
            if reader is None:
                continue  # an empty one, whose place another one has taken
            with closing(copy.files.open_append(copy.segment_path(number))) as file:
                for place in range(0, reader.size, _COPY_BYTES):
                    write_all(file, _exactly(reader, min(_COPY_BYTES, reader.size - place), place))
                    if progress is not None:
                        progress(min(done + place, total), total)
                file.sync()
            if reader.index is not None and not reader.index.foreign_end:
                _copy_file(
                    directory.files, reader.index_path, copy.files, f"{copy.path}/{_name(reader.index_path)}"
                )
            done += reader.size
            end = Position(number, reader.end())
    if progress is not None:
        progress(total, total)
    return end


def _exactly(reader: SegmentReader, count: int, place: int) -> bytes:
    data = read_exactly(reader.file, count, place)
    if len(data) != count:
        raise CorruptRecord(
            f"{reader.path} was cut while it was copied: it has less than {place + count} bytes",
            position=reader.position(place),
            reason="truncated",
            path=reader.path,
            physical_offset=place + len(data),
            data=b"",
        )
    return data


def _copy_file(files: Files, source: str, target_files: Files, target: str) -> None:
    with closing(files.open_read(source)) as before, closing(target_files.open_append(target)) as after:
        write_all(after, read_exactly(before, before.size(), 0))
        after.sync()


def _mark(directory: Directory, copy: Directory, end: Position) -> None:
    """Mark the copy as a log that was closed in order."""
    size = copy.segment_bytes(end.segment) or 0
    with closing(Watermark(copy)) as mark:
        mark.begin(end.segment, size)
        own_from = read_own_from(directory)
        if own_from is not None:
            mark.note_own_from(own_from)
        mark.note(end.segment, size, closed=True)


def _read_back(copy: Directory, end: Position) -> tuple[int, int, int]:
    """Count the copy's segments, records and bytes. Damage raises, as in any reader."""
    with closing(Walk(copy)) as walk:
        records = sum(block.last - block.first for block in walk)
        torn = walk.torn
    if torn is not None and torn.byte_count:
        raise CorruptRecord(
            f"the log ends in half a record: {torn}. Opening it to append cuts that off",
            position=torn.position,
            reason=torn.reason,
            path=torn.path,
            physical_offset=torn.physical_offset,
            data=b"",
        )
    numbers = copy.numbers()
    assert not numbers or numbers[-1] == end.segment, "what was copied last is the last segment"
    return len(numbers), records, sum(copy.segment_bytes(number) or 0 for number in numbers)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
