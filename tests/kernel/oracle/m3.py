"""M3's commit log, chunks and writing entries into them: the oracle for `m3/chunks.pxi` and `m3/encode.pxi`.

A file is a sequence of chunks::

    | size 4 | adler-32 of the size 4 | adler-32 of the data 4 | data |              little-endian

and their data, one after the other, a sequence of messages, each in msgpack after its length. A message that
fits is kept within one chunk; a larger one spans some::

    | length, LEB128 | 01 92 07 93 | 0 | 0 | index |                                            LogInfo
    | length, LEB128 | 01 92 08 97 | series | created | metadata | timestamp | value | unit | annotation |

The first message of a file is its LogInfo. `series` is a number that the writer chose; the first entry of
each series in a file has its metadata, other entries nil::

    | 01 92 09 93 | id | namespace | shard | tags |                              four, whatever the 93 says
    tags     | 75 27 | count 2 | length 2 | name | length 2 | value | ... |      little-endian

>>> encoder = M3Encoder(0, 65536)
>>> data, starts = encoder.encode_many([(m3_metadata(b"cpu", b"default", 3, None), 5, 0.5, 4, None, None)], 7)
>>> scan = m3_scan(data, 0, len(data), 0, 10)
>>> entries = M3Decoder().feed(data, scan.starts, scan.ends, scan.offsets, 0, 1)
>>> list(entries.timestamps), list(entries.values), list(entries.created)
([5], [0.5], [7])
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import adler32

from forelog.formats.m3.format import CHUNK_HEAD_BYTES
from forelog.kernel.types import BAD_CRC, BAD_LENGTH, END, FOUND, LIMIT, TIME_MIN, TRUNCATED, Item, Scan
from tests.kernel.oracle.m3_entries import (
    ENTRY_HEAD,
    INFO_HEAD,
    METADATA_HEAD,
    TAGS_MAGIC,
    M3Checker,
    M3Decoder,
    m3_parse_metadata,
    m3_time,
)
from tests.kernel.oracle.shared import check_range, varint

__all__ = [
    "M3Checker", "M3Decoder", "M3Encoder", "m3_chunks", "m3_find", "m3_hop", "m3_message", "m3_metadata",
    "m3_parse_metadata", "m3_scan", "m3_time",
]  # fmt: skip

_TIME_REACH = 64  # a LogInfo and an entry up to its time are shorter


# -- chunks


def _chunk_head(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """Reason (END if fine) and size of the data; for TRUNCATED how many bytes the head needs."""
    if stop - at < 8:
        return TRUNCATED, CHUNK_HEAD_BYTES
    size, checksum = struct.unpack_from("<II", view, at)
    if adler32(view[at : at + 4]) != checksum:
        return BAD_LENGTH, 0
    if stop - at < CHUNK_HEAD_BYTES:
        return TRUNCATED, CHUNK_HEAD_BYTES
    return END, size


def _chunk(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """Reason (END if fine) and end of the chunk; for TRUNCATED how many bytes it needs."""
    reason, size = _chunk_head(view, at, stop)
    if reason != END:
        return reason, size
    start = at + CHUNK_HEAD_BYTES
    if size > stop - start:
        return TRUNCATED, CHUNK_HEAD_BYTES + size
    if adler32(view[start : start + size]) != int.from_bytes(view[start - 4 : start], "little"):
        return BAD_CRC, 0
    return END, start + size


def m3_scan(buffer: Any, start: int, stop: int, base: int, limit: int) -> Scan:
    view = memoryview(buffer).cast("B")
    check_range("scan of", start, stop, len(view))
    offsets, starts, ends, times = array("q"), array("q"), array("q"), array("q")
    at, time, reason, end = start, TIME_MIN, END, 0
    while at != stop:
        if len(offsets) >= limit:
            reason, end = LIMIT, 0
            break
        reason, end = _chunk(view, at, stop)
        if reason != END:
            break
        time = m3_time(view, at + CHUNK_HEAD_BYTES, end, time)
        offsets.append(base + at)
        starts.append(at + CHUNK_HEAD_BYTES)
        ends.append(end)
        times.append(time)
        at = end
    unknown = next((row for row, time in enumerate(times) if time != TIME_MIN), len(times))
    known = times[unknown] if unknown < len(times) else 0
    times[:unknown] = array("q", [known]) * unknown
    return Scan(offsets, starts, ends, times, at, reason, 0 if reason == END else end)


def m3_hop(buffer: Any, start: int, stop: int, offset_min: int, time_min: int) -> tuple[int, int, int]:
    view = memoryview(buffer).cast("B")
    check_range("hop over", start, stop, len(view))
    at, time = start, 0
    while at < stop:
        reason, size = _chunk_head(view, at, stop)
        if reason != END:
            return at, reason, size
        data, end = at + CHUNK_HEAD_BYTES, at + CHUNK_HEAD_BYTES + size
        if time_min > TIME_MIN:
            if end > stop and stop - data < _TIME_REACH:
                return at, TRUNCATED, min(end - at, CHUNK_HEAD_BYTES + _TIME_REACH)
            time = m3_time(view, data, min(end, stop), time)
        if at >= offset_min and (time_min == TIME_MIN or time >= time_min):
            return at, FOUND, 0
        at = end
    return at, END, 0


# A sum of four bytes is at most 1,021, and a sum of those sums 2,554: two bytes of a checksum are small.
_LIKE_A_HEAD = re.compile(rb"(?=.{5}[\x00-\x03].[\x00-\x09])", re.DOTALL)


def m3_find(buffer: Any, start: int, stop: int, final: bool) -> int:
    view = memoryview(buffer).cast("B")
    check_range("find in", start, stop, len(view))
    if start == stop:
        return -1  # `re` takes no buffer at NULL, as an empty one may be
    budget = 64 * (stop - start) + 65_536
    for match in _LIKE_A_HEAD.finditer(view, start, stop):
        at = match.start()
        reason, size = _chunk_head(view, at, stop)
        if reason != END or size > stop - at - CHUNK_HEAD_BYTES:
            continue
        budget -= size + CHUNK_HEAD_BYTES
        if budget < 0:
            return -1
        reason, end = _chunk(view, at, stop)
        if reason == END and (final if end == stop else _chunk(view, end, stop)[0] == END):
            return at
    return -1


# -- writing


def _pack_int(number: int) -> bytes:
    """The smallest msgpack form: unsigned unless it is negative."""
    if number >= 0:
        if number < 0x80:
            return bytes((number,))
        for code, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
            if number < 1 << (8 * size):
                return bytes((code,)) + number.to_bytes(size, "big")
    if number >= -32:
        return number.to_bytes(1, "big", signed=True)
    for code, size in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
        if number >= -(1 << (8 * size - 1)):
            return bytes((code,)) + number.to_bytes(size, "big", signed=True)
    raise OverflowError(f"{number} takes more than 64 bits")


def _pack_bytes(data: bytes | None) -> bytes:
    if data is None:
        return b"\xc0"
    for code, size in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if len(data) < 1 << (8 * size):
            return bytes((code,)) + len(data).to_bytes(size, "big") + data
    raise OverflowError(f"{len(data)} bytes are too many for a message")


def m3_metadata(
    series_id: bytes, namespace: bytes, shard: int, tags: Iterable[tuple[bytes, bytes]] | None
) -> bytes:
    packed = None
    if tags is not None:
        pairs = [struct.pack("<H", len(part)) + part for tag in tags for part in tag]
        packed = struct.pack("<HH", TAGS_MAGIC, len(pairs) // 2) + b"".join(pairs)
    return METADATA_HEAD + _pack_bytes(series_id) + _pack_bytes(namespace) + _pack_int(shard) + _pack_bytes(packed)


def m3_message(
    series: int,
    created: int,
    metadata: bytes | None,
    timestamp: int,
    value: float,
    unit: int,
    annotation: bytes | None,
) -> bytes:
    return b"".join(
        (
            ENTRY_HEAD,
            _pack_int(series),
            _pack_int(created),
            _pack_bytes(metadata),
            _pack_int(timestamp),
            struct.pack(">Bd", 0xCB, value),
            _pack_int(unit),
            _pack_bytes(annotation),
        )
    )


def m3_chunks(messages: Sequence[bytes], chunk_bytes: int) -> tuple[bytes, array[int], array[int]]:
    if chunk_bytes < 1:
        raise ValueError(f"chunks of {chunk_bytes} bytes")
    out, starts, places = bytearray(), array("q"), array("q")
    data = bytearray()

    def close(part: bytes | bytearray) -> None:
        if part:
            starts.append(len(out))
            size = struct.pack("<I", len(part))
            out.extend(size + struct.pack("<II", adler32(size), adler32(part)) + part)

    for message in messages:
        whole = varint(len(message)) + message
        if data and len(whole) > chunk_bytes - len(data):
            close(data)
            data = bytearray()
        places.append(len(out))
        if len(whole) <= chunk_bytes:
            data += whole
            continue
        close(whole[:chunk_bytes])
        data = bytearray(whole[chunk_bytes:])
        if len(data) > chunk_bytes:
            close(data)
            data = bytearray()
    close(data)
    return bytes(out), starts, places


class M3Encoder:
    def __init__(self, number: int, chunk_bytes: int) -> None:
        self._number = number
        self._chunk_bytes = chunk_bytes
        self._known: dict[bytes, int] = {}
        self._staged: dict[bytes, int] = {}
        self._begun = False
        self._places = array("q")

    def encode_many(self, items: Sequence[Item], time_ns: int) -> tuple[bytes, array[int]]:
        self._staged = {}
        self._places = array("q")
        messages = [self._message(item, time_ns) for item in items]
        if not messages:
            return b"", array("q")
        if self._begun:
            data, starts, self._places = m3_chunks(messages, self._chunk_bytes)
        else:
            info = INFO_HEAD + b"\x00\x00" + _pack_int(self._number)
            data, starts, places = m3_chunks([info, *messages], self._chunk_bytes)
            self._places = places[1:]
        return data, starts

    def _message(self, item: Item, time_ns: int) -> bytes:
        metadata, timestamp, value, unit, annotation, created = item
        index = self._known.get(metadata, -1)
        if index < 0:
            index = self._staged.get(metadata, -1)
        first = index < 0
        if first:
            index = self._staged[metadata] = len(self._known) + len(self._staged)
        created = time_ns if created is None else created
        return m3_message(index, created, metadata if first else None, timestamp, value, unit, annotation)

    def places(self) -> array[int]:
        return self._places

    def accept(self) -> None:
        self._known.update(self._staged)
        self._staged = {}
        self._begun = self._begun or bool(self._places)
