"""Find a place without reading everything before it.

Times never go back in segments that forelog writes. There a time is found by binary search: first the segment,
by the times of first records, then the place in it, by the index's marks. A segment without an index, such as
the one that is appended to, is scanned. Segments of another program may have any times. `TimeOrder` knows which
segments those are, and all of them are read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from forelog import kernel
from forelog.formats import Format, Scan
from forelog.kernel.types import END, FOUND, TIME_MAX, TIME_MIN, TRUNCATED
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import read_end
from forelog.log.directory.place import if_there, read_exactly
from forelog.log.directory.segment import SegmentReader
from forelog.log.directory.watermark import read_mark, read_own_from
from forelog.log.position import Position
from forelog.times import in_column

_WINDOW_BYTES = 1 << 20
_PROBE_BYTES = 1 << 16
_NO_LAST = 2**63


class TimeOrder:
    """The segments in which times are known not to go back, within a segment and from one to the next."""

    def __init__(self, directory: Directory) -> None:
        self.first, self.last = 0, _NO_LAST
        """The segments from `first` to `last`."""
        if directory.format.numbered_by_time:
            return
        mark, own_from = read_mark(directory), read_own_from(directory)
        if mark is None or own_from is None:
            self.last = -1
            return
        end = read_end(directory)
        tail = end.segment or mark.segment
        size = directory.segment_bytes(tail)
        # Else another program may have appended to it.
        ours = size is None or size <= end.intended if end.segment else mark.closed and size == mark.offset
        self.first, self.last = own_from, tail if ours else tail - 1
        if ours and directory.last() <= tail:
            self.last = _NO_LAST

    def holds(self, number: int) -> bool:
        """Whether times are known not to go back in a segment."""
        return self.first <= number <= self.last

    @property
    def holds_to_the_end(self) -> bool:
        """Whether times are known not to go back in every segment from `first` on."""
        return self.last == _NO_LAST


class TimeBounds:
    """The records that a walk wants by their times: from `since_ns` on and before `until_ns`.

    If times ascend, the first and the last wanted record are searched for. Otherwise every record is checked.
    """

    def __init__(self, directory: Directory, since_ns: int | None, until_ns: int | None) -> None:
        self.order = TimeOrder(directory)
        self.done = False
        """Whether nothing can follow that is wanted."""
        self._format = directory.format
        self._since_ns = since_ns
        self._until_ns = until_ns
        # As columns have them: times that they can't hold are all one time there.
        self._low = TIME_MIN if since_ns is None else in_column(since_ns)
        high = TIME_MAX if until_ns is None else in_column(until_ns)
        self._last = high if high in (TIME_MIN, TIME_MAX) else high - 1
        self._outside = any(
            bound is not None and in_column(bound) in (TIME_MIN, TIME_MAX) for bound in (since_ns, until_ns)
        )
        self._since_met = self._until_met = False
        """Two flags: a record was found from which on all are late enough; one from which on all are too late."""

    def first_place(self, reader: SegmentReader, place: int) -> int:
        """Where to begin in a segment, at or after a place: after all records that are known to be too early or
        too late."""
        index = reader.index
        if self.order.holds(reader.number):
            if self._until_met:
                return reader.size
            if self._since_met or self._since_ns is None:
                return place
            return seek_time(reader, place, self._low)
        if index and index.records and (index.last_time < self._low or index.first_time > self._last):
            return reader.size
        return place

    def rows(self, number: int, buffer: memoryview, base: int, scan: Scan, row: int) -> tuple[int, int]:
        """The next range of wanted rows of a scan, from a row on: its first row, and the one after its last.

        If times ascend there is only one such range. Otherwise there may be more.
        """
        if not self.order.holds(number):
            return self._run(buffer, base, scan, row)
        first, last = row, len(scan.times)
        if not self._since_met and self._since_ns is not None:
            first = first_row(self._format, buffer, base, scan, row, self._since_ns)
            self._since_met = first < last
        if self._until_met:
            last = first
        elif self._until_ns is not None:
            last = first_row(self._format, buffer, base, scan, first, self._until_ns)
            self._until_met = last < len(scan.times)
            self.done = self._until_met and self.order.holds_to_the_end
        return first, last

    def _run(self, buffer: memoryview, base: int, scan: Scan, row: int) -> tuple[int, int]:
        first, last = kernel.time_run(scan.times, row, self._low, self._last)
        if first == last or not self._outside:
            return first, last
        # One row at a time, with its exact time.
        fmt = self._format
        if self._since_ns is not None and first_row(fmt, buffer, base, scan, first, self._since_ns) != first:
            return first + 1, first + 1
        if self._until_ns is not None and first_row(fmt, buffer, base, scan, first, self._until_ns) == first:
            return first + 1, first + 1
        return first, first + 1


def segments_between(
    directory: Directory, numbers: list[int], since_ns: int | None, until_ns: int | None = None
) -> list[int]:
    """Which of the given segments may have records within time bounds."""
    order = TimeOrder(directory)
    low, high = bisect_left(numbers, order.first), bisect_right(numbers, order.last)
    own = numbers[low:high]
    first = 0 if since_ns is None else max(_halve(directory, own, in_column(since_ns)) - 1, 0)
    last = len(own)
    if until_ns is not None and in_column(until_ns) != TIME_MAX:
        last = max(_halve(directory, own, in_column(until_ns)), 1)
    return numbers[:low] + own[first:last] + numbers[high:]


def find_segment(directory: Directory, since_ns: int) -> Position:
    """The start of the first segment that may have a record of `since_ns` or later."""
    numbers = directory.numbers()
    found = segments_between(directory, numbers, since_ns) or numbers
    return Position(found[0], 0) if found else Position(0, 0)


def _halve(directory: Directory, numbers: list[int], time_ns: int) -> int:
    """How many of the given segments, in the order of time, begin before a time."""
    if directory.format.numbered_by_time:
        return bisect_right(numbers, time_ns)
    low, high = 0, len(numbers)  # segments before `low` start earlier than time_ns, those from `high` don't
    while low < high:
        middle = probe = (low + high) // 2
        time = None
        while probe < high and (time := _first_time(directory, numbers[probe])) is None:
            probe += 1  # a segment without records has no time
        if time is not None and in_column(time) < time_ns:
            low = probe + 1
        else:
            high = middle
    return low


def _first_time(directory: Directory, number: int) -> int | None:
    with if_there(SegmentReader, directory, number) as reader:
        return None if reader is None else reader.first_time()


def seek_time(reader: SegmentReader, place: int, since_ns: int) -> int:
    """A physical offset at or after `place`, at or shortly before the first record of `since_ns` or later."""
    if reader.index is not None:
        return max(place, reader.physical(reader.index.mark_before(in_column(since_ns))))
    # Without an index only a checked scan from the start is safe: the time or the length in a head that is
    # hopped over could be damaged, and records would be passed over in silence.
    return place


def first_row(fmt: Format, buffer: memoryview, base: int, scan: Scan, row: int, since_ns: int) -> int:
    """The first row from `row` on whose time is `since_ns` or later. The time may be one that no column can
    hold."""
    times, at_least = scan.times, in_column(since_ns)
    row = kernel.first_since(times, row, at_least)
    while row < len(times) and times[row] in (TIME_MIN, TIME_MAX):
        place = scan.offsets[row] - base
        if fmt.exact_time(bytes(buffer[place : place + 16])) >= since_ns:
            break
        row = kernel.first_since(times, row + 1, at_least)
    return row


def hop(reader: SegmentReader, place: int, stop: int, offset_min: int, time_min: int = TIME_MIN) -> int:
    """Hop from record to record, by their lengths. Returns the offset of the first record at or past both
    bounds.

    It ends earlier at `stop`, or at a head that can't be read. A scan from there then finds what is wrong.
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
            # Larger than the window, in a format whose records have their length only at their end.
            view = memoryview(bytearray(min(need + fmt.record_tail_bytes_max, stop - place)))
            continue
        cut_by_window = reason == TRUNCATED and end > 0
        if reason != END and not cut_by_window:
            return place + end
        place += end
    return min(place, stop)


def _is_record(reader: SegmentReader, place: int) -> bool:
    """Whether a complete, valid record starts at a place."""
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
    with if_there(SegmentReader, directory, number) as reader:
        if reader is None:
            return []
        bounds = [first]
        place = reader.physical(first.offset)
        size = reader.size if stop.segment != number else min(reader.size, reader.physical(stop.offset))
        while (place := hop(reader, place, size, place + _WINDOW_BYTES)) < size:
            if reader.position(place) <= bounds[-1] or not _is_record(reader, place):
                break  # led astray by damage: the last range runs into it and reports it
            bounds.append(reader.position(place))
        # Not what is appended from now on, or a reader that goes back would chase the end.
        stop = max(min(stop, reader.position(reader.size)), bounds[-1])
    return list(zip(bounds, [*bounds[1:], stop], strict=True))
