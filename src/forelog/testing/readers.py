"""Kinds of readers: each is a function that gets a `Sight`, reads the log on it, and records what it sees.

A *fresh* reader reads once and ends. A *kept* one continues: when it has read everything it calls `sight.pause()`,
after which the writer has advanced, until this returns False.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

from forelog.errors import MissingExtra
from forelog.log import verify as verification
from forelog.log.cursor import Cursor
from forelog.log.directory.place import if_there, read_exactly
from forelog.log.position import Position
from forelog.log.stream import SegmentInfo, Stream
from forelog.testing.disk import CrashDisk
from forelog.testing.ledger import NEVER
from forelog.testing.registry import reader
from forelog.testing.sight import Sight, opened

_MEMORY = "/dev/shm"


def has_arrow() -> bool:
    """Whether pyarrow is installed, for readers of columns."""
    from forelog.formats.columns import load_pyarrow

    try:
        load_pyarrow()
    except MissingExtra:
        return False
    return True


# -- cursors


def see_all(sight: Sight, cursor: Cursor) -> None:
    """Read to the end."""
    with cursor:
        for record in cursor:
            sight.see(record)


@reader
def cursor(sight: Sight) -> None:
    """Read from the first record to the last."""
    see_all(sight, sight.stream().cursor())


@reader
def position(sight: Sight) -> None:
    """Resume at the position of the middle record."""
    known = sight.ledger.readable(sight.moment)
    if known:
        sight.from_position = known[len(known) // 2].position
        see_all(sight, sight.stream().cursor(start=sight.from_position))


@reader
def since(sight: Sight) -> None:
    """Read from the time of the middle record on."""
    known = sight.ledger.readable(sight.moment)
    if known:
        middle = known[len(known) // 2]
        sight.from_number = sight.ledger.unit(middle)[0].number
        see_all(sight, sight.stream().cursor(since=middle.since_ns))


@reader
def reversed_cursor(sight: Sight) -> None:
    """Read from the last record to the first."""
    with sight.stream().cursor(reverse=True) as cursor:
        records = list(cursor)
    for record in reversed(records):
        sight.see(record)


@reader
def follower(sight: Sight) -> None:
    """Follow the log, kept."""
    cursor: Cursor | None = opened(sight, lambda: sight.stream().cursor(follow=True))
    if cursor is None:
        return
    with cursor:
        while True:
            while (record := cursor.read(timeout=0)) is not None:
                sight.see(record)
            if not sight.pause():
                return


@reader
def resumed(sight: Sight) -> None:
    """Restart again and again, and resume at the stored position."""
    stored: Position | None = None
    while True:
        cursor: Cursor | None = opened(sight, partial(sight.stream().cursor, start=stored))
        if cursor is None:
            return
        with cursor:
            for record in cursor:
                sight.see(record)
                stored = record.next_position
        if not sight.pause():
            return


@reader
def end(sight: Sight) -> None:
    """Ask for the end of the log, and later read what is new since."""
    stream = sight.stream()
    place: Position | None = opened(sight, stream.end)
    if place is None:
        return
    check_end(sight, place)
    sight.from_position = place
    while sight.pause():
        sight.anew()
        see_all(sight, stream.cursor(start=place))


def check_end(sight: Sight, place: Position) -> None:
    """Check that an end of the log lies between two calls of the writer."""
    known = [entry for entry in sight.ledger.sequence if entry.position is not None and entry.end is not None]
    inside = [
        entry
        for entry in known
        if entry.position < place < entry.end  # type: ignore[operator]
        or (entry.end == place and entry is not sight.ledger.unit(entry)[-1])
    ]
    if inside:
        sight.problem("part", f"{place} is said to be the end, which lies inside of one append")
    elif place > sight.ledger.ends.get(place.segment, place) and not _forgets_in(sight, place.segment):
        sight.problem("phantom", f"{place} is said to be the end, and nothing that counts is before it")


def _forgets_in(sight: Sight, number: int) -> bool:
    """Whether records of a segment may be gone at the end."""
    return any(
        entry.forgotten != NEVER and (entry.position is None or entry.position.segment == number)
        for entry in sight.ledger.entries
    )


# -- whole logs


@reader
def scan(sight: Sight) -> None:
    """Read Arrow batches if pyarrow is installed, otherwise blocks."""
    if not has_arrow():
        for position, payload in rows_of_blocks(sight.stream()):
            sight.see((position, payload))
        return
    for batch in sight.stream().scan(["segment", "offset", "payload"]):
        for row in zip(*(batch.column(i).to_pylist() for i in range(3)), strict=True):
            sight.see((Position(row[0], row[1]), row[2]))


def rows_of_blocks(stream: Stream) -> Iterator[tuple[Position, bytes]]:
    """The records of a log, a block at a time."""
    for block in stream.blocks():
        for row in range(block.first, block.last):
            payload = bytes(block.buffer[block.scan.starts[row] : block.scan.ends[row]])
            yield Position(block.segment, block.offsets[row]), payload


@reader
def segments(sight: Sight) -> None:
    """`Stream.segments()`: no segment is missing, and every end is right."""
    sight.sees_all = False
    check_segments(sight, sight.stream().segments())


def check_segments(sight: Sight, infos: list[SegmentInfo]) -> None:
    """Whether a list has all segments that have records."""
    listed = {info.number: info for info in infos}
    last = max(listed, default=0)
    for entry in sight.ledger.sequence:
        assert entry.position is not None
        number, known = entry.position.segment, entry.readable <= sight.looks[-1].begin
        if number in listed:
            if known and not entry.may_miss(sight.moment) and entry.position >= listed[number].end:
                sight.problem("late", f"segment {number} is said to end at {listed[number].end}")
        elif (known or number < last) and not entry.may_miss(sight.moment):
            sight.problem("gap", f"segment {number} is not among {sorted(listed)}")
            return
    if infos and not infos[-1].rewritten:
        check_end(sight, infos[-1].end)


@reader
def backup(sight: Sight) -> None:
    """Copies the listed segments with the files beside them, then reads the copy."""
    stream, copy = sight.stream(), CrashDisk()
    copy.make_dir(sight.path)
    with sight.disk.lock(f"{sight.path}/read.lock", exclusive=False, timeout=None):
        for info in stream.segments():
            for path in (info.path, f"{info.path.removesuffix('.log')}.{info.byte_count}.map"):
                limit = info.byte_count if path == info.path else 1 << 20
                with if_there(sight.disk.open_read, path) as file:
                    if file is not None:
                        copy.open_append(path).write(read_exactly(file, min(limit, file.size()), 0))
    see_all(sight, Stream(sight.path, format=sight.format, files=copy).cursor())


@reader
def stream_backup(sight: Sight) -> None:
    """`Stream.backup()`, to a directory in memory if there is one, then reads the backup."""
    back_up = getattr(sight.stream(), "backup", None)
    if back_up is None:
        sight.sees_all = False
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        target = f"{folder}/copy"
        os.mkdir(target)
        back_up(target)
        see_all(sight, Stream(target, format=sight.format).cursor())


@reader
def verify(sight: Sight) -> None:
    """`verify()`: finds no damage, and counts no more records than there can be."""
    sight.sees_all = False
    with _pauses_that_let_the_writer_go_on(sight):
        report = verification.verify(sight.stream())
    torn = [str(one.torn) for one in report.segments if one.torn is not None]
    unfinished = [one.path for one in report.segments if one.header == "unfinished" and not one.sealed]
    for line in report.problems():
        if report.live or not (line in torn or any(line.startswith(path) for path in unfinished)):
            sight.problem("wrong", f"verify finds {line}")
    if sight.ledger.shape is bytes:
        entries = sight.ledger.entries
        begun = sum(entry.begun <= sight.moment and entry.outcome != "refused" for entry in entries)
        if report.records > begun:
            sight.problem("phantom", f"verify counts {report.records} records, and there are at most {begun}")


@contextlib.contextmanager
def _pauses_that_let_the_writer_go_on(sight: Sight) -> Iterator[None]:
    """Let the writer advance wherever verify() waits a little before it looks again."""
    known = getattr(verification, "time", None)

    def sleep(_: float) -> None:
        sight.disk.wait(sight.disk.reachable(sight.moment + 1))

    if known is not None:
        vars(verification)["time"] = SimpleNamespace(sleep=sleep, monotonic=known.monotonic)
    try:
        yield
    finally:
        if known is not None:
            vars(verification)["time"] = known
