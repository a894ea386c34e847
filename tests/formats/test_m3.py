"""The M3 format: what M3 wrote is read, what we write is what M3 would have written."""

from __future__ import annotations

import base64
import json
import math
import struct
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog import kernel
from forelog.errors import RecordTooLarge
from forelog.formats import detect
from forelog.formats.m3 import M3, Datapoint, Series, Unit
from tests.conftest import VECTORS
from tests.formats.reference_m3 import read_chunks, read_file, split_messages

EXPECTED = json.loads((VECTORS / "m3/expected.json").read_text())
CPU = Series(b"cpu", shard=3, tags={b"host": b"a"})

names = st.binary(max_size=20)
series_of_any_kind = st.builds(
    Series,
    names | st.just(b"i" * 300),
    names,
    st.integers(0, 2**32 - 1),
    st.none()
    | st.dictionaries(st.binary(min_size=1, max_size=9), names, max_size=4)
    | st.lists(st.tuples(st.binary(min_size=1, max_size=9), names), max_size=4),
)
int64 = st.integers(-(2**63), 2**63 - 1)
items = st.tuples(
    series_of_any_kind,
    st.tuples(int64, st.floats()),
    st.sampled_from(Unit),
    st.none() | st.binary(max_size=9) | st.sampled_from([b"n" * 600, b"n" * 3000]),
)


def same_value(one: float, other: float) -> bool:
    return struct.pack(">d", one) == struct.pack(">d", other)


def decoded(data: bytes):
    """Entries, their series, and the scan and decoder that found them."""
    scan = M3().scan(data, 0, len(data), 0, 10_000)
    decoder = kernel.M3Decoder()
    entries = decoder.feed(data, scan.starts, scan.ends, scan.offsets, 0, len(scan.starts))
    return entries, [Series.of_metadata(raw) for raw in decoder.metadata(0, len(decoder))], scan, decoder


@pytest.mark.parametrize("name", EXPECTED["files"])
def test_what_m3_wrote_is_read(name):
    data = (VECTORS / "m3" / name).read_bytes()
    expected = EXPECTED["files"][name]
    entries, series, scan, decoder = decoded(data)
    assert decoder.number == expected["log_info_index"]
    assert [(o, e - s) for o, s, e in zip(*scan[:3], strict=True)] == [
        (chunk["offset"], chunk["size"]) for chunk in expected["chunks"]
    ]
    assert list(entries.timestamps) == [entry["timestamp_ns"] for entry in expected["entries"]]
    assert [struct.pack(">d", v).hex() for v in entries.values] == [
        e["value_bits_hex"] for e in expected["entries"]
    ]
    assert list(entries.units) == [entry["unit"] for entry in expected["entries"]]
    assert list(entries.created) == [entry["create_ns"] for entry in expected["entries"]]
    for i, entry in enumerate(expected["entries"]):
        found = series[entries.series[i]]
        assert (found.id, found.namespace, found.shard) == (
            entry["series_id"].encode(),
            entry["namespace"].encode(),
            entry["shard"],
        )
        note = entries.annotations[entries.annotation_offsets[i] : entries.annotation_offsets[i + 1]]
        coded = entry["annotation_base64"]
        assert (note if entries.annotated[i] else None) == (None if coded is None else base64.b64decode(coded))
        if entry["has_metadata"]:
            tags = entry["metadata"]["tags"]
            assert found.tags == (None if tags is None else tuple((a.encode(), b.encode()) for a, b in tags))
            assert found.metadata.hex() == entry["metadata_hex"]


@pytest.mark.parametrize("name", EXPECTED["files"])
def test_each_message_is_encoded_as_m3_did(name):
    data = (VECTORS / "m3" / name).read_bytes()
    written = list(split_messages(b"".join(read_chunks(data))))[1:]
    for entry, expected in zip(EXPECTED["files"][name]["entries"], written, strict=True):
        note = entry["annotation_base64"]
        message = kernel.m3_message(
            entry["index"],
            entry["create_ns"],
            bytes.fromhex(entry["metadata_hex"]) if entry["has_metadata"] else None,
            entry["timestamp_ns"],
            struct.unpack(">d", bytes.fromhex(entry["value_bits_hex"]))[0],
            entry["unit"],
            None if note is None else base64.b64decode(note),
        )
        assert message.hex() == expected.hex()


@pytest.mark.parametrize("name", EXPECTED["files"])
def test_messages_are_put_into_chunks_as_m3_did(name):
    """Between the places where M3 was told to flush, which show as chunks that had room for the next message."""
    data = (VECTORS / "m3" / name).read_bytes()
    flush_size = EXPECTED["flush_size"]
    parts = read_chunks(data)
    bounds, at = [], 0
    for part in parts:
        bounds.append(at)
        at += len(part)
    messages = list(split_messages(b"".join(parts)))
    begins, at = [], 0
    for message in messages:
        begins.append(max(i for i, bound in enumerate(bounds) if bound <= at))
        at += len(message) + (1 if len(message) < 128 else 2)
    flushes = {
        begins[i]
        for i in range(1, len(messages))
        if begins[i] != begins[i - 1]
        and len(parts[begins[i] - 1]) + len(messages[i]) + (1 if len(messages[i]) < 128 else 2) <= flush_size
    }
    groups: list[list[bytes]] = []
    for chunk, group in groupby(range(len(messages)), key=lambda i: begins[i]):
        if chunk in flushes or not groups:
            groups.append([])
        groups[-1] += [messages[i] for i in group]
    assert b"".join(kernel.m3_chunks(group, flush_size)[0] for group in groups) == data
    assert name != "commitlog-0-0.db" or len(groups) < len(parts) / 2


DAMAGE = {
    # Where reading stops, the reason, and where chunks go on.
    "truncated_mid_chunk": (2499, "truncated", -1),
    "truncated_in_chunk_header": (2499, "truncated", -1),
    "truncated_after_chunk_header": (2499, "truncated", -1),
    "truncated_at_chunk_boundary": (2499, None, -1),
    "corrupt_chunk_data": (2499, "data checksum", 2818),
    "corrupt_chunk_size": (2499, "size checksum", 2818),
    "corrupt_size_checksum": (2499, "size checksum", 2818),
    "corrupt_data_checksum": (2499, "data checksum", 2818),
    "corrupt_first_chunk": (0, "data checksum", 471),
    "zero_tail": (11250, "size checksum", -1),
    "empty": (0, None, -1),
    "truncated_inside_spanning_entry": (6480, None, -1),
}


@pytest.mark.parametrize("case", EXPECTED["damaged"], ids=lambda case: case["file"])
def test_what_is_damaged_is_read_up_to_the_damage(case):
    data = (VECTORS / "m3" / case["file"]).read_bytes()
    entries, _, scan, decoder = decoded(data)
    end, reason, following = DAMAGE[case["file"].removeprefix("damaged/").removesuffix(".db")]
    assert len(entries.series) == case["good_entries_before_end"]
    assert (scan.end, M3.reasons.get(scan.reason)) == (end, reason)
    assert M3().find(data, min(end + 1, len(data)), len(data), True) == following
    spanning = "spanning" in case["file"]
    assert decoder.pending_offset == (5956 if spanning else -1)
    checker = M3().checker()
    checker.feed(data, scan)
    assert checker.end == (5956 if spanning else end)


@settings(max_examples=200)
@given(
    st.lists(st.lists(items, min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from([16, 100, 1000, 65_536]),
)
def test_what_we_write_is_read_by_a_reader_written_from_the_description(batches, chunk_bytes):
    m3 = M3(chunk_bytes)
    encoder = m3.encoder(5)
    data = b""
    for number, batch in enumerate(batches):
        made = [m3.item(*arguments) for arguments in batch]
        part, starts = encoder.encode_many(made, number)
        encoder.accept()
        assert len(part) <= sum(m3.item_bytes(item) for item in made)
        assert set(encoder.places()) <= set(starts)
        data += part
    index, entries = read_file(data)
    assert index == 5
    written = [(number, *arguments) for number, batch in enumerate(batches) for arguments in batch]
    assert len(entries) == len(written)
    for entry, (created, series, (timestamp, value), unit, annotation) in zip(entries, written, strict=True):
        assert (entry["id"], entry["namespace"], entry["shard"]) == (series.id, series.namespace, series.shard)
        assert entry["tags"] == (None if series.tags is None else list(series.tags))
        assert (entry["timestamp"], entry["unit"], entry["created"]) == (timestamp, unit, created)
        assert entry["annotation"] == annotation
        assert same_value(entry["value"], value)
    firsts = list(dict.fromkeys(series for _, series, *_ in written))
    assert [entry["index"] for entry in entries] == [firsts.index(series) for _, series, *_ in written]


def test_a_batch_that_was_not_accepted_leaves_no_trace():
    m3 = M3()
    encoder = m3.encoder(0)
    lost = encoder.encode_many([m3.item(Series(b"lost"), (1, 1.0))], 1)[0]
    kept = encoder.encode_many([m3.item(CPU, (2, 2.0))], 2)[0]
    encoder.accept()
    again = encoder.encode_many([m3.item(Series(b"lost"), (1, 1.0))], 1)[0]
    assert len(again) == len(lost) - 8  # all but the LogInfo
    assert [entry["id"] for entry in read_file(kept + again)[1]] == [b"cpu", b"lost"]
    assert [entry["index"] for entry in read_file(kept + again)[1]] == [0, 1]


def test_an_item_may_say_when_it_was_created():
    m3 = M3()
    made = [m3.item(CPU, (1, 1.0), created_ns=-7), m3.item(CPU, (1, 1.0))]
    assert [entry["created"] for entry in read_file(m3.encoder(0).encode_many(made, 9)[0])[1]] == [-7, 9]


def test_a_chunk_has_the_time_of_its_first_entry_also_after_a_chunk_with_the_log_info_alone():
    info = kernel.m3_chunks([bytes.fromhex("01920793000000")], 512)[0]
    entry = kernel.m3_chunks([kernel.m3_message(0, 77, None, 1, 1.0, 1, None)], 512)[0]
    scan = M3().scan(info + entry, 0, len(info + entry), 0, 9)
    assert list(scan.times) == [77, 77]
    assert list(M3().scan(info, 0, len(info), 0, 9).times) == [0]
    earliest = kernel.m3_chunks([kernel.m3_message(0, -(2**63), None, 1, 1.0, 1, None)], 512)[0]
    assert list(M3().scan(entry + earliest, 0, len(entry + earliest), 0, 9).times) == [77, -(2**63)]
    assert M3().exact_time(info + entry) == 77
    assert M3().exact_time(info) == 2**63 - 1


def test_series_are_equal_by_what_they_say():
    assert Series(b"a", tags={b"x": b"1", b"y": b"2"}) == Series(b"a", tags={b"y": b"2", b"x": b"1"})
    assert len({Series(b"a"), Series(b"a", tags=None), Series(b"a", tags={}), Series(b"a", shard=1)}) == 3
    assert Series(b"a", tags=[(b"y", b""), (b"x", b"")]).tags == ((b"y", b""), (b"x", b""))
    assert Series(b"a") != b"a"
    with pytest.raises(AttributeError):
        Series(b"a").shard = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Series("cpu"), TypeError, "id is 'cpu': expected bytes"),  # type: ignore[arg-type]
        (lambda: Series(b"cpu", namespace="default"), TypeError, "namespace is 'default'"),  # type: ignore[arg-type]
        (lambda: Series(b"cpu", shard=2**32), ValueError, "shard is 4294967296"),
        (lambda: Series(b"cpu", shard=-1), ValueError, "shard is -1"),
        (lambda: Series(b"cpu", tags={"host": b"a"}), TypeError, "a tag's name is 'host'"),  # type: ignore[arg-type]
        (lambda: Series(b"cpu", tags={b"": b"a"}), ValueError, "has no name"),
        (lambda: Series(b"cpu", tags={b"a": bytes(65_536)}), ValueError, "has 65536 bytes"),
        (lambda: Series(b"cpu", tags=[(b"a", b"")] * 65_536), ValueError, "65536 tags"),
        (lambda: M3().item(b"cpu", (1, 1.0)), TypeError, "b'cpu' isn't a series"),  # type: ignore[arg-type]
        (lambda: M3().item(CPU, 1.0), TypeError, "1.0 isn't a datapoint"),  # type: ignore[arg-type]
        (lambda: M3().item(CPU, (1, "3.5")), TypeError, "expected a number"),  # type: ignore[arg-type]
        (lambda: M3().item(CPU, (1, 2**2000)), ValueError, "a double can't hold"),
        (lambda: M3().item(CPU, (1.5, 1.0)), TypeError, "timestamp_ns is 1.5"),  # type: ignore[arg-type]
        (lambda: M3().item(CPU, (2**63, 1.0)), ValueError, "timestamp_ns is 9223372036854775808"),
        (lambda: M3().item(CPU, (1, 1.0), unit=9), ValueError, "9 is not a valid Unit"),
        (lambda: M3().item(CPU, (1, 1.0), annotation="x"), TypeError, "annotation is 'x'"),  # type: ignore[arg-type]
        (lambda: M3().item(CPU, (1, 1.0), annotation=bytes(64 << 20)), RecordTooLarge, "67,108,864 of annotation"),
        (lambda: M3(chunk_bytes=15), ValueError, "chunk_bytes is 15"),
    ],
)
def test_what_cannot_be_written_is_told(make, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        make()


def test_what_was_given_may_change_afterwards():
    note = bytearray(b"before")
    item = M3().item(CPU, Datapoint(1, 2), annotation=note)
    note[:] = b"after!"
    assert item[4] == b"before"
    assert math.isclose(item[2], 2.0)


@pytest.mark.parametrize("name", ["commitlog-0-0.db", "commitlog-0-123456789.db"])
def test_files_are_known_by_name(name):
    assert detect(name, b"") == M3()
    assert M3().segment_name(M3().segment_number(name)) == name


@pytest.mark.parametrize(
    "name", ["commitlog-1-0.db", "commitlog-0-00.db", "commitlog-0-1.db.torn", "commitlog-0-²​.db"]
)
def test_other_names_are_not(name):
    assert M3().segment_number(name) is None
