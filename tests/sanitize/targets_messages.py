"""A broker's messages: in its log, as properties, and as events of a state log."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec

from forelog import kernel
from forelog.errors import BadEvent
from forelog.formats.messages import Messages
from forelog.formats.messages.msgpack import pack, unpack
from forelog.kernel.types import END
from forelog.state.events import EventCodec
from tests.kernel.oracle.messages import skip_properties
from tests.sanitize import seeds
from tests.sanitize.target import Finding, target, twins
from tests.sanitize.targets_kernel import bounds, column

MSGPACK = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdc\xff\xff", b"\xc6\x7f\xff\xff\xff",
    b"\xc9\x00\x00\x00\x01", b"\x81\x81\x81\x81", b"\x91\x91\x91\x91", b"\xa3qos", b"\xa6retain",
    b"\xa6expiry", b"\xcb\x7f\xf8" + bytes(6),
)  # fmt: skip


@twins(seeds.messages, tokens=(b"\x95\xcf", *MSGPACK), size_max=1500)
def broker_messages(kernel: ModuleType, buffer: Any) -> object:
    knobs, data, start, stop = bounds(buffer)
    scan = kernel.messages_scan(data, start, stop, 8, knobs[2] & 7 or 1000)
    rows = len(scan.offsets)
    columns = kernel.message_columns(data, scan.offsets, 8, 0, rows)
    flags = kernel.messages_flags(data, columns.property_starts, columns.property_ends)
    codes, topics = kernel.topic_codes(data, columns.topic_starts, columns.topic_ends)
    wanted = bytes((knobs[3] >> (i & 7)) & 1 for i in range(len(topics)))
    chosen = kernel.rows_where(codes, wanted, 0, flags, knobs[1] & 31, knobs[1] & 7)
    return (
        scan,
        columns,
        flags,
        (codes, topics, chosen),
        [kernel.message_split(data[place - 8 :]) for place in scan.offsets],
        kernel.messages_json(data, columns.property_starts, columns.property_ends),
        kernel.messages_hop(data, start, stop, knobs[3], knobs[3] << 50),
        kernel.messages_find(data, start, stop, bool(knobs[2] & 8)),
        _delivered(kernel, knobs, data, chosen, columns, flags),
    )


def _delivered(kernel: ModuleType, knobs: bytes, data: Any, rows: Any, columns: Any, flags: bytes) -> object:
    return kernel.mqtt_deliver(
        4 + (knobs[1] & 1),
        data,
        rows,
        *columns[:4],
        flags,
        knobs[2] % 3,
        1 + (knobs[3] << 8),
        b"\x01\x01",
        False,
        True,
    )


@twins(seeds.properties, tokens=MSGPACK)
def properties_of_messages(kernel: ModuleType, buffer: Any) -> object:
    """Properties by themselves, whatever they are: no checksum is in the way."""
    starts, ends = column([0]), column([len(buffer)])
    flags = kernel.messages_flags(buffer, starts, ends)
    try:
        made: object = kernel.messages_encode((b"topic", b"", bytes(buffer)), seeds.TIME_NS)
    except ValueError as error:
        made = str(error)
    try:
        return flags, made, kernel.messages_json(buffer, starts, ends)
    except ValueError as error:
        return flags, made, str(error)


@twins(lambda: [b"plant/7|21.5|" + one for one in seeds.properties()], tokens=MSGPACK)
def message_to_write(kernel: ModuleType, buffer: Any) -> object:
    topic, _, rest = bytes(buffer).partition(b"|")
    payload, _, properties = rest.partition(b"|")
    return kernel.messages_encode_many([(topic, payload, properties)] * 2, seeds.TIME_NS)


@target(seeds.properties, refusals=(ValueError,), tokens=MSGPACK)
def msgpack_value(data: bytes) -> None:
    """Properties that a message may have can be read; and what was read is written so that it is read again."""
    try:
        value = unpack(data)
    except ValueError as error:
        if skip_properties(memoryview(data), 0, len(data)) == (END, len(data)):
            raise Finding(f"a message may have them, and they can't be read: {error}") from error
        raise
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return
    try:
        packed = pack(value)
    except (ValueError, TypeError):
        return
    if repr(unpack(packed)) != repr(value):
        raise Finding(f"{value!r:.200} comes back as {unpack(packed)!r:.200}")


@target(lambda: [b"\0" + one for one in seeds.properties()], refusals=(BadEvent,), tokens=(b"\0", *MSGPACK))
def event_of_a_state_log(data: bytes) -> None:
    EventCodec().decode(data)


_NAMES = (
    b"20261115T183000.123456789Z.dat",
    b"20269999T183000.123456789Z.dat",
    b"000000001.log",
    b"00010101T000000",
)


@target(lambda: _NAMES)
def name_of_a_messages_file(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    number = Messages().segment_number(text)
    if number is not None and Messages().segment_number(Messages().segment_name(number)) != number:
        raise Finding(f"{text!r} is file {number}, whose name is {Messages().segment_name(number)!r}")
    Messages().exact_time(data)


def _batches() -> list[bytes]:
    return [seeds._sized(seeds.properties())]


@target(_batches)
def events_at_once(data: bytes) -> None:
    """What is decoded in one step is what each gives by itself."""
    codec, (starts, ends) = EventCodec(), map(column, seeds.cut(data))
    count, packed = kernel.msgpack_array(data, starts, ends, 0, len(starts), b"", 0, 1 << 16)
    batch = codec.batch(b"\0")
    assert batch is not None
    try:
        events = batch.decode(packed)
    except Exception:
        return
    each = [codec.decode(b"\0" + data[s:e]) for s, e in zip(starts[:count], ends[:count], strict=True)]
    if msgspec.msgpack.encode(events) != msgspec.msgpack.encode(each):
        raise Finding(f"at once and one by one they differ: {events!r:.200}, {each!r:.200}")
