"""What a broker does in bulk: the kernel and the oracle agree on anything, and with the slow path."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forelog.broker.mqtt.decode import decode_all
from forelog.broker.mqtt.packets import MQTT_5_0, Properties, Publish
from tests.broker.mqtt.strategies import TOPICS, VERSIONS
from tests.kernel import oracle
from tests.kernel.oracle import broker
from tests.kernel.test_message_twins import PROPERTIES, VALUES, hostile
from tests.kernel.test_twins import same

ROOT = Path(__file__).parents[2]
PLACES = st.integers(-2, 40)


def column(values) -> array:
    return array("q", values)


# From messages of the log to packets


@settings(max_examples=150)
@given(st.data(), st.sampled_from([4, 5, 5, 3]), st.integers(-1, 3), st.integers(-1, 3))
def test_both_deliver_the_same_or_refuse(data, version, qos_max, first_id):
    count = data.draw(st.integers(0, 4))
    lengths = st.lists(st.integers(0, 30).flatmap(lambda a: st.tuples(st.just(a), st.integers(a, 30))))
    odd = data.draw(st.booleans())
    columns = []
    for _ in range(2):
        pairs = data.draw(st.lists(st.tuples(PLACES, PLACES), max_size=4) if odd else lengths)[:count]
        pairs += [] if odd else [(0, 1)] * (count - len(pairs))
        columns += [column(a for a, _ in pairs), column(b for _, b in pairs)]
    flags = data.draw(st.binary(min_size=count, max_size=count))
    rows = column(data.draw(st.lists(st.integers(-1 if odd else 0, max(count - 1, 0) + odd), max_size=5)))
    args = version, bytes(range(30)), rows, *columns, flags, qos_max, first_id, b"\x01\x01"
    same("mqtt_deliver", *args, data.draw(st.booleans()), data.draw(st.booleans()))


@given(VERSIONS, st.lists(st.tuples(TOPICS, st.binary(max_size=300), st.integers(0, 2)), max_size=6), st.data())
def test_what_is_delivered_is_read_back(version, messages, data):
    items = [(topic.encode(), payload, b"\x80") for topic, payload, _ in messages]
    log, starts = oracle.messages_encode_many(items, 7)
    columns = same("message_columns", log, starts, 0, 0, len(starts))
    rows = data.draw(st.lists(st.sampled_from(range(len(messages))), max_size=6)) if messages else []
    qos_max, dup, retain = data.draw(st.integers(0, 2)), data.draw(st.booleans()), data.draw(st.booleans())
    flags = bytes(qos | 0x14 for *_, qos in messages)
    wire, used = same(
        "mqtt_deliver", version, log, column(rows), *columns[:4], flags, qos_max, 65_534, b"\x01\x01", retain, dup
    )
    ids = iter([65_534, 65_535, 1, 2, 3, 4])
    properties: Properties = {"payload_format_indicator": 1} if version == MQTT_5_0 else {}
    expected = []
    for topic, payload, qos in (messages[row] for row in rows):
        low = min(qos, qos_max)
        expected.append(Publish(topic, payload, low, retain, dup and low > 0, next(ids) if low else 0, properties))
    assert decode_all(wire, version, from_server=True) == (expected, len(wire))
    assert used == sum(packet.qos > 0 for packet in expected)


def test_packet_ids_are_not_given_twice_in_one_call():
    place = column([0]), column([1]), column([1]), column([2])
    _, used = same("mqtt_deliver", 4, b"ab", column([0] * 65_535), *place, b"\x01", 1, 7, b"")
    assert used == 65_535
    assert same("mqtt_deliver", 4, b"ab", column([0] * 65_536), *place, b"\x01", 1, 7, b"") is ValueError
    assert same("mqtt_deliver", 4, b"ab", column([0] * 65_536), *place, b"\x01", 0, 7, b"")[1] == 0


def test_what_is_too_large_for_a_packet_is_refused():
    buffer = bytes(0x10000)
    for topic_end in (0xFFFF, 0x10000):
        place = column([0]), column([topic_end]), column([0]), column([0x10000])
        outcome = same("mqtt_deliver", 5, buffer, column([0]), *place, b"\0", 1, 7, b"\x01\x01")
        assert (outcome is ValueError) == (topic_end > 0xFFFF)
    large = bytes(1 << 28)
    for values, properties in (((0, 1, 0, 1 << 28), b""), ((0, 1, 0, 1), large)):
        columns = [column([value]) for value in values]
        assert same("mqtt_deliver", 5, large, column([0]), *columns, b"\0", 1, 7, properties) is ValueError


def test_columns_are_arrays_of_eight_bytes():
    small = array("i", [0, 0])
    assert same("topic_codes", b"", small, small) is TypeError
    assert same("messages_flags", b"", small, small) is TypeError
    assert same("rows_where", small, b"\1") is TypeError
    assert same("mqtt_deliver", 4, b"", small, *[column([])] * 4, b"", 1, 7, b"") is TypeError
    assert same("mqtt_deliver", 4, b"", column([]), small, *[column([])] * 3, b"\0\0", 1, 7, b"") is TypeError


# Columns of messages


@settings(max_examples=150)
@given(hostile(), st.integers(0, 10**6), st.integers(-1, 5), st.integers(-1, 5))
def test_columns_are_what_a_scan_found(data, base, first, last):
    scan = oracle.messages_scan(data, 0, len(data), base, 100)
    found = same("message_columns", data, scan.offsets, base, 0, len(scan.offsets))
    assert found[2:4] == (scan.starts, scan.ends)
    same("message_columns", data, scan.offsets, base, first, last)
    same("message_columns", data, column([scan.end, len(data), -1]), 0, 0, 2)
    same("message_columns", data, column([-1]), 0, 0, 1)
    flags = same("messages_flags", data, *found[4:])
    assert len(flags) == len(scan.offsets)
    codes, topics = same("topic_codes", data, *found[:2])
    assert [topics[code] for code in codes] == oracle.pieces(data, *found[:2])


KEYS = st.sampled_from(["qos", "retain", "from", "id", "expiry", "user", "", "qo", "retaim", "Qos"])
MARKERS = [0x80, 0x81, 0xDF, 0xDE, 0xDD, 0xC6, 0xD9, 0xC1]
ODD_VALUES = st.integers(-1, 3) | st.booleans() | VALUES


@settings(max_examples=200)
@given(st.dictionaries(KEYS, ODD_VALUES, max_size=5) | PROPERTIES)
@example({"qos": 2, "retain": True, "from": "x", "id": [1, {"qos": 1}]})
@example({"qos": 1, "expiry": 60})
@example({f"key {n}": n for n in range(20)} | {"qos": 1})
def test_flags_say_what_the_properties_do(properties):
    encoded = msgspec.msgpack.encode(properties)
    (flags,) = same("messages_flags", b"x" + encoded + b"x", column([1]), column([1 + len(encoded)]))
    qos, retain = properties.get("qos", 0), properties.get("retain", False)
    is_odd = type(qos) is not int or not 0 <= qos <= 2 or type(retain) is not bool
    is_odd = is_odd or bool(set(properties) - {"qos", "retain", "from", "id"})
    assert bool(flags & broker.FLAG_OTHER) == is_odd
    assert bool(flags & broker.FLAG_EXPIRY) == ("expiry" in properties)
    if not is_odd:
        assert flags == qos | (broker.FLAG_RETAIN if retain else 0)


@settings(max_examples=250)
@given(st.dictionaries(KEYS, ODD_VALUES, max_size=4), st.data())
def test_flags_of_anything_are_equal(properties, data):
    """Changed bytes, cut off, or followed by more; what isn't a map is never taken for a plain one."""
    encoded = bytearray(msgspec.msgpack.encode(properties))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        encoded[place] = data.draw(st.sampled_from(MARKERS) | st.integers(0, 255))
    encoded += data.draw(st.binary(max_size=3))
    stop = data.draw(st.integers(0, len(encoded)))
    for end in (stop, len(encoded)):
        (flags,) = same("messages_flags", encoded, column([0]), column([end]))
        if flags != broker.FLAG_OTHER:
            assert isinstance(msgspec_or_none(bytes(encoded[:end])), dict | None)
        assert flags & ~0x1F == 0


def msgspec_or_none(data: bytes):
    """What another reader makes of it; None where it is stricter, about texts and about keys."""
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def test_a_key_that_comes_twice_is_odd():
    for twice in (b"\x82\xa3qos\x01\xa3qos\x00", b"\x82\xa6retain\xc3\xa6retain\xc2"):
        (flags,) = same("messages_flags", twice, column([0]), column([len(twice)]))
        assert flags & broker.FLAG_OTHER


@given(st.binary(max_size=30), st.lists(st.tuples(PLACES, PLACES), max_size=5), st.integers(0, 1))
def test_places_outside_of_the_buffer_are_refused_by_both(buffer, places, shorter):
    starts, ends = column(a for a, _ in places), column(b for _, b in places[shorter:])
    same("messages_flags", buffer, starts, ends)
    outcome = same("topic_codes", buffer, starts, ends)
    fits = len(ends) == len(starts) and all(0 <= a <= b <= len(buffer) for a, b in places)
    assert (outcome is ValueError) == (not fits)


@given(st.lists(st.binary(max_size=3) | st.sampled_from([b"home/attic", b"home/cellar", b""]), max_size=60))
def test_topics_are_numbered_as_they_appear(topics):
    buffer, starts, ends = b"", column([]), column([])
    for topic in topics:
        starts.append(len(buffer))
        buffer += topic
        ends.append(len(buffer))
    codes, distinct = same("topic_codes", buffer, starts, ends)
    assert distinct == list(dict.fromkeys(topics))
    assert [distinct[code] for code in codes] == topics


@pytest.mark.parametrize("length", [2, 7, 8, 9, 33])
def test_many_topics_are_told_apart(length):
    rng = random.Random(length)
    buffer = bytes(rng.choice(b"ab") for _ in range(50_000))
    starts = column(rng.randrange(len(buffer) - 40) for _ in range(20_000))
    ends = column(start + length - rng.randrange(2) for start in starts)
    codes, distinct = same("topic_codes", buffer, starts, ends)
    assert len(set(distinct)) == len(distinct) == max(codes) + 1


@settings(max_examples=150)
@given(
    st.lists(st.integers(-1, 4), max_size=12),
    st.binary(max_size=6),
    st.integers(-1, 13),
    st.none() | st.binary(max_size=12),
    st.integers(0, 255),
    st.integers(0, 255),
)
@example([0, 1, 1, 0], b"\0\2", 1, b"\x08\x01\x08\0", 8, 0)
@example([0, 1, 1, 0], b"\0\2", 1, b"\x08\x01\x08\0", 8, 8)
def test_rows_are_chosen_by_their_topic_and_flags(codes, wanted, first, flags, mask, value):
    found = same("rows_where", column(codes), wanted, first, flags, mask, value)
    same("rows_where", column(codes), wanted)
    if found is ValueError:
        checked = codes[first:] if 0 <= first <= len(codes) else [-1]
        assert (flags is not None and len(flags) != len(codes)) or any(not 0 <= c < len(wanted) for c in checked)
    else:
        assert list(found) == [
            row
            for row in range(first, len(codes))
            if wanted[codes[row]] and (flags is None or flags[row] & mask == value)
        ]


GUARDED = """
import ctypes, mmap, random
from array import array
from forelog import kernel
from tests.kernel.test_broker_twins import HOSTILE

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
first = memoryview((ctypes.c_char * page).from_address(start)).cast("B")
rng = random.Random(7)
end = array("q", [page])
for _ in range(1500):
    data = bytearray(rng.choice(HOSTILE))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0x8F, 0xC6, 0xD9, 0xDB, 0xDD, 0xDF, 0xFF))
    for size in range(len(data) + 1):
        first[page - size :] = data[:size]
        at = array("q", [page - size])
        for version in (4, 5):
            kernel.Inbox().take(0, first, page - size, page, version, 1 << 28, 1, b"\\x80", b"\\x80")
            kernel.mqtt_deliver(version, first, array("q", [0]), at, end, at, end, b"\\x01", 1, 1, b"")
        kernel.messages_flags(first, at, end)
        kernel.topic_codes(first, array("q", [page - size, page]), array("q", [page, page]))
        try:
            kernel.message_columns(first, at, 0, 0, 1)
        except ValueError:
            pass
print("alive")
"""
HOSTILE = (
    bytes.fromhex("32 1b 0003 612f62 000a 0d 26 0001 61 0001 62 01 01 03 0000 7061796c6f6164"),
    bytes.fromhex("30 0d 000a 61626364656667 e282ac 00"),
    b"\x84\xa3qos\x01\xa6retain\xc3\xa4from\xa1c\xa2id\x92\xd9\x02ab\xc4\x01x",
    b"\x95\x01\xa1t\xc4\x01x\x81\xa3qos\x01\xce\0\0\0\0",
)


def test_nothing_beyond_the_end_is_read():
    """The bytes end where a page does that may not be touched: reading on would end the process."""
    result = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True, cwd=ROOT)
    assert result.stdout == "alive\n", result.stderr
