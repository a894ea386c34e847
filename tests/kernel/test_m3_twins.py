"""The kernel and the oracle read and write M3's commit log alike, on good, random and hostile bytes."""

from __future__ import annotations

import math
import struct
import threading
import zlib
from array import array
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forelog import kernel
from forelog.kernel import types
from tests.kernel import oracle
from tests.kernel.oracle import m3_metadata
from tests.kernel.test_twins import same

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, -1, -32, -33, 127, 128, 255, 256, 65535, 65536, 2**32]
)
METADATA = st.builds(
    m3_metadata,
    st.binary(max_size=8),
    st.sampled_from([b"default", b""]),
    st.integers(0, 2**32 - 1),
    st.none() | st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=3),
)
ITEMS = st.tuples(
    METADATA,
    INT64,
    st.floats(),
    st.integers(1, 8),
    st.none() | st.binary(max_size=4) | st.sampled_from([b"a" * 31, b"b" * 255, b"c" * 256]),
    st.none() | INT64,
)
BATCHES = st.lists(st.lists(ITEMS, max_size=5), min_size=1, max_size=4)


def encoded(batches, chunk_bytes: int) -> bytes:
    encoder = oracle.M3Encoder(3, chunk_bytes)
    out = b""
    for batch in batches:
        out += encoder.encode_many(batch, 1_000)[0]
        encoder.accept()
    return out


def chunk(data: bytes) -> bytes:
    size = struct.pack("<I", len(data))
    return size + struct.pack("<II", zlib.adler32(size), zlib.adler32(data)) + data


def chunks(data: bytes) -> types.Scan:
    return oracle.m3_scan(data, 0, len(data), 0, 1000)


@st.composite
def hostile_file(draw: st.DrawFn) -> bytes:
    """A file with bytes of it changed, cut out or put in, and heads of chunks that claim much."""
    data = bytearray(encoded(draw(BATCHES), draw(st.sampled_from([16, 40, 512, 65_536]))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(["flip", "cut", "insert", "head", "empty"]))
        if action == "flip" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del data[place : place + draw(st.integers(1, 20))]
        elif action == "insert":
            data[place:place] = draw(st.binary(max_size=20))
        elif action == "empty":
            data[place:place] = chunk(b"")
        else:
            size = struct.pack("<I", draw(st.integers(0, 2**32 - 1)))
            data[place:place] = size + struct.pack("<I", zlib.adler32(size)) + draw(st.binary(max_size=6))
    return bytes(data)


@st.composite
def hostile_chunks(draw: st.DrawFn) -> bytes:
    """Right chunks, with anything in them."""
    whole = encoded(draw(BATCHES), 1 << 20)
    messages = bytearray(b"".join(whole[s:e] for s, e in zip(*chunks(whole)[1:3], strict=True)))
    for _ in range(draw(st.integers(0, 5))):
        place = draw(st.integers(0, min(len(messages), 300)))
        action = draw(st.sampled_from(["set", "cut", "insert"]))
        if action == "set" and place < len(messages):
            messages[place] = draw(
                st.sampled_from([0x00, 0x01, 0x7F, 0x80, 0xC0, 0xC6, 0xCA, 0xCF, 0xD3, 0xDB, 0xFF])
            )
        elif action == "cut":
            del messages[place : place + draw(st.integers(1, 9))]
        else:
            messages[place:place] = draw(st.binary(max_size=12))
    cuts = sorted(draw(st.lists(st.integers(0, len(messages)), max_size=5)))
    bounds = [0, *cuts, len(messages)]
    return b"".join(chunk(bytes(messages[a:b])) for a, b in pairwise(bounds))


def comparable(entries) -> list:
    """Entries as values that are equal if they are the same: NaN by its bits."""
    return [entries[0], entries[1], entries[2].tobytes(), *entries[3:]]


def drive(module, data: bytes, calls, lenient: bool, annotation_bytes_max: int) -> list:
    """All that a decoder says when it is fed some chunks at a time, resumed where it stops, and resynced."""
    scan = chunks(data)
    decoder = module.M3Decoder(lenient, annotation_bytes_max)
    said, row = [], 0
    for step in calls:
        if step == 0:
            decoder.resync()
            continue
        last = min(row + step, len(scan.starts))
        for _ in range(100):
            entries = decoder.feed(data, scan.starts, scan.ends, scan.offsets, row, last)
            row = entries.row
            said.append((comparable(entries), decoder.pending_offset, decoder.number, len(decoder)))
            if row == last:
                break
        else:
            raise AssertionError("it never gets past a message")
    return [*said, decoder.metadata(0, len(decoder))]


@given(INT64, INT64, st.none() | METADATA, st.floats(), st.integers(0, 2**64 - 1), st.none() | st.binary())
def test_a_message_is_encoded_equally(created, timestamp, metadata, value, series, annotation):
    same("m3_message", series, created, metadata, timestamp, value, 4, annotation)


@given(
    st.lists(st.binary(max_size=100) | st.sampled_from([bytes(1000), bytes(5000)]), max_size=12),
    st.integers(1, 600),
)
def test_messages_are_put_into_the_same_chunks(messages, chunk_bytes):
    data, starts, places = same("m3_chunks", messages, chunk_bytes)
    assert list(chunks(data).offsets) == list(starts)
    assert set(places) <= set(starts)
    assert len(places) == len(messages)


@given(BATCHES, st.sampled_from([16, 64, 512, 65_536]), st.lists(st.booleans(), min_size=4, max_size=4))
def test_an_encoder_writes_the_same_whether_batches_were_accepted_or_not(batches, chunk_bytes, accepted):
    encoders = oracle.M3Encoder(7, chunk_bytes), kernel.M3Encoder(7, chunk_bytes)
    for batch, accept in zip(batches, accepted, strict=False):
        one, other = (encoder.encode_many(batch, -5) for encoder in encoders)
        assert one == other
        assert encoders[0].places() == encoders[1].places()
        for encoder in encoders:
            if accept:
                encoder.accept()


@settings(max_examples=300)
@given(hostile_file() | st.binary(max_size=200), st.integers(0, 30), st.integers(0, 5), st.integers(0, 7))
def test_a_scan_finds_the_same_chunks_and_times(data, start, cut, limit):
    start = min(start, len(data))
    scan = same("m3_scan", data, start, max(len(data) - cut, start), 1000, limit)
    assert len(scan.offsets) <= limit


@settings(max_examples=200)
@given(hostile_file(), st.integers(0, 300), INT64)
@example(chunk(b"\x10\x01\x92\x08\x97\xe0\x05") + chunk(b"\x10\x01\x92\x08\x97\x00\x05"), 0, 1)  # series -32
def test_hops_over_chunks_go_the_same_way(data, offset_min, time_min):
    end, reason, _ = same("m3_hop", data, 0, len(data), offset_min, time_min)
    assert end >= 0
    assert reason in (types.END, types.FOUND, types.TRUNCATED, types.BAD_LENGTH)


@settings(max_examples=300)
@given(hostile_file() | st.binary(max_size=300), st.integers(0, 60), st.booleans())
def test_the_next_chunk_after_damage_is_found_at_the_same_place(data, start, final):
    found = same("m3_find", data, min(start, len(data)), len(data), final)
    assert found == -1 or oracle.m3_scan(data, found, len(data), 0, 1).offsets


def test_a_search_for_chunks_through_bytes_made_to_be_slow_ends():
    size = struct.pack("<I", 65_000)
    data = (size + struct.pack("<I", zlib.adler32(size))) * 100_000
    assert kernel.m3_find(data, 0, len(data), True) == -1


@settings(max_examples=500, deadline=None)
@given(
    hostile_chunks(),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from([0, 5, 300, 2**31 - 1]),
)
def test_decoders_say_the_same_of_anything(data, calls, lenient, annotation_bytes_max):
    assert drive(oracle, data, calls, lenient, annotation_bytes_max) == drive(
        kernel, data, calls, lenient, annotation_bytes_max
    )


@given(BATCHES, st.sampled_from([16, 64, 512, 65_536]))
def test_what_is_encoded_is_decoded(batches, chunk_bytes):
    data = encoded(batches, chunk_bytes)
    scan = chunks(data)
    decoder = kernel.M3Decoder()
    entries = decoder.feed(data, scan.starts, scan.ends, scan.offsets, 0, len(scan.starts))
    items = [item for batch in batches for item in batch]
    known = decoder.metadata(0, len(decoder))
    assert len(known) == len({item[0] for item in items})
    assert [known[row] for row in entries.series] == [item[0] for item in items]
    assert list(entries.timestamps) == [item[1] for item in items]
    assert entries.values.tobytes() == array("d", [item[2] for item in items]).tobytes()
    assert list(entries.units) == [item[3] for item in items]
    assert list(entries.created) == [1_000 if item[5] is None else item[5] for item in items]
    notes = [
        entries.annotations[entries.annotation_offsets[i] : entries.annotation_offsets[i + 1]] if there else None
        for i, there in enumerate(entries.annotated)
    ]
    assert notes == [item[4] for item in items]
    assert (entries.reason, decoder.pending_offset) == (types.END, -1)


@settings(max_examples=300)
@given(hostile_chunks() | BATCHES.map(lambda batches: encoded(batches, 40)), st.integers(1, 3))
def test_checkers_find_the_same_end(data, step):
    scan = chunks(data)
    checkers = oracle.M3Checker(), kernel.M3Checker()
    for first in range(0, len(scan.starts), step):
        part = scan._replace(**{c: getattr(scan, c)[first : first + step] for c in ("offsets", "starts", "ends")})
        for checker in checkers:
            checker.feed(data, part)
        assert checkers[0].end == checkers[1].end


@given(st.binary(max_size=70_000) | st.sampled_from([b"\xff" * 100_000, bytes(5552), b"\xff" * 8192]))
@example(b"\xff" * 32 * 257)
def test_the_checksum_is_zlibs(data):
    assert list(kernel.m3_scan(chunk(data), 0, 12 + len(data), 0, 1).offsets) == [0]


@pytest.mark.parametrize("module", [oracle, kernel])
@pytest.mark.parametrize("length", [b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80\x80\x80\x80\x01"])
def test_a_length_that_no_file_could_have_costs_nothing(module, length):
    data = chunk(length + b"\x01\x92\x08\x97")
    scan = chunks(data)
    decoder = module.M3Decoder()
    entries = decoder.feed(data, scan.starts, scan.ends, scan.offsets, 0, 1)
    assert (entries.row, entries.offset, entries.place) == (0, 0, 0)
    assert entries.reason == 10
    assert decoder.pending_offset == -1


def test_bytes_too_long_for_16_bits_are_encoded_equally():
    message = same("m3_message", 0, 0, None, 0, 0.0, 4, bytes(70_000))
    assert message[-70_005:-70_000] == b"\xc6" + struct.pack(">I", 70_000)


@pytest.mark.parametrize("module", [oracle, kernel])
def test_integers_and_bytes_of_any_width_are_read(module):
    wide = b"\xd3" + struct.pack(">q", 5), b"\xdb\x00\x00\x00\x00", b"\xca" + struct.pack(">f", 0.5)
    metadata = b"\x01\x92\x09\x93\xda\x00\x01x\xa1y\xce\x00\x00\x00\x07\xc0"
    entry = b"\x01\x92\x08\x97\xd1\x00\x05" + wide[0] + b"\xd9" + bytes([len(metadata)]) + metadata
    entry += wide[0] + wide[2] + b"\xcd\x00\x04" + wide[1]
    info = b"\x01\x92\x07\x93\xcc\x00\x00\xd2\x00\x00\x00\x09"
    data = chunk(bytes([len(info)]) + info + bytes([len(entry)]) + entry)
    scan = chunks(data)
    decoder = module.M3Decoder()
    entries = decoder.feed(data, scan.starts, scan.ends, scan.offsets, 0, 1)
    assert entries.reason == types.END
    assert (list(entries.timestamps), list(entries.values), list(entries.units)) == ([5], [0.5], [4])
    assert (decoder.number, decoder.metadata(0, 1), entries.annotated) == (9, [metadata], b"\x01")
    assert math.isclose(entries.values[0], 0.5)


def test_a_decoder_in_use_by_another_thread_is_refused():
    item = (m3_metadata(b"cpu", b"", 0, None), 1, 1.0, 1, None, None)
    data = kernel.M3Encoder(0, 65_536).encode_many([item] * 400_000, 0)[0]
    scan = kernel.m3_scan(data, 0, len(data), 0, 10_000)
    decoder = kernel.M3Decoder(True)
    outcomes = []

    def feed() -> None:
        try:
            decoder.feed(data, scan.starts, scan.ends, scan.offsets, 0, len(scan.starts))
            outcomes.append("fed")
        except RuntimeError:
            outcomes.append("refused")

    threads = [threading.Thread(target=feed) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8
    assert "fed" in outcomes
