"""Opening a log to append: find out what is really on disk, and where to continue.

Only the last segment is scanned. Every other one was synced before its successor was created; readers report
damage to those. What is found at the end of the last segment decides:

==============================  ======================================================================
nothing wrong                   continue after the last record
torn tail                       copy it to NAME.torn, cut it off, continue in a new segment
an unfinished write             the same for all of its bytes; the end mark has where it began (end.py)
damage to synced data           leave every byte, continue in a new segment; readers report it
synced bytes missing            log an error, continue in a new segment
0 to 7 bytes                    a crash while it was created: write the header, continue
another log's header            refuse
a spare with records            make it the next segment; after a reboot, keep it as evidence (spare.py)
==============================  ======================================================================

A new segment is also started after a reboot that found the log unclosed, because unsynced records may be gone
without a trace, and no position may come to mean another record. The same goes for formats whose segments can't
be resumed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from forelog import kernel
from forelog.errors import HeaderMismatch
from forelog.files import File, removed_on_failure, write_all
from forelog.kernel import read_clock
from forelog.kernel.types import TIME_MIN
from forelog.log.damage import header_is_torn
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import NO_END, End
from forelog.log.directory.index import IndexBuilder
from forelog.log.directory.journal import put_away, read_journal, restore
from forelog.log.directory.place import copy_bytes, read_exactly
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.spare import spare_path
from forelog.log.directory.tail import Tail, create_segment
from forelog.log.directory.tenants import what_it_is
from forelog.log.directory.watermark import Mark, Watermark
from forelog.log.metrics import Metrics
from forelog.log.position import Position
from forelog.log.walk import LOG_START, Defect, Walk
from forelog.times import SECOND_NS, format_time

logger = logging.getLogger("forelog")

_READ_MAX = 4
_HEAD_BYTES = 64  # a record's time is within these
_FUTURE_NS = 60 * SECOND_NS


@dataclass(slots=True)
class Recovery:
    """The result of opening a log: what was found and done."""

    segment: int = 0
    """The last segment that was found; 0 if there was none."""
    records: int = 0
    """How many records that segment holds."""
    torn: Defect | None = None
    """The torn tail that was cut off, if there was one."""
    torn_path: str | None = None
    """Where the torn tail's bytes are kept."""
    damage: Defect | None = None
    """Damage to synced data in the last segment, left as it is."""
    missing_bytes: int = 0
    """How many synced bytes are gone from the end of the last segment."""
    spare_bytes: int = 0
    """Unsynced bytes of the next segment. They follow bytes that a power loss may have taken."""
    spare_path: str | None = None
    """Where the bytes of the spare are kept."""
    restored_bytes: int = 0
    """How many bytes a power loss had taken from the last segment, and the journal still had."""
    far_off: bool = False
    """Whether the log's times are so far in the future that later records can't follow them."""
    journal_path: str | None = None
    """Where a journal is kept that doesn't fit its segment."""


def recover(
    directory: Directory,
    watermark: Watermark,
    metrics: Metrics,
    clock: Callable[[], int] | None = None,
    end: End = NO_END,
) -> tuple[Tail, Recovery]:
    """Find the tail of a log, repair it if it is torn, and report what was done.

    `end` is the end that the last appender left in the end mark.
    """
    directory = directory.whole()
    with metrics.timed("recovery"):
        found = Recovery()
        mark = watermark.found
        rebooted = mark is None or (mark.boot != watermark.boot and not mark.closed)
        _restore_journal(directory, found)
        spare = directory.files.stat(spare_path(directory))
        if spare is not None and not rebooted and _adopt_spare(directory, spare[0]):
            spare = None
        numbers = directory.numbers()
        if mark is not None:
            watermark.begin(mark.segment, mark.offset)
        elif not numbers:
            watermark.begin_new(own=watermark.own_from is None and not directory.format.numbered_by_time)
        tail = _find_tail(directory, numbers, watermark, found, clock or time.time_ns, spare, end)
        if spare is not None:
            # Only now: until there is a segment after those whose positions it may have given away, and while
            # the marks are those of the boot before, a crash must find it again.
            _discard_spare(directory, tail.number - 1, spare[0], found)
        if mark is None and numbers:
            # Another program wrote it: nothing was known of how far it was synced, until now.
            watermark.begin(tail.number, tail.offset)
        if not directory.format.numbered_by_time:
            _note_own(directory, watermark, numbers, tail, end, found)
        watermark.note(tail.number, tail.offset)
        put_away(directory)  # all that it had of any use is in a segment, synced
        _report(directory, found, metrics)
        if tail.time_ns > time.time_ns() + _FUTURE_NS:
            logger.warning(
                "%s: the last record is of %s, in the future; new ones get that time until the clock is there",
                directory.path,
                format_time(tail.time_ns),
            )
        return tail, found


def _restore_journal(directory: Directory, found: Recovery) -> None:
    restored = restore(directory)
    if restored is None:
        found.journal_path = directory.free_path(read_journal(directory)[0].segment, ".torn")
        put_away(directory, found.journal_path)
    else:
        found.restored_bytes = restored


def _adopt_spare(directory: Directory, size: int) -> bool:
    """Make a spare that has records the next segment. Returns False if the segment before it isn't whole."""
    files, path = directory.files, spare_path(directory)
    if size <= directory.format.header_bytes:
        files.remove(path)
        directory.sync()
        return True
    numbers = directory.numbers()
    if not numbers:
        return False  # somebody has removed it: a spare is never without one
    last = numbers[-1]
    with contextlib.closing(files.open_append(directory.segment_path(last))) as before:
        before.sync()
        before.drop_cache()  # what a sync failed for may be in the cache only
    with contextlib.closing(Walk(directory, start=Position(last, 0), on_corruption="stop")) as walk:
        for _ in walk:
            pass
        if walk.torn is not None or walk.defects:
            return False
    files.rename(path, directory.segment_path(directory.format.next_number(last, _spare_number(directory))))
    directory.sync()
    return True


def _spare_number(directory: Directory) -> int:
    """The number that a spare gets from the time of its first record; 0 if it gets none, or the record can't be
    read."""
    fmt = directory.format
    if not fmt.numbered_by_time:
        return 0
    with contextlib.closing(directory.files.open_read(spare_path(directory))) as file:
        number = fmt.exact_time(read_exactly(file, _HEAD_BYTES, fmt.header_bytes))
    return number if number <= fmt.segment_number_max else 0


def _discard_spare(directory: Directory, number: int, size: int, found: Recovery) -> None:
    """Keep the records of a spare as evidence, if it has any."""
    files, path = directory.files, spare_path(directory)
    if size <= directory.format.header_bytes:
        files.remove(path)
    else:
        found.spare_bytes, found.spare_path = size, directory.free_path(number, ".torn")
        files.rename(path, found.spare_path)
    directory.sync()


def _find_tail(
    directory: Directory,
    numbers: list[int],
    watermark: Watermark,
    found: Recovery,
    clock: Callable[[], int],
    spare: tuple[int, object] | None,
    end: End,
) -> Tail:
    """The segment to append to, new or resumed. Beside a spare it is new, and leaves out a number for the
    spare."""

    def create(last: int, time_ns: int) -> Tail:
        first_ns = max(read_clock(clock), time_ns + 1) if directory.format.numbered_by_time else 0
        if spare is not None:
            last = max(last + 1, _spare_number(directory))
        return create_segment(directory, directory.format.next_number(last, first_ns), time_ns)

    time_ns = _last_time(directory, numbers, watermark.own_from or 0, found)
    synced = watermark.found.segment if watermark.found else 0
    last = numbers[-1] if numbers else 0
    if synced > last:
        logger.error(
            "%s: segment %d had been synced and is gone; going on after it, so that positions stay unique",
            directory.path,
            synced,
        )
    if not numbers or synced > last:
        return create(max(synced, last), time_ns)
    tail, fresh = _recover_last(directory, last, watermark, found, time_ns, end)
    if not fresh and spare is None:
        return tail
    tail.file.close()
    return create(last, tail.time_ns)


def _note_own(
    directory: Directory, watermark: Watermark, numbers: list[int], tail: Tail, end: End, recovery: Recovery
) -> None:
    """Note the segment from which on this program wrote all records, if that has changed. Others may have
    appended."""
    mark = watermark.found
    if not numbers:
        if watermark.own_from is None:
            watermark.note_own_from(0)
        return
    if mark is not None and watermark.own_from is not None and not recovery.far_off:
        size = directory.segment_bytes(numbers[-1]) or 0
        if mark.segment == numbers[-1] and mark.closed and size == mark.offset:
            return
        if end.segment == numbers[-1] and size <= end.intended:
            return
        if _ascends(directory, [number for number in numbers if number >= mark.segment - 1]):
            return
    watermark.note_own_from(tail.number if tail.number > numbers[-1] or not tail.records else tail.number + 1)


def _ascends(directory: Directory, numbers: list[int]) -> bool:
    """Whether times don't go back in these segments. They are read only if they are few, as after a crash."""
    if len(numbers) > _READ_MAX:
        return False
    walk = Walk(directory, start=Position(numbers[0], 0) if numbers else LOG_START, on_corruption="skip")
    after = TIME_MIN
    with contextlib.closing(walk):
        for block in walk:
            if not kernel.ascends(block.scan.times, after):
                return False
            after = block.scan.times[-1]
        return True


def _can_follow(time_ns: int) -> bool:
    """Whether later records may follow this time. If it is far in the future, all of them would get that time.

    If they may not, they go into a new segment, because times ascend within each segment that we write.
    """
    return abs(time_ns) < 2**62


def _last_time(directory: Directory, numbers: list[int], own_from: int, found: Recovery) -> int:
    """A time that no record of a sealed segment exceeds, as far as is known without reading records."""
    for number in reversed(numbers[-3:-1]):
        with contextlib.closing(SegmentReader(directory, number)) as reader:
            index = reader.index
            last = index.last_time if index is not None and index.records else reader.first_time()
            if last is not None and _can_follow(last):
                return last
            found.far_off |= last is not None and number >= own_from
    return TIME_MIN


def _recover_last(
    directory: Directory, number: int, watermark: Watermark, found: Recovery, time_ns: int, end: End
) -> tuple[Tail, bool]:
    """The last segment as the tail, and whether a new one must be started after it."""
    file = directory.open_segment(number, append=True)
    try:
        mark = watermark.found
        found.segment = number
        size = file.size()
        clean = mark is not None and mark.closed and (mark.segment, mark.offset) == (number, size)
        if mark is not None and mark.segment == number:
            found.missing_bytes = max(mark.offset - size, 0)
        if not clean:
            # After a sync that failed in an earlier process, pages may look written that are not: settle
            # what can be settled, and read the rest from the disk itself.
            file.sync()
            file.drop_cache()
        rewritten = _mend_header(directory, number, file, found)
        index = IndexBuilder(number)
        offset = _scan_last(directory, number, index, found, mark)
        if end.segment == number and end.committed < size < end.intended and found.damage is None:
            index = IndexBuilder(number)
            offset = _scan_committed(directory, number, index, found, size, end)
        if found.torn is not None and found.torn.physical_offset >= directory.format.header_bytes:
            found.torn_path = _keep_evidence(directory, number, file, offset)
            file.truncate(offset)
            file.sync()
        rebooted = not clean and mark is not None and mark.boot != watermark.boot
        closed_for_good = not directory.format.appends_in_place and offset > directory.format.header_bytes
        fresh = (
            rebooted
            or rewritten
            or closed_for_good
            or found.torn is not None
            or found.damage is not None
            or found.missing_bytes > 0
            or (index.records > 0 and not _can_follow(index.last_time))
        )
        found.far_off |= index.records > 0 and not _can_follow(index.last_time)
        if index.records and _can_follow(index.last_time):
            time_ns = max(time_ns, index.last_time)
        return Tail(number, file, offset, index, index.records, time_ns), fresh
    except BaseException:
        file.close()
        raise


def _mend_header(directory: Directory, number: int, file: File, found: Recovery) -> bool:
    """Complete a header that a crash left unfinished. Returns whether cleaning has rewritten this segment."""
    with contextlib.closing(SegmentReader(directory, number)) as reader:
        if reader.header_defect is None:
            # It wasn't the last one then: somebody removed those after it. Its offsets are mapped, so
            # nothing may be appended to it.
            return reader.rewritten
        if not header_is_torn(reader):
            raise HeaderMismatch(
                f"{reader.path} {reader.header_defect}: refusing to append to another log, or to one whose "
                f"header is damaged{what_it_is(directory)}"
            )
        if reader.size:
            position = Position(number, 0)
            found.torn = Defect(position, "header", reader.path, 0, reader.size, torn=True)
            found.torn_path = _keep_evidence(directory, number, file, 0)
    file.truncate(0)
    write_all(file, directory.format.header())
    file.sync()
    directory.sync()
    return False


def _scan_last(directory: Directory, number: int, index: IndexBuilder, found: Recovery, mark: Mark | None) -> int:
    """Fill the index, and return the physical offset after the last good record."""
    walk = Walk(directory, start=Position(number, 0), on_corruption="stop")
    checker = directory.format.checker()
    with contextlib.closing(walk):
        end = directory.format.header_bytes
        for block in walk:
            index.add(block.offsets, block.scan.times)
            end = block.base + block.scan.end
            if checker is not None:
                checker.feed(block.buffer, block.scan)
        found.records = index.records
        found.torn = walk.torn or found.torn
        if walk.defects:
            found.damage = walk.defects[0]
        elif checker is not None and checker.end < end:
            end = _cut_unfinished(directory, number, checker.end, found, mark)
        return end


def _scan_committed(
    directory: Directory, number: int, index: IndexBuilder, found: Recovery, size: int, end: End
) -> int:
    """Scan up to the start of a write that a killed process didn't finish. All of that write is cut off."""
    with contextlib.closing(
        Walk(directory, start=Position(number, 0), stop=Position(number, end.committed), on_corruption="stop")
    ) as walk:
        offset = directory.format.header_bytes
        for block in walk:
            index.add(block.offsets, block.scan.times)
            offset = block.base + block.scan.end
    path = directory.segment_path(number)
    found.torn = Defect(Position(number, offset), "unfinished", path, offset, size - offset, torn=True)
    found.records = index.records
    return offset


def _cut_unfinished(directory: Directory, number: int, end: int, found: Recovery, mark: Mark | None) -> int:
    """Treat a message that lacks its last record as torn, or as damaged if it had been synced."""
    path = directory.segment_path(number)
    size = directory.segment_bytes(number) or end
    synced = mark is not None and mark.segment == number and end < mark.offset
    defect = Defect(Position(number, end), "unfinished", path, end, size - end, torn=not synced)
    if synced:
        found.damage = defect
        return size
    found.torn = defect
    return end


def _keep_evidence(directory: Directory, number: int, file: File, offset: int) -> str:
    """Copy what will be cut to a file beside the segment, durably."""
    path = directory.free_path(number, ".torn")
    # Or each attempt to open the log on a full disk would leave another piece of it.
    with (
        removed_on_failure(directory.files, path),
        contextlib.closing(directory.files.open_append(path)) as copy,
    ):
        copy_bytes(file, offset, copy)
        copy.sync()
    directory.sync()
    return path


def _report(directory: Directory, found: Recovery, metrics: Metrics) -> None:
    metrics.add(recoveries=1)
    if found.restored_bytes:
        metrics.add(restored_bytes=found.restored_bytes)
        logger.warning(
            "%s: %d bytes at the end of segment %d were lost with the power and are back, from the journal",
            directory.path,
            found.restored_bytes,
            found.segment,
        )
    if found.journal_path is not None:
        logger.error(
            "%s: a segment ends before what its journal has of it begins, or is gone; the journal is kept in %s",
            directory.path,
            found.journal_path,
        )
    if found.torn is not None:
        metrics.add(torn_tails=1, torn_bytes=found.torn.byte_count)
        logger.warning(
            "%s: cut a torn tail of %d bytes (%s) after %s, kept in %s",
            directory.path,
            found.torn.byte_count,
            found.torn.reason,
            found.torn.position,
            found.torn_path,
        )
    if found.damage is not None:
        logger.error(
            "%s: synced data is damaged: %s. It was left as it is; see `forelog verify`",
            directory.path,
            found.damage,
        )
    if found.spare_bytes:
        metrics.add(torn_tails=1, torn_bytes=found.spare_bytes)
        logger.warning(
            "%s: %d bytes of a segment are kept in %s: the end of the one before it, which wasn't synced, is lost",
            directory.path,
            found.spare_bytes,
            found.spare_path,
        )
    if found.missing_bytes:
        metrics.add(synced_bytes_missing=found.missing_bytes)
        logger.error(
            "%s: %d synced bytes are missing at the end of segment %d: the disk didn't keep what it "
            "had synced, or the file was cut",
            directory.path,
            found.missing_bytes,
            found.segment,
        )
