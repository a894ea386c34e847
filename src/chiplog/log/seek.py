"""Finding a place without reading what lies before it.

Times never go back in a log that chiplog writes, so that a time is found by halving: the segment by the
first record's time of a few segments, the place in it by the index's marks. Where there is no index (the
segment is being appended to, or another program wrote it) that one segment is scanned.
"""

from __future__ import annotations

from bisect import bisect_right

from chiplog import kernel
from chiplog._kernel_py import END, FOUND, TIME_MAX, TIME_MIN, TRUNCATED
from chiplog.formats import Format, Scan
from chiplog.log.position import Position
from chiplog.log.segments import Directory, SegmentReader, read_exactly
from chiplog.times import in_column

_WINDOW_BYTES = 1 << 20
_PROBE_BYTES = 1 << 16


def find_segment(directory: Directory, since_ns: int) -> Position:
    """The start of the segment in which the first record of `since_ns` or later is."""
    since_ns = in_column(since_ns)  # as times are in an index: rather too early than too late
    numbers = directory.numbers()
    if directory.format.numbered_by_time and numbers:
        return Position(numbers[max(bisect_right(numbers, since_ns) - 1, 0)], 0)
    low, high = 0, len(numbers)  # segments before `low` start earlier than since_ns, those from `high` don't
    while low < high:
        middle = probe = (low + high) // 2
        time = None
        while probe < high and (time := _first_time(directory, numbers[probe])) is None:
            probe += 1  # a segment without records tells nothing
        if time is not None and in_column(time) < since_ns:
            low = probe + 1
        else:
            high = middle
    return Position(numbers[max(low - 1, 0)], 0) if numbers else Position(0, 0)


def _first_time(directory: Directory, number: int) -> int | None:
    try:
        reader = SegmentReader(directory, number)
    except FileNotFoundError:
        return None
    try:
        return reader.first_time()
    finally:
        reader.close()


def seek_time(reader: SegmentReader, place: int, since_ns: int) -> int:
    """A physical offset at or after `place`, at or shortly before the first record of `since_ns` or later."""
    if reader.index is not None:
        return max(place, reader.physical(reader.index.mark_before(in_column(since_ns))))
    # Without an index only a checked scan from the start can tell: the time or the length in a head that is
    # hopped over could be damaged, and records would be passed over in silence.
    return place


def first_row(fmt: Format, buffer: memoryview, base: int, scan: Scan, row: int, since_ns: int) -> int:
    """The first row from `row` on that is of `since_ns` or later, also where a column can't hold these times."""
    times, at_least = scan.times, in_column(since_ns)
    row = kernel.active.first_since(times, row, at_least)
    while row < len(times) and times[row] in (TIME_MIN, TIME_MAX):
        place = scan.offsets[row] - base
        if fmt.exact_time(bytes(buffer[place : place + 16])) >= since_ns:
            break
        row = kernel.active.first_since(times, row + 1, at_least)
    return row


def hop(reader: SegmentReader, place: int, stop: int, offset_min: int, time_min: int = TIME_MIN) -> int:
    """The physical offset of the first record at or past both bounds, or where the hopping ends.

    It ends at `stop`, or at a head that can't be read: then a scan from there tells what is wrong.
    """
    fmt = reader.directory.format
    view = memoryview(bytearray(_WINDOW_BYTES))
    while place < stop:
        filled = reader.file.read_into(view[: min(len(view), stop - place)], place)
        if not filled:
            break
        end, reason, need = fmt.hop(view, 0, filled, max(offset_min - place, 0), time_min)
        if reason == FOUND:
            return place + end
        if reason == TRUNCATED and end == 0 and filled < need <= stop - place:
            # Larger than the window, in a format whose records tell only at their end where that is.
            view = memoryview(bytearray(min(need + fmt.record_tail_bytes_max, stop - place)))
            continue
        cut_by_window = reason == TRUNCATED and end > 0
        if reason != END and not cut_by_window:
            return place + end
        place += end
    return min(place, stop)


def _is_record(reader: SegmentReader, place: int) -> bool:
    """Whether a whole and right record starts at a place."""
    fmt, rest = reader.directory.format, reader.size - place
    scan = fmt.scan(b"", 0, 0, 0, 1)
    for want in (_PROBE_BYTES, 0):
        data = read_exactly(reader.file, min(want or scan.need + fmt.record_tail_bytes_max, rest), place)
        scan = fmt.scan(data, 0, len(data), 0, 1)
        if scan.offsets or scan.reason != TRUNCATED or scan.need > rest:
            break
    return len(scan.offsets) == 1


def chunk_bounds(
    directory: Directory, number: int, first: Position, stop: Position
) -> list[tuple[Position, Position]]:
    """Ranges of about a megabyte that cover a segment from `first` to `stop`, each at record boundaries."""
    try:
        reader = SegmentReader(directory, number)
    except FileNotFoundError:
        return []
    try:
        bounds = [first]
        place = reader.physical(first.offset)
        size = reader.size if stop.segment != number else min(reader.size, reader.physical(stop.offset))
        while (place := hop(reader, place, size, place + _WINDOW_BYTES)) < size:
            if reader.position(place) <= bounds[-1] or not _is_record(reader, place):
                break  # led astray by damage: the last range runs into that and tells
            bounds.append(reader.position(place))
        # Not what is appended from now on, or a reader that goes back would chase the end.
        stop = max(min(stop, reader.position(reader.size)), bounds[-1])
    finally:
        reader.close()
    return list(zip(bounds, [*bounds[1:], stop], strict=True))
