"""The kernel's functions over records, chunks, commands and columns: the kernel and the oracle must agree."""

from __future__ import annotations

from array import array
from types import ModuleType
from typing import Any

from forelog.log.directory.index import SegmentIndex, decode_index, encode_index
from tests.sanitize import seeds
from tests.sanitize.target import twins


def bounds(buffer: Any) -> tuple[bytes, Any, int, int]:
    """The knobs, what follows them, and a part of that."""
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    start = min(knobs[0] & 15, len(data))
    return knobs, data, start, max(start, len(data) - (knobs[1] & 15))


def column(values: Any) -> array[int]:
    return array("q", values)


@twins(seeds.captain, tokens=(b"\x01" + bytes(14), b"\xff" * 9 + b"\x01", b"\x80" * 9))
def captain_records(kernel: ModuleType, buffer: Any) -> object:
    knobs, data, start, stop = bounds(buffer)
    limit, time_min = knobs[2] & 7 or 1000, (knobs[3] << 56) - 2**63
    return (
        kernel.captain_scan(data, start, stop, 8, limit),
        kernel.captain_hop(data, start, stop, knobs[3], time_min),
        kernel.captain_find(data, start, stop, bool(knobs[2] & 8)),
        kernel.crc32c(data),
        kernel.crc32c_portable(data, knobs[3]),
    )


@twins(seeds.m3_files, tokens=(b"\x01\x92\x08\x97", b"\x01\x92\x07\x93", b"\x01\x92\x09\x93", b"\xcb", b"\xc0"))
def m3_chunks(kernel: ModuleType, buffer: Any) -> object:
    knobs, data, start, stop = bounds(buffer)
    scan = kernel.m3_scan(data, start, stop, 8, knobs[2] & 7 or 1000)
    checker = kernel.M3Checker()
    checker.feed(data, scan)
    return (
        scan,
        checker.end,
        kernel.m3_hop(data, start, stop, knobs[3], (knobs[3] << 56) - 2**63),
        kernel.m3_find(data, start, stop, bool(knobs[2] & 8)),
        kernel.m3_time(data, start, stop, 5),
        _decoded(kernel, data, scan.starts, scan.ends, scan.offsets, knobs),
    )


@twins(
    seeds.m3_data, tokens=(b"\x01\x92\x08\x97", b"\x01\x92\x07\x93", b"\x01\x92\x09\x93", b"\xca", b"\xc0", b"u'")
)
def m3_messages(kernel: ModuleType, buffer: Any) -> object:
    """What chunks hold, cut into chunks anywhere: no checksum is in the way."""
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    size = max((knobs[1], 1 + (knobs[1] & 7), 100_000)[knobs[0] % 3], len(data) // 50 + 1)
    starts = column(range(0, len(data), size))
    ends = column(min(start + size, len(data)) for start in starts)
    return _decoded(kernel, data, starts, ends, starts, knobs)


def _decoded(kernel: ModuleType, data: Any, starts: Any, ends: Any, offsets: Any, knobs: bytes) -> object:
    decoder = kernel.M3Decoder(bool(knobs[2] & 16), knobs[3] if knobs[2] & 32 else 2**31 - 1)
    found: list[Any] = []
    row, calls = 0, 0
    while row < len(starts) and calls < 2 * len(starts) + 20:
        entries = decoder.feed(data, starts, ends, offsets, row, min(row + 1 + (knobs[2] >> 6), len(starts)))
        found.append(entries)
        calls += 1
        if entries.reason not in (0, 1) and knobs[2] & 8:
            decoder.resync()
        row = entries.row + (entries.reason not in (0, 1))
    return found, len(decoder), decoder.metadata(0, len(decoder)), decoder.number, decoder.pending_offset


@twins(seeds.commands, size_max=600)
def job_commands(kernel: ModuleType, buffer: Any) -> object:
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    starts, ends = map(column, seeds.cut(data))
    first, last = min(knobs[0] & 3, len(starts)), len(starts)
    ticks = (10**9, 10**6, 1000, 1)[knobs[1] & 3]
    found = kernel.commands_decode(data, starts, ends, first, last, ticks)
    return found, kernel.uuid_texts(found.ids), kernel.even_pieces(found.ids, 16)


@twins(seeds.job_lines, tokens=(b"\r\n", b" ", b"=", b"61000000-0001-4000-8000-000000000001"))
def job_words(kernel: ModuleType, buffer: Any) -> object:
    """Lines of a job server's clients, cut into words, and the ids among them."""
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), bytes(buffer[4:])
    at, found = 0, []
    while at < len(data):
        stop, words, flagged = kernel.next_line(data, at, knobs[0] or 1 << 14)
        ids = [kernel.uuid_parse(word) for word in words or ()]
        texts = [kernel.uuid_text(one) for one in ids if one is not None]
        found.append((stop, words, flagged, ids, texts))
        if stop < 0:
            break
        at = stop + 1
    due_ns = None if knobs[1] & 1 else (knobs[2] << 56) - 2**63
    return found, kernel.job_encode(data[:16].ljust(16, b"\0"), data[16:40], data[40:], due_ns, -knobs[3] << 55)


def _packed() -> list[bytes]:
    return [
        seeds.KNOBS + seeds._sized([b"\x01\x00" + one for one in seeds.properties()[at : at + 3]])
        for at in range(8)
    ]


@twins(_packed, tokens=(b"\x01\x00", b"\xdd\xff\xff\xff\xff", b"\xdf\x80\x00\x00\x00", b"\xc6\xff\xff\xff\xff"))
def msgpack_values(kernel: ModuleType, buffer: Any) -> object:
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    starts, ends = map(column, seeds.cut(data))
    head, skip = (b"\x01\x00", b"\x01", b"")[knobs[0] % 3], knobs[1] & 3
    return (
        kernel.msgpack_array(data, starts, ends, 0, len(starts), head, min(skip, len(head)), knobs[2] or 10**6),
        kernel.pieces(data, starts, ends),
        kernel.pieces_after(data, starts, ends, 0, len(starts), head),
    )


@twins(lambda: [seeds.KNOBS + column(range(-3, 30)).tobytes(), seeds.KNOBS + bytes(200), bytes(range(200))])
def columns_of_records(kernel: ModuleType, buffer: Any) -> object:
    """Ranges that lie anywhere, in and outside of a buffer."""
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    numbers = column(b - 3 for b in bytes(data[: len(data) // 2]))
    times = array("q", bytes(data[: len(data) // 8 * 8]))
    starts, ends = numbers[::2], numbers[1::2]
    starts = starts[: len(ends)]
    keep = bytearray(b & 1 for b in bytes(data[: len(starts)]))
    return tuple(_each(kernel, knobs, data, starts, ends, times, keep))


def _each(kernel: ModuleType, knobs: bytes, data: Any, starts: Any, ends: Any, times: Any, keep: Any) -> Any:
    rows, first = len(starts), min(knobs[0] & 7, len(starts))
    room, places = bytearray(knobs[1]), bytearray(4 * rows + 5)
    unaligned = memoryview(places)[1:]  # as a buffer of another program's may be
    yield _tried(kernel.gather, data, starts, ends, first, rows, unaligned[: 4 * (rows + 1)], room), room, places
    micros = bytearray(8 * len(times) + 1)
    yield _tried(kernel.microseconds, times, 0, len(times), memoryview(micros)[1:]), micros
    yield _tried(kernel.compact, data, starts, 0, len(data), keep, bytearray(knobs[2]))
    yield _tried(kernel.pieces, data, starts, ends)
    yield _tried(kernel.select, times[: len(keep)], keep)
    yield _tried(kernel.first_since, times, first, knobs[3]), _tried(kernel.time_run, times, first, -1, knobs[3])
    yield _tried(kernel.ascends, times, knobs[3]), _tried(kernel.keep_since, times, knobs[3])
    keys = kernel.KeySet()
    delimiter = knobs[3] if knobs[2] & 1 else -1
    for _ in range(2):
        yield _tried(keys.keep_latest, data, starts, ends, knobs[0] & 3, knobs[1] & 7, delimiter), len(keys)
    yield _tried(kernel.topic_codes, data, starts, ends)
    yield _tried(kernel.messages_flags, data, starts, ends)
    yield _tried(kernel.messages_json, data, starts, ends)


def _tried(function: Any, *args: Any) -> object:
    try:
        return function(*args)
    except (ValueError, TypeError, OverflowError) as error:
        return type(error).__name__, str(error)


def _indexes() -> list[bytes]:
    plain_one = SegmentIndex(1, 1000, 1000, 5, 7, 9, b"tail", marks=column([8, 7, 500, 9]))
    mapped = SegmentIndex(2, 300, 900, 5, 7, 9, b"tail", column([100, 8, 500, 100, 700, 200]), column([100, 7]))
    return [encode_index(one)[:-4] for one in (plain_one, mapped)]


@twins(_indexes, tokens=(b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7)))
def index_of_a_segment(kernel: ModuleType, buffer: Any) -> object:
    """An index, its checksum made right; then what a reader does with its runs."""
    data = bytes(buffer)
    index = decode_index(data + kernel.crc32c(data).to_bytes(4, "big"))
    if index is None:
        return None
    places = sorted({0, 8, *(place % max(index.physical_bytes, 1) for place in data)})
    return (
        index.segment,
        kernel.relocate(column(places), index.runs) if index.physical_bytes else None,
        [index.logical(index.physical(place)) for place in places],
        index.mark_before(5),
    )
