"""The kernel and the oracle read and write messages alike, on good, random and hostile bytes."""

from __future__ import annotations

import json
import math
from array import array

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forelog.errors import TimeOutOfRange
from forelog.kernel.types import BAD_CRC, BAD_LENGTH, BAD_TIME, END, LIMIT, TRUNCATED
from tests.kernel import oracle
from tests.kernel.oracle import messages
from tests.kernel.test_twins import same

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
    | st.builds(msgspec.msgpack.Ext, st.integers(0, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
PROPERTIES = st.dictionaries(st.text(max_size=40), VALUES, max_size=18)
TOPICS = st.text(max_size=50) | st.sampled_from(["", "a" * 31, "b" * 32, "c" * 255, "d" * 256, "é" * 3000])
PAYLOADS = st.binary(max_size=300) | st.sampled_from([b"x" * 255, b"y" * 256, b"z" * 65_536, b"\x95" * 60])
ITEMS = st.tuples(TOPICS.map(str.encode), PAYLOADS, PROPERTIES.map(msgspec.msgpack.encode))
TIMES = st.integers(0, 2**62 - 100)


def encoded(items, time_ns: int = 1_000) -> bytes:
    return oracle.messages_encode_many(items, time_ns)[0]


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Messages with bytes changed, cut out, put in, heads that claim much, and right checksums over nonsense."""
    data = bytearray(encoded(draw(st.lists(ITEMS, max_size=5)), draw(TIMES)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(["flip", "cut", "insert", "head", "sealed"]))
        if action == "flip" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del data[place : place + draw(st.integers(1, 20))]
        elif action == "insert":
            data[place:place] = draw(st.binary(max_size=20))
        elif action == "head":
            length = draw(st.sampled_from([0, 9, 10**6, 2**32 - 1]))
            data[place:place] = b"\x95\x01\xa1t\xc6" + length.to_bytes(4, "big") + draw(st.binary(max_size=9))
        else:
            data[place:place] = sealed(b"\x05", draw(st.binary(max_size=6)), draw(st.binary(max_size=30)))
    return bytes(data)


def sealed(time: bytes, topic: bytes, properties: bytes) -> bytes:
    """A message with any properties in it, and a right checksum in the smallest form that holds it."""
    body = time + bytes([0xA0 | len(topic)]) + topic + b"\xc4\x01x" + properties
    return b"\x95" + body + msgspec.msgpack.encode(oracle.crc32c(body))


@given(st.lists(ITEMS, max_size=6), TIMES)
def test_messages_are_encoded_equally_and_any_msgpack_reader_reads_them(items, time_ns):
    data, starts = same("messages_encode_many", items, time_ns)
    for row, (item, start) in enumerate(zip(items, starts, strict=True)):
        frame = same("messages_encode", item, time_ns + row)
        assert data[start : start + len(frame)] == frame
        time, topic, payload, properties, crc = msgspec.msgpack.decode(frame)
        assert (time, topic.encode(), payload) == (time_ns + row, *item[:2])
        assert msgspec.msgpack.encode(properties) == item[2]
        assert crc == oracle.crc32c(frame[1:-5])
        assert same("message_split", frame) == (topic, payload, item[2])


@given(hostile(), st.integers(0, 50), st.integers(0, 4), st.integers(0, 10**6))
@settings(max_examples=200)
def test_scans_of_anything_are_equal(data, start, limit, base):
    start = min(start, len(data))
    scan = same("messages_scan", data, start, len(data), base, limit)
    assert len(scan.offsets) <= limit
    if scan.reason == TRUNCATED:
        assert scan.need > len(data) - scan.end
    columns = same("message_columns", data, scan.offsets, base, 0, len(scan.offsets))
    same("messages_json", data, columns[4], columns[5])
    same("message_columns", data, array("q", [start, len(data) + 1]), 0, 0, 2)


@given(hostile(), st.integers(0, 50), st.integers(0, 300), st.integers(0, 2**62), st.booleans())
@settings(max_examples=200)
def test_hops_and_finds_in_anything_are_equal(data, start, offset_min, time_min, final):
    start = min(start, len(data))
    same("messages_hop", data, start, len(data), offset_min, time_min)
    found = same("messages_find", data, start, len(data), final)
    if found >= 0:
        assert len(oracle.messages_scan(data, found, len(data), 0, 1).offsets) == 1


@given(st.binary(max_size=400))
def test_random_bytes_are_read_equally(data):
    same("messages_scan", data, 0, len(data), 0, 100)
    same("messages_hop", b"\x95\x01\xa1t\xc4\x01x" + data, 0, len(data) + 7, 1, 0)
    same("messages_find", data, 0, len(data), True)
    same("messages_json", b"\x81\xa1k" + data, array("q", [0]), array("q", [3 + len(data)]))
    same("message_split", b"\x95\x01\xa1t\xc4\x01x" + data)


@given(st.binary(max_size=40), st.binary(max_size=40))
@example(b"\xed\xa0\x80", b"")  # a surrogate
@example(b"\xc0\x80", b"")  # longer than needed
@example(b"\xf4\x90\x80\x80", b"")  # past the last character
@example("é€😀".encode(), b"")
def test_a_topic_is_utf8_by_the_same_measure(topic, rest):
    body = b"\x07\xd9" + bytes([len(topic)]) + topic + b"\xc4\x00\x80"
    frame = b"\x95" + body + msgspec.msgpack.encode(oracle.crc32c(body))
    scan = same("messages_scan", frame, 0, len(frame), 0, 1)
    try:
        topic.decode()
    except UnicodeDecodeError:
        assert scan.reason == messages.BAD_TOPIC
    else:
        assert list(scan.times) == [7]
    same("messages_encode", (topic, rest, b"\x80"), 1)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (sealed(b"\x05", b"t", b"\x80"), END),
        (sealed(b"\xcc\x05", b"t", b"\x81\xa1k\x01"), END),
        (sealed(b"\xcd\x00\x05", b"", b"\xde\x00\x01\xa1k\xc0"), END),
        (sealed(b"\xce\x00\x00\x00\x05", b"t", b"\xdf\x00\x00\x00\x00"), END),
        (sealed(b"\xcf" + (2**62).to_bytes(8, "big"), b"t", b"\x80"), BAD_TIME),
        (sealed(b"\xd0\x05", b"t", b"\x80"), BAD_TIME),
        (b"\xdc\x00\x05" + sealed(b"\x05", b"t", b"\x80")[1:], BAD_TIME),
        (sealed(b"\x05", b"t", b"\x81\x01\x01"), messages.BAD_PROPERTIES),
        (sealed(b"\x05", b"t", b"\x90"), messages.BAD_PROPERTIES),
        (sealed(b"\x05", b"t", b"\x81\xa1k\xc1"), messages.BAD_PROPERTIES),
        (sealed(b"\x05", b"t", b"\x81\xa1k" + b"\x91" * 15 + b"\x01"), END),
        (sealed(b"\x05", b"t", b"\x81\xa1k" + b"\x91" * 16 + b"\x01"), messages.BAD_PROPERTIES),
        (sealed(b"\x05", b"t", b"\xdf\xff\xff\xff\xff"), messages.BAD_PROPERTIES),
        (sealed(b"\x05", b"t", b"\x81\xa1k\xc6\x00\x10\x00\x00" + bytes(1 << 20)), messages.BAD_PROPERTIES),
        (b"\x95\x05\xc4\x01t\xc4\x01x\x80\x00", BAD_LENGTH),
        (b"\x95\x05\xa1t\xa1x\x80\x00", BAD_LENGTH),
        (b"\x95\x05\xa1t\xc6\xff\xff\xff\xff", BAD_LENGTH),
        (b"\x95\x05\xdb\x00\x01\x00\x00", BAD_LENGTH),
        (b"\x95\x05\xa1t\xc4\x01x\x80\xcf" + bytes(7) + b"\x01", BAD_CRC),
        (b"\x95\x05\xa1t\xc4\x01x\x80\xcf\x01" + bytes(7), BAD_LENGTH),
        (b"\x95\x05\xa1t\xc4\x01x\x80\x00", BAD_CRC),
    ],
)
def test_what_is_read_and_what_is_refused(frame, reason):
    scan = same("messages_scan", frame, 0, len(frame), 0, 10)
    assert scan.reason == reason, frame[:40].hex(" ")


def test_a_message_that_is_cut_anywhere_is_truncated_and_says_that_more_is_needed():
    frame = encoded([(b"topic", b"payload", msgspec.msgpack.encode({"a": [1, {"b": b"c"}], "d": 1.5}))])
    for size in range(1, len(frame)):
        scan = same("messages_scan", frame, 0, size, 0, 1)
        assert (scan.reason, len(frame) >= scan.need > size) == (TRUNCATED, True)
    assert same("messages_scan", frame + frame, 0, len(frame) * 2, 0, 1).reason == LIMIT


@given(PROPERTIES)
def test_properties_as_json_are_what_another_reader_makes_of_them(properties):
    data = msgspec.msgpack.encode(properties)
    places, text = same("messages_json", data, array("q", [0]), array("q", [len(data)]))
    assert list(places) == [0, len(text)]
    assert json.loads(text) == _json(properties)


def _json(value):
    """What JSON has for a value."""
    import base64

    if isinstance(value, dict):
        return {key: _json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner) for inner in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "data": base64.b64encode(value.data).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x81\xa1k\xca\x3f\xc0\x00\x00", '{"k":1.5}'),
        (b"\x81\xa1k\xd1\xff\xfe", '{"k":-2}'),
        (b"\x81\xa1k\xd0\x80", '{"k":-128}'),
        (b"\x81\xa1k\xd2\x80\x00\x00\x00", '{"k":-2147483648}'),
        (b"\x81\xa1k\xd3" + b"\xff" * 8, '{"k":-1}'),
        (b"\x81\xa1k\xcf" + b"\xff" * 8, '{"k":18446744073709551615}'),
        (b"\x81\xa1k\x82\x01\xc0\x91\x02\xc3", '{"k":{"1":null,"[2]":true}}'),
        (b"\x81\xa1k\x81\x81\x01\x02\xc0", '{"k":{"{\\"1\\":2}":null}}'),
        (b"\x81\xa1k\x81\x91\x81\x90\x02\xc0", '{"k":{"[{\\"kA==\\":2}]":null}}'),
        (b"\x81\xa1k\xd4\x05\xff", '{"k":{"ext":5,"data":"/w=="}}'),
        (b"\x81\xa1k\xa3a\xffb", '{"k":"a\ufffdb"}'),
        (b'\x81\xa1"\xa3\x01\n\x7f', '{"\\"":"\\u0001\\n\x7f"}'),
    ],
)
def test_what_json_has_not_got_has_a_way_to_be_said(data, text):
    assert same("messages_json", data, array("q", [0]), array("q", [len(data)]))[1].decode() == text


def test_keys_inside_of_keys_do_not_make_json_grow_without_bound():
    quotes = b"\xa7" + b'"' * 7
    data = b"\x81\xa1k" + b"\x81" * 14 + quotes + b"\x01" * 14
    _, text = same("messages_json", data, array("q", [0]), array("q", [len(data)]))
    assert len(text) < 20 * len(data), f"{len(data)} bytes become {len(text)}"


@pytest.mark.parametrize(
    "item",
    [
        (b"t", b"p"),
        [b"t", b"p", b"\x80"],
        (b"t", "p", b"\x80"),
        (b"t" * 65_536, b"p", b"\x80"),
        (b"\xff", b"p", b"\x80"),
        (b"t", b"p", b""),
        (b"t", b"p", b"\x80\x80"),
        (b"t", b"p", b"\x81\xa1k"),
    ],
)
def test_what_could_not_be_read_is_not_written(item):
    assert isinstance(same("messages_encode", item, 1), type)
    assert isinstance(same("messages_encode_many", [item], 1), type)


@pytest.mark.parametrize("time_ns", [-1, 2**62, 2**63 - 1])
def test_a_time_that_cannot_be_read_is_not_written(time_ns):
    assert same("messages_encode", (b"t", b"p", b"\x80"), time_ns) is TimeOutOfRange
    assert same("messages_encode_many", [(b"t", b"p", b"\x80")], time_ns) is TimeOutOfRange


def test_a_search_in_hostile_bytes_ends_early():
    bomb = b"\x95\x01\xa1t\xc4\x00\xde\x80\x00" * 3000 + b"\xa0" * 70_000
    same("messages_find", bomb, 0, len(bomb), True)
