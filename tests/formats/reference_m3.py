"""A reader of M3's commit log files, straight from the format's description and from nothing of forelog's.

It reads as M3's own reader does: chunk by chunk with both checksums, then message by message, with the series'
metadata from its first entry. Whatever it doesn't expect raises.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any


def read_file(data: bytes) -> tuple[int, list[dict[str, Any]]]:
    """The LogInfo's index and the entries of a file."""
    stream = b"".join(read_chunks(data))
    messages = list(split_messages(stream))
    version, (kind, (_, _, index)) = unpack_all(messages[0], 3)
    assert (version, kind) == (1, 7)
    series: dict[int, tuple] = {}
    return index, [read_entry(message, series) for message in messages[1:]]


def read_chunks(data: bytes) -> list[bytes]:
    chunks, at = [], 0
    while at < len(data):
        size, size_sum, data_sum = struct.unpack_from("<III", data, at)
        chunk = data[at + 12 : at + 12 + size]
        assert len(chunk) == size, f"chunk at {at} is cut"
        assert zlib.adler32(data[at : at + 4]) == size_sum, f"size checksum at {at}"
        assert zlib.adler32(chunk) == data_sum, f"data checksum at {at}"
        chunks.append(chunk)
        at += 12 + size
    return chunks


def split_messages(stream: bytes):
    at = 0
    while at < len(stream):
        length = shift = 0
        while True:
            byte = stream[at]
            length |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        assert at + length <= len(stream), "the last message is cut"
        yield stream[at : at + length]
        at += length


def read_entry(message: bytes, series: dict[int, tuple]) -> dict[str, Any]:
    version, (kind, fields) = unpack_all(message, 7)
    assert (version, kind) == (1, 8)
    index, created, metadata, timestamp, value, unit, annotation = fields
    if metadata is not None:
        version, (kind, described) = unpack_all(metadata, 4)
        assert (version, kind) == (1, 9)
        assert index not in series, "metadata comes once per series and file"
        series[index] = (*described[:3], read_tags(described[3]))
    series_id, namespace, shard, tags = series[index]
    return {
        "id": series_id,
        "namespace": namespace,
        "shard": shard,
        "tags": tags,
        "timestamp": timestamp,
        "value": value,
        "unit": unit,
        "annotation": annotation,
        "created": created,
        "index": index,
    }


def read_tags(data: bytes | None) -> list[tuple[bytes, bytes]] | None:
    if data is None:
        return None
    magic, count = struct.unpack_from("<HH", data)
    assert magic == 10101
    parts, at = [], 4
    for _ in range(2 * count):
        (size,) = struct.unpack_from("<H", data, at)
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    assert at == len(data)
    return list(zip(parts[::2], parts[1::2], strict=True))


def unpack_all(message: bytes, fields: int) -> tuple[int, tuple[int, list]]:
    """Version, then kind and fields; an array's header may say three where four follow."""
    assert message[1] == 0x92
    assert message[3] == 0x90 + (3 if fields in (3, 4) else fields)
    values, at = [], 4
    while at < len(message):
        value, at = unpack(message, at)
        values.append(value)
    assert len(values) == fields
    return message[0], (message[2], values)


def unpack(data: bytes, at: int) -> tuple[Any, int]:
    code = data[at]
    if code < 0x80:
        return code, at + 1
    if code >= 0xE0:
        return code - 256, at + 1
    if code == 0xC0:
        return None, at + 1
    layouts = {
        0xCC: ">B",
        0xCD: ">H",
        0xCE: ">I",
        0xCF: ">Q",
        0xD0: ">b",
        0xD1: ">h",
        0xD2: ">i",
        0xD3: ">q",
        0xCB: ">d",
    }
    if code in layouts:
        return struct.unpack_from(layouts[code], data, at + 1)[0], at + 1 + struct.calcsize(layouts[code])
    layout = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}[code]
    (size,) = struct.unpack_from(layout, data, at + 1)
    start = at + 1 + struct.calcsize(layout)
    assert start + size <= len(data)
    return data[start : start + size], start + size
