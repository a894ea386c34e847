"""M3's commit log, reading entries: the oracle for `m3/decode.pxi` and `m3/series.pxi`. `m3.py` draws the bytes.

A decoder goes from chunk to chunk of one file: messages may span chunks, and only the first entry of a series in
the file says which series it is.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

from forelog.formats.m3.format import CHUNK_HEAD_BYTES, MESSAGE_BYTES_MAX
from forelog.kernel.types import END, LIMIT, Entries, Scan
from tests.kernel.oracle.shared import check_range

# Why a decoder stopped. The numbers go on from those of scans.
BAD_MESSAGE_LENGTH = 10  # a length that is no number, or too large
BAD_MESSAGE = 11  # neither a LogInfo nor a LogEntry, or not where it should be
BAD_FIELD = 12  # a field of another type or range than it should have, or bytes past the last one
BAD_METADATA = 13  # the same, in a series' metadata
BAD_TAGS = 14  # tags that don't fill their bytes
UNKNOWN_SERIES = 15  # an entry whose series' metadata is not in the file, as far as it was read

INFO_HEAD = b"\x01\x92\x07\x93"
ENTRY_HEAD = b"\x01\x92\x08\x97"
METADATA_HEAD = b"\x01\x92\x09\x93"
TAGS_MAGIC = 0x2775


# -- fields


class _Bad(Exception):
    """A message can't be read, and why."""

    def __init__(self, reason: int) -> None:
        self.reason = reason


def _varint(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """A length and where it ends; where is -1 if it goes on past `stop`, and -2 if it is no 64 bit number."""
    number = 0
    for i in range(10):
        if at + i >= stop:
            return 0, -1
        byte = view[at + i]
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return (number, at + i + 1) if number < 1 << 64 else (0, -2)
    return 0, -2


_INTS = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_INT_STRUCTS = {code: struct.Struct(layout) for code, layout in _INTS.items()}
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}  # bin 8, 16, 32 and str 8, 16, 32


def _int(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    """An integer of any width, and where it ends."""
    if at >= stop:
        raise _Bad(BAD_FIELD)
    code = view[at]
    if code < 0x80:
        return code, at + 1
    if code >= 0xE0:
        return code - 0x100, at + 1
    kind = _INT_STRUCTS.get(code)
    if kind is None or kind.size > stop - at - 1:
        raise _Bad(BAD_FIELD)
    return kind.unpack_from(view, at + 1)[0], at + 1 + kind.size


def _int64(view: memoryview, at: int, stop: int) -> tuple[int, int]:
    number, at = _int(view, at, stop)
    if number >= 1 << 63:
        raise _Bad(BAD_FIELD)
    return number, at


def _uint(view: memoryview, at: int, stop: int, bound: int) -> tuple[int, int]:
    number, at = _int(view, at, stop)
    if not 0 <= number < bound:
        raise _Bad(BAD_FIELD)
    return number, at


def _float(view: memoryview, at: int, stop: int) -> tuple[float, int]:
    if stop - at >= 9 and view[at] == 0xCB:
        return struct.unpack_from(">d", view, at + 1)[0], at + 9
    if stop - at >= 5 and view[at] == 0xCA:
        return struct.unpack_from(">f", view, at + 1)[0], at + 5
    raise _Bad(BAD_FIELD)


def _bytes(view: memoryview, at: int, stop: int) -> tuple[memoryview | None, int]:
    """Bytes or text, None for nil, and where it ends."""
    if at >= stop:
        raise _Bad(BAD_FIELD)
    code = view[at]
    at += 1
    if code == 0xC0:
        return None, at
    if 0xA0 <= code < 0xC0:
        size = code - 0xA0
    else:
        width = _LENGTHS.get(code, stop)
        if width > stop - at:
            raise _Bad(BAD_FIELD)
        size = int.from_bytes(view[at : at + width], "big")
        at += width
    if size > stop - at:
        raise _Bad(BAD_FIELD)
    return view[at : at + size], at + size


def m3_parse_metadata(
    data: Any,
) -> tuple[bytes, bytes, int, tuple[tuple[bytes, bytes], ...] | None]:
    view = memoryview(data).cast("B")
    try:
        series_id, namespace, shard, tags = _metadata(view)
        pairs = _tags(tags) if tags else None
    except _Bad:
        raise ValueError("no metadata of a series") from None
    return bytes(series_id or b""), bytes(namespace or b""), shard, pairs


def _metadata(view: memoryview) -> tuple[memoryview | None, memoryview | None, int, memoryview | None]:
    """Four values and nothing else."""
    try:
        if bytes(view[:4]) != METADATA_HEAD:
            raise _Bad(BAD_METADATA)
        series_id, at = _bytes(view, 4, len(view))
        namespace, at = _bytes(view, at, len(view))
        shard, at = _uint(view, at, len(view), 1 << 32)
        tags, at = _bytes(view, at, len(view))
    except _Bad:
        raise _Bad(BAD_METADATA) from None
    if at != len(view):
        raise _Bad(BAD_METADATA)
    return series_id, namespace, shard, tags


def _tags(tags: memoryview) -> tuple[tuple[bytes, bytes], ...]:
    if len(tags) < 4 or int.from_bytes(tags[:2], "little") != TAGS_MAGIC:
        raise _Bad(BAD_TAGS)
    at, parts = 4, []
    for _ in range(2 * int.from_bytes(tags[2:4], "little")):
        end = at + 2 + int.from_bytes(tags[at : at + 2], "little")
        if len(tags) - at < 2 or end > len(tags):
            raise _Bad(BAD_TAGS)
        parts.append(bytes(tags[at + 2 : end]))
        at = end
    if at != len(tags):
        raise _Bad(BAD_TAGS)
    return tuple(zip(parts[::2], parts[1::2], strict=True))


# -- entries


def m3_time(buffer: Any, start: int, stop: int, before: int) -> int:
    view = memoryview(buffer).cast("B")
    check_range("time in", start, stop, len(view))
    at = start
    for _ in range(2):
        length, at = _varint(view, at, stop)
        head = bytes(view[max(at, 0) : min(max(at, 0) + 4, stop)])
        if at < 0 or head not in (INFO_HEAD, ENTRY_HEAD):
            break
        if head == ENTRY_HEAD:
            try:
                _, at = _uint(view, at + 4, stop, 1 << 64)
                return _int64(view, at, stop)[0]
            except _Bad:
                break
        if length > stop - at:
            break
        at += length
    return before


class _Columns:
    """Entries as they are collected."""

    def __init__(self) -> None:
        self.series, self.timestamps, self.created = array("q"), array("q"), array("q")
        self.values, self.units, self.annotated = array("d"), bytearray(), bytearray()
        self.annotation_offsets, self.annotations = array("i", [0]), bytearray()
        self.offsets = array("q")
        self.unknown = self.lost = 0
        self.unknown_offset = self.lost_offset = -1

    def entries(self, row: int, reason: int, offset: int, place: int) -> Entries:
        return Entries(
            self.series,
            self.timestamps,
            self.values,
            bytes(self.units),
            self.created,
            bytes(self.annotated),
            self.annotation_offsets,
            bytes(self.annotations),
            self.offsets,
            row,
            reason,
            offset,
            place,
            self.unknown,
            self.unknown_offset,
            self.lost,
            self.lost_offset,
        )


class M3Decoder:
    def __init__(self, lenient: bool = False, annotation_bytes_max: int = 2**31 - 1) -> None:
        self.number = -1
        """What the file's LogInfo says."""
        self.pending_offset = -1
        """Of the chunk in which a message begins whose end hasn't come yet; -1 if there is none."""
        self._lenient = lenient
        self._annotation_bytes_max = annotation_bytes_max
        self._rows: dict[int, int] = {}
        self._metadata: list[bytes] = []
        self._begun = False
        self._entry_first = False  # whether the first message may be an entry: not the file's first, then
        self._lost = False
        self._pending = bytearray()
        self._place = 0  # of the message that is being read, in its chunk
        self._stopped_at = -1
        self._resume = 0

    def __len__(self) -> int:
        return len(self._metadata)

    def metadata(self, first: int, last: int) -> list[bytes]:
        if not 0 <= first <= last <= len(self._metadata):
            raise ValueError(f"rows {first}..{last} of {len(self._metadata)}")
        return self._metadata[first:last]

    def resync(self) -> None:
        self._drop()
        self._lost = self._entry_first = True
        self._resume = 0

    def feed(
        self, buffer: Any, starts: array[int], ends: array[int], offsets: array[int], first: int, last: int
    ) -> Entries:
        view = memoryview(buffer).cast("B")
        if not 0 <= first <= last <= min(len(starts), len(ends), len(offsets)):
            raise ValueError(f"rows {first}..{last} of {min(len(starts), len(ends), len(offsets))}")
        for row in range(first, last):
            check_range("chunk", starts[row], ends[row], len(view))
        columns = _Columns()
        for row in range(first, last):
            begin, self._resume = self._resume, 0
            reason = self._chunk(view[starts[row] : ends[row]], offsets[row], begin, columns)
            if reason != END:
                return columns.entries(row, reason, self._stopped_at, self._place)
        return columns.entries(last, END, -1, -1)

    def _chunk(self, data: memoryview, offset: int, at: int, columns: _Columns) -> int:
        if self._lost and not at:
            if not _begins_with_message(data):
                columns.lost += 1
                columns.lost_offset = offset if columns.lost == 1 else columns.lost_offset
                return END
            self._lost = False
        while at < len(data) or self._is_whole():
            if not self._pending:
                self.pending_offset, self._place = offset, at
            at, reason = self._message(data, at, columns)
            if reason != END:
                return self._stop(reason, data, at)
        return END

    def _stop(self, reason: int, data: memoryview, at: int) -> int:
        """Where the next message starts can't be trusted: go on where a chunk begins with one."""
        self._stopped_at, self._resume = self.pending_offset, at
        if reason != LIMIT:
            self._resume = len(data)
            self._lost = self._entry_first = True
            self._drop()
        return reason

    def _drop(self) -> None:
        self._pending = bytearray()
        self.pending_offset = -1

    def _message(self, data: memoryview, at: int, columns: _Columns) -> tuple[int, int]:
        """Where the next message starts, and a reason if this one can't be read."""
        if self._pending:
            at, reason = self._collect(data, at)
            if reason != END or not self._is_whole():
                return at, reason
            body = _varint(memoryview(self._pending), 0, len(self._pending))[1]
            reason = self._read(memoryview(bytes(self._pending))[body:], columns)
            if reason == END:
                self._drop()
            return at, reason
        length, body = _varint(data, at, len(data))
        if body == -2 or length > MESSAGE_BYTES_MAX:
            return at, BAD_MESSAGE_LENGTH
        if body >= 0 and length <= len(data) - body:
            reason = self._read(data[body : body + length], columns)
            if reason == END:
                self.pending_offset = -1
            return at if reason == LIMIT else body + length, reason
        if body >= 0 and len(data) - body >= 4 and bytes(data[body : body + 4]) not in (INFO_HEAD, ENTRY_HEAD):
            return at, BAD_MESSAGE
        self._pending = bytearray(data[at:])
        return len(data), END

    def _is_whole(self) -> bool:
        length, body = _varint(memoryview(self._pending), 0, len(self._pending))
        return body >= 0 and len(self._pending) == body + length

    def _collect(self, data: memoryview, at: int) -> tuple[int, int]:
        """Add to a message that began in an earlier chunk: its length first, then the rest."""
        while True:
            length, body = _varint(memoryview(self._pending), 0, len(self._pending))
            if body == -2 or length > MESSAGE_BYTES_MAX:
                return at, BAD_MESSAGE_LENGTH
            missing = 1 if body == -1 else body + length - len(self._pending)
            if not missing or at == len(data):
                return at, END
            self._pending += data[at : at + missing]
            at = min(at + missing, len(data))

    def _read(self, message: memoryview, columns: _Columns) -> int:
        head = bytes(message[:4])
        try:
            if head == INFO_HEAD and not self._begun:
                self._read_info(message)
            elif head == ENTRY_HEAD and (self._begun or self._entry_first):
                self._read_entry(message, columns)
            else:
                raise _Bad(BAD_MESSAGE)
        except _Bad as bad:
            return bad.reason
        self._begun = True
        return END

    def _read_info(self, message: memoryview) -> None:
        _, at = _int(message, 4, len(message))
        _, at = _int(message, at, len(message))
        number, at = _int64(message, at, len(message))
        if at != len(message):
            raise _Bad(BAD_FIELD)
        self.number = number

    def _read_entry(self, message: memoryview, columns: _Columns) -> None:
        stop = len(message)
        index, at = _uint(message, 4, stop, 1 << 64)
        created, at = _int64(message, at, stop)
        metadata, at = _bytes(message, at, stop)
        timestamp, at = _int64(message, at, stop)
        value, at = _float(message, at, stop)
        unit, at = _uint(message, at, stop, 256)
        annotation, at = _bytes(message, at, stop)
        if at != stop:
            raise _Bad(BAD_FIELD)
        room = self._annotation_bytes_max - len(columns.annotations)
        if annotation and columns.series and len(annotation) > room:
            raise _Bad(LIMIT)
        row = self._learn(index, metadata) if metadata else self._rows.get(index, -1)
        if row < 0:
            if not self._lenient:
                raise _Bad(UNKNOWN_SERIES)
            columns.unknown += 1
            columns.unknown_offset = self.pending_offset if columns.unknown == 1 else columns.unknown_offset
            return
        columns.series.append(row)
        columns.timestamps.append(timestamp)
        columns.values.append(value)
        columns.units.append(unit)
        columns.created.append(created)
        columns.annotated.append(annotation is not None)
        columns.annotations += annotation or b""
        columns.annotation_offsets.append(len(columns.annotations))
        columns.offsets.append(self.pending_offset)

    def _learn(self, index: int, metadata: memoryview) -> int:
        """The row of a series whose metadata comes again mostly, and is the same; else a new one."""
        tags = _metadata(metadata)[3]
        if tags:
            _tags(tags)
        row = self._rows.get(index, -1)
        if row < 0 or self._metadata[row] != metadata:
            row = self._rows[index] = len(self._metadata)
            self._metadata.append(bytes(metadata))
        return row


def _begins_with_message(data: memoryview) -> bool:
    length, body = _varint(data, 0, len(data))
    return body >= 0 and length <= MESSAGE_BYTES_MAX and bytes(data[body : body + 4]) in (INFO_HEAD, ENTRY_HEAD)


class M3Checker:
    def __init__(self) -> None:
        self.end = 0
        """The physical offset after the last chunk at which no message is unfinished."""
        self._left = 0  # of a message that spans chunks
        self._foreign = False

    def feed(self, buffer: Any, scan: Scan) -> None:
        view = memoryview(buffer).cast("B")
        for start, stop, offset in zip(scan.starts, scan.ends, scan.offsets, strict=True):
            check_range("chunk", start, stop, len(view))
            self._chunk(view[start:stop])
            if self._foreign or not self._left:
                self.end = offset + CHUNK_HEAD_BYTES + stop - start

    def _chunk(self, data: memoryview) -> None:
        at = min(self._left, len(data))
        self._left -= at
        while at < len(data) and not self._foreign:
            length, body = _varint(data, at, len(data))
            known = body >= 0 and bytes(data[body : body + 4]) in (INFO_HEAD, ENTRY_HEAD)
            if not known or length > MESSAGE_BYTES_MAX or (length > len(data) - body and at):
                self._foreign = True
                return
            self._left = max(length - (len(data) - body), 0)
            at = body + length
