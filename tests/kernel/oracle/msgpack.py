"""Many values in msgpack, joined to one array: the oracle for `messages/msgpack.pxi`."""

from __future__ import annotations

from array import array
from typing import Any

__all__ = ["msgpack_array"]

_ARRAY32 = b"\xdd"
_NEVER_USED = 0xC1
_SIZED = {  # by its first byte: how many bytes say how long it is, and what it has beside those
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
_FIXED = {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
_COUNTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # bytes of the count, values for each


def msgpack_array(
    buffer: Any,
    starts: array[int],
    ends: array[int],
    first: int,
    last: int,
    head: bytes,
    skip: int,
    size_max: int,
) -> tuple[int, bytes]:
    view = memoryview(buffer).cast("B")
    rows = min(len(starts), len(ends))
    if not 0 <= first <= last <= rows:
        raise ValueError(f"rows {first}..{last} of {rows}")
    if not 0 <= skip <= len(head):
        raise ValueError(f"can't leave out {skip} bytes of a head of {len(head)}")
    found: list[bytes] = []
    total = 0
    for i in range(first, last):
        start, end = starts[i], ends[i]
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"range {i} lies outside of its buffer")
        data = bytes(view[start:end])
        value = data[skip:]
        if not data.startswith(head) or (found and len(value) > size_max - total) or not _is_one_value(value):
            break
        found.append(value)
        total += len(value)
    return len(found), _ARRAY32 + len(found).to_bytes(4, "big") + b"".join(found)


def _is_one_value(data: bytes) -> bool:
    at, pending = 0, 1
    while pending:
        if pending > len(data) - at:
            return False
        kind = data[at]
        at += 1
        pending -= 1
        if kind == _NEVER_USED:
            return False
        if 0x80 <= kind < 0x90:
            pending += 2 * (kind & 15)
        elif 0x90 <= kind < 0xA0:
            pending += kind & 15
        elif 0xA0 <= kind < 0xC0:
            at += kind & 31
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind in _SIZED or kind in _COUNTED:
            size, more = (_SIZED if kind in _SIZED else _COUNTED)[kind]
            value = int.from_bytes(data[at : at + size], "big")
            if len(data) - at < size:
                return False
            at += size
            if kind in _SIZED:
                at += more + value
            else:
                pending += more * value
        if at > len(data):
            return False
    return at == len(data)
