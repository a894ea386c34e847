"""What a broker receives: the inbox and its oracle agree on anything, and with the slow path."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forelog import kernel
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, Puback, Publish
from forelog.kernel.types import ALL, NOT_PLAIN, PACKETS_MAX
from tests.broker.mqtt.strategies import VERSIONS, publishes
from tests.kernel import oracle
from tests.kernel.oracle import inbox as inbox_py
from tests.kernel.test_mqtt_twins import HEADS, LARGE, VERSIONED

BOTH = pytest.mark.parametrize("kernel", [kernel, oracle], ids=["kernel", "oracle"])
NO_PROPERTIES, QOS_1 = b"\x80", b"\x81\xa3qos\x01"
MAPS = st.sampled_from([NO_PROPERTIES, QOS_1, msgspec.msgpack.encode({"qos": 1, "from": "c" * 300})])
NO_MAPS = st.sampled_from([b"", b"\x81", b"\x80\x80", b"\xa0", b"\x81\x01\x01", b"\x81\xa1a"])


def taken(kernel: ModuleType, *args: Any) -> tuple[Any, ...]:
    """What a new inbox says to this, and what is in it then; or the error."""
    inbox = kernel.Inbox()
    try:
        told = inbox.take("owner", *args)
    except (ValueError, TypeError, OverflowError) as error:
        return (type(error).__name__, len(inbox), inbox.runs, inbox.last_ns)
    assert (len(inbox), inbox.byte_count > 0) == (told[0], told[0] > 0)
    return (*told, inbox.last_ns, inbox.topics(), inbox.drain())


def same(*args: Any) -> tuple[Any, ...]:
    """The same of both."""
    found = taken(kernel, *args)
    assert found == taken(oracle, *args)
    return found


def scanned(data: bytes) -> list[tuple[Any, ...]]:
    """The messages of a log, which all are right."""
    scan = oracle.messages_scan(data, 0, len(data), 0, 10_000)
    assert scan.end == len(data)
    return [
        (time, *oracle.message_split(data[start:])) for time, start in zip(scan.times, scan.offsets, strict=True)
    ]


@settings(max_examples=150)
@given(VERSIONED, st.sampled_from([LARGE, 10, 150]), st.sampled_from([4096, 0, 1, 2, -1]), st.tuples(MAPS, MAPS))
def test_what_is_taken_becomes_the_same_messages(versioned, packet_bytes_max, packets_max, maps):
    version, buffer = versioned
    given = buffer, 0, len(buffer), version, packet_bytes_max
    count, end, reason, _, last_ns, topics, found = same(*given, 1_000, *maps, packets_max)
    columns = oracle.mqtt_publishes(*given, packets_max)
    expected, acks, expected_end, expected_reason = [], b"", 0, columns.reason
    for row, packet_id in enumerate(columns.packet_ids):
        if columns.property_ends[row] > columns.property_starts[row]:
            expected_reason = NOT_PLAIN
            break
        topic = buffer[columns.topic_starts[row] : columns.topic_ends[row]].decode()
        payload = buffer[columns.payload_starts[row] : columns.payload_ends[row]]
        expected.append((1_000 + row, topic, payload, maps[packet_id > 0]))
        acks += encode(Puback(packet_id), version) if packet_id else b""
        expected_end = columns.payload_ends[row]
    assert scanned(found.data) == expected
    assert (count, end, reason) == (len(expected), expected_end, expected_reason)
    assert found.runs == ([("owner", acks)] if expected else [])
    assert (last_ns, topics) == (
        999 + count if count else 0,
        list(dict.fromkeys(one[1].encode() for one in expected)),
    )
    assert found[2:6] == oracle.message_columns(found.data, found.starts, 0, 0, count)[:4]


@settings(max_examples=150)
@given(HEADS, VERSIONS, st.integers(-1, 14), st.integers(-1, 14), st.integers(-1, 2**62), MAPS | NO_MAPS)
def test_odd_arguments_are_refused_by_both(buffer, version, start, stop, time_ns, properties):
    same(buffer, start, stop, version, LARGE, time_ns, properties, NO_PROPERTIES)
    same(buffer, 0, len(buffer), version, LARGE, time_ns, NO_PROPERTIES, properties)
    same(buffer, 0, len(buffer), 3, LARGE, 1, NO_PROPERTIES, NO_PROPERTIES)


@given(VERSIONS, st.data())
def test_plain_messages_are_all_taken(version, data):
    packets = data.draw(st.lists(publishes(version, plain=True), max_size=6))
    packets = [dataclasses.replace(packet, properties={}) for packet in packets]
    wire = b"".join(encode(packet, version, from_server=False) for packet in packets)
    count, end, reason, need, *_, found = same(wire, 0, len(wire), version, LARGE, 5, NO_PROPERTIES, QOS_1)
    assert (count, end, reason, need) == (len(packets), len(wire), ALL, 0)
    assert list(found.flags) == [packet.qos for packet in packets]
    assert [m[1:3] for m in scanned(found.data)] == [(packet.topic, packet.payload) for packet in packets]


def test_messages_that_need_more_than_appending_are_left():
    first = encode(Publish("a", b"1", 1, packet_id=9), MQTT_5_0)
    for odd in (
        Publish("a", b"2", 2, packet_id=1),
        Publish("a", b"2", retain=True),
        Publish("a", b"2", properties={"content_type": "x"}),
        Publish("$a", b"2"),
    ):
        wire = first + encode(odd, MQTT_5_0) + first
        count, end, reason, need, *_, found = same(wire, 0, len(wire), 5, LARGE, 5, NO_PROPERTIES, NO_PROPERTIES)
        assert (count, end, reason, need) == (1, len(first), NOT_PLAIN, 0)
        assert found.runs == [("owner", encode(Puback(9), MQTT_5_0))]


def test_small_packets_with_large_properties_are_taken_in_portions(monkeypatch):
    """Or 4,096 packets of five bytes could become gigabytes."""
    wire = bytes.fromhex("30 03 0001 61") * 100
    large = msgspec.msgpack.encode({"from": "c" * 1_000_000})
    count, end, reason, *_, found = taken(kernel, wire, 0, len(wire), 4, LARGE, 5, large, NO_PROPERTIES)
    assert (count, end, reason) == (16, 16 * 5, PACKETS_MAX)
    assert len(found.data) <= inbox_py.RUN_BYTES_MAX
    monkeypatch.setattr(inbox_py, "RUN_BYTES_MAX", 100)
    count, end, reason, *_ = taken(oracle, wire, 0, len(wire), 4, LARGE, 5, NO_PROPERTIES, NO_PROPERTIES)
    assert (count, end, reason) == (5, 25, PACKETS_MAX)


def test_one_message_may_be_larger_than_a_portion():
    wire = encode(Publish("big", bytes(17 << 20)), MQTT_5_0)
    given = wire * 2, 0, 2 * len(wire), 5, 1 << 28, 5, NO_PROPERTIES, NO_PROPERTIES
    count, end, reason, *_, found = taken(kernel, *given)
    assert (count, end, reason) == (1, len(wire), PACKETS_MAX)
    scan = kernel.messages_scan(found.data, 0, len(found.data), 0, 10)
    assert (list(scan.offsets), scan.ends[0] - scan.starts[0]) == ([0], 17 << 20)


@st.composite
def actions(draw):
    """Things to do with an inbox."""
    version = draw(VERSIONS)
    kind = draw(st.sampled_from(["take", "take", "take", "put", "undo", "drain"]))
    packets = draw(st.lists(publishes(version, plain=True), max_size=3))
    wire = b"".join(encode(packet, version, from_server=False) for packet in packets)
    return kind, version, wire[: draw(st.integers(0, len(wire)))], draw(st.integers(0, 50))


@settings(max_examples=150)
@given(st.lists(actions(), max_size=12))
def test_many_runs_of_many_publishers(steps):
    boxes = [one.Inbox() for one in (kernel, oracle)]
    for number, (kind, version, wire, time_ns) in enumerate(steps):
        told = []
        for inbox in boxes:
            if kind == "take":
                given = wire, 0, len(wire), version, LARGE, time_ns, NO_PROPERTIES, QOS_1
                told.append(inbox.take(number, *given))
            elif kind == "put":
                message = oracle.messages_encode(
                    (b"t", wire, msgspec.msgpack.encode({"qos": 2, "id": 9})), time_ns
                )
                told.append(inbox.put(number, message, time_ns, b"acks"))
            elif kind == "drain":
                told.append(inbox.drain())
            else:
                try:
                    told.append(inbox.undo())
                except ValueError as error:
                    told.append(str(error))
            told[-1] = told[-1], len(inbox), inbox.byte_count, inbox.runs, inbox.last_ns, inbox.topics()
        assert told[0] == told[1]


@BOTH
def test_a_run_that_is_undone_leaves_the_others(kernel):
    inbox = kernel.Inbox()
    wire = encode(Publish("a", b"1", 1, packet_id=9), 4)
    for owner in ("first", "second"):
        assert inbox.take(owner, wire, 0, len(wire), 4, LARGE, 5, NO_PROPERTIES, QOS_1)[0] == 1
    inbox.undo()
    with pytest.raises(ValueError, match="nothing to undo"):
        inbox.undo()
    assert inbox.take("third", wire, 0, len(wire), 4, LARGE, 5, NO_PROPERTIES, QOS_1)[0] == 1
    found = inbox.drain()
    assert [owner for owner, _ in found.runs] == ["first", "third"]
    assert [time for time, *_ in scanned(found.data)] == [5, 7], "no time is given twice"
    assert (len(inbox), inbox.byte_count, inbox.drain().data) == (0, 0, b"")


@BOTH
def test_what_is_no_message_is_not_put(kernel):
    inbox = kernel.Inbox()
    for wrong in (b"", b"x", oracle.messages_encode((b"t", b"p", b"\x80"), 1)[:-1]):
        with pytest.raises(ValueError, match="message"):
            inbox.put("owner", wrong, 1, b"")
    assert (len(inbox), inbox.runs) == (0, [])
