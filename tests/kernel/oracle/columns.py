"""What is done with columns of records: the oracle for `log/columns.pxi`."""

from __future__ import annotations

from array import array
from typing import Any

from forelog.kernel.types import TIME_MAX, TIME_MIN


def pieces(buffer: Any, starts: array[int], ends: array[int]) -> list[bytes]:
    view = memoryview(buffer).cast("B")
    if len(starts) != len(ends):
        raise ValueError(f"{len(starts)} starts and {len(ends)} ends")
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {i} lies outside of its buffer")
    return [bytes(view[start:end]) for start, end in zip(starts, ends, strict=True)]


def pieces_after(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, head: bytes
) -> list[bytes]:
    view = memoryview(buffer).cast("B")
    rows = min(len(starts), len(ends))
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    found = []
    for i in range(first, last):
        start, end = starts[i], ends[i]
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {i} lies outside of its buffer")
        data = bytes(view[start:end])
        if not data.startswith(head):
            break
        found.append(data[len(head) :])
    return found


def even_pieces(buffer: Any, size: int) -> list[bytes]:
    view = memoryview(buffer).cast("B")
    if size < 1 or len(view) % size:
        raise ValueError(f"{len(view)} bytes are no pieces of {size}")
    return [bytes(view[at : at + size]) for at in range(0, len(view), size)]


def gather(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, offsets: Any, data: Any
) -> int:
    view = memoryview(buffer).cast("B")
    out, places = memoryview(data).cast("B"), memoryview(offsets).cast("B").cast("i")
    _check_rows(starts, ends, first, last)
    if len(places) < last - first + 1:
        raise ValueError("offsets has too little room")
    at = places[0] = 0
    for i in range(first, last):
        size = ends[i] - starts[i]
        if starts[i] < 0 or size < 0 or ends[i] > len(view) or at + size > len(out) or at + size > 0x7FFFFFFF:
            raise ValueError(f"range {i} lies outside of its buffer")
        out[at : at + size] = view[starts[i] : ends[i]]
        at += size
        places[i - first + 1] = at
    return at


def _check_rows(starts: array[int], ends: array[int], first: int, last: int) -> None:
    if not 0 <= first <= last <= min(len(starts), len(ends)):
        raise ValueError(f"rows {first}..{last} of {min(len(starts), len(ends))}")


def microseconds(times: array[int], first: int, last: int, out: Any) -> bool:
    target = memoryview(out).cast("B").cast("q")
    if not 0 <= first <= last <= len(times):
        raise ValueError(f"rows {first}..{last} of {len(times)}")
    if len(target) < last - first:
        raise ValueError("out has too little room")
    rows = times[first:last]
    for i, time in enumerate(rows):
        target[i] = time // 1000 if time >= 0 else -(-time // 1000)
    return all(TIME_MIN < time < TIME_MAX for time in rows)


def first_since(times: array[int], start: int, time_min: int) -> int:
    if not 0 <= start <= len(times):
        raise ValueError(f"row {start} of {len(times)}")
    for row in range(start, len(times)):
        if times[row] >= time_min:
            return row
    return len(times)


def time_run(times: array[int], start: int, time_min: int, time_last: int) -> tuple[int, int]:
    first = start
    if not 0 <= start <= len(times):
        raise ValueError(f"row {start} of {len(times)}")
    while first < len(times) and not time_min <= times[first] <= time_last:
        first += 1
    last = first
    while last < len(times) and time_min <= times[last] <= time_last:
        last += 1
    return first, last


def ascends(times: array[int], after: int) -> bool:
    for time in times:
        if time < after:
            return False
        after = time
    return True


def keep_since(times: array[int], time_min: int) -> bytearray:
    return bytearray(time >= time_min for time in times)


class KeySet:
    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def keep_latest(
        self, buffer: Any, starts: array[int], ends: array[int], key_start: int, key_stop: int, delimiter: int
    ) -> bytearray:
        view = memoryview(buffer).cast("B")
        mask = bytearray(len(starts))
        _check_rows(starts, ends, 0, len(starts))
        for i in range(len(starts) - 1, -1, -1):
            if not 0 <= starts[i] <= ends[i] <= len(view):
                raise ValueError(f"range {i} lies outside of its buffer")
            if 0 < key_start >= ends[i] - starts[i]:
                mask[i] = 1
                continue
            key = bytes(view[starts[i] : ends[i]][max(key_start, 0) : max(key_stop, 0)])
            if delimiter >= 0:
                key = key.split(bytes((delimiter,)), 1)[0]
            if key not in self._keys:
                self._keys.add(key)
                mask[i] = 1
        return mask


def compact(buffer: Any, offsets: array[int], base: int, end: int, keep: bytearray, out: bytearray) -> int:
    view = memoryview(buffer).cast("B")
    if len(keep) != len(offsets):
        raise ValueError("keep has another length than offsets")
    at = 0
    for i, kept in enumerate(keep):
        start, stop = offsets[i] - base, offsets[i + 1] - base if i + 1 < len(offsets) else end
        if not 0 <= start <= stop <= len(view):
            raise ValueError(f"frame {i} lies outside of its buffer")
        if kept:
            if at + stop - start > len(out):
                raise ValueError("out has too little room")
            out[at : at + stop - start] = view[start:stop]
            at += stop - start
    return at


def select(column: array[int], keep: bytearray) -> array[int]:
    if len(keep) != len(column):
        raise ValueError("keep has another length than the column")
    return array("q", (value for value, kept in zip(column, keep, strict=True) if kept))


def kept_runs(
    logical: array[int],
    physical: array[int],
    end: int,
    keep: bytearray,
    place: int,
    expected: int,
    runs: array[int],
) -> tuple[int, int]:
    if not len(logical) == len(physical) == len(keep):
        raise ValueError("columns of different lengths")
    for i, kept in enumerate(keep):
        if kept:
            if logical[i] != expected:
                runs.append(logical[i])
                runs.append(place)
            size = (physical[i + 1] if i + 1 < len(physical) else end) - physical[i]
            place += size
            expected = logical[i] + size
    return place, expected


def relocate(physical: array[int], runs: array[int]) -> array[int]:
    logical = array("q")
    run, count = -1, len(runs) // 2
    for offset in physical:
        while run + 1 < count and runs[2 * (run + 1) + 1] <= offset:
            run += 1
        logical.append(offset if run < 0 else runs[2 * run] + offset - runs[2 * run + 1])
    return logical
