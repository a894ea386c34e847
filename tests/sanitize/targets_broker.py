"""What clients send to a broker, and the files that tell who they are."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from forelog import kernel
from forelog.broker.access.passwords import read_users_text
from forelog.broker.access.rights import Rights, Ruleset
from forelog.broker.access.rules import Rule, Rules, covers, overlaps
from forelog.broker.mqtt.decode import connect_level, decode_all
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import Connect, PacketType, Publish
from forelog.broker.mqtt.properties import parse_properties, property_bytes
from forelog.broker.mqtt.topics import matches, parse_filter, replay_since_ns
from forelog.errors import BadAccessFile, BadPacket, TimeOutOfRange
from tests.sanitize import seeds
from tests.sanitize.target import Finding, target, twins

MQTT = (
    b"\x00\x04MQTT\x04", b"\x00\x04MQTT\x05", b"\x10", b"\x30", b"\x32", b"\x3a", b"\x82", b"\x62", b"\xe0\x00",
    b"\xc0\x00", b"\x26\x00\x01a\x00\x01b", b"\x11\xff\xff\xff\xff", b"\x21\x00\x01", b"\x23\x00\x01",
    b"\xff\xff\xff\x7f", b"\x80\x80\x01",
)  # fmt: skip


@twins(seeds.publishes, tokens=MQTT)
def mqtt_stream(kernel: ModuleType, buffer: Any) -> object:
    """What a connection has read, cut into packets and messages."""
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    version = 5 if knobs[0] & 1 else 4
    start, largest = min(knobs[1] & 3, len(data)), knobs[2] or 1 << 20
    return (
        kernel.mqtt_split(data, start, len(data), largest, knobs[3] or 4096),
        kernel.mqtt_publishes(data, start, len(data), version, largest, knobs[3] or 4096),
        kernel.mqtt_pubacks(data, start, len(data)),
    )


@twins(seeds.publishes, tokens=MQTT)
def broker_inbox(kernel: ModuleType, buffer: Any) -> object:
    """What a connection has read, as messages of the log: taken, undone, taken again."""
    knobs, data = bytes(buffer[:4]).ljust(4, b"\0"), buffer[4:]
    version, largest = 5 if knobs[0] & 1 else 4, knobs[2] or 1 << 20
    inbox, at, found = kernel.Inbox(), 0, []
    for turn in range(8):
        told = inbox.take(
            f"client {turn}",
            data,
            at,
            len(data),
            version,
            largest,
            1000 * turn,
            b"\x80",
            b"\x81\xa3qos\x01",
            knobs[3] or 4096,
        )
        found.append((told, inbox.topics(), len(inbox), inbox.byte_count, inbox.last_ns))
        if told[0] and knobs[1] >> turn & 1:
            inbox.undo()
        if told[1] == at:
            break
        at = told[1]
    drained = inbox.drain()
    scan = kernel.messages_scan(drained.data, 0, len(drained.data), 0, 10**6)
    return found, drained, scan


def _publish_parts() -> list[bytes]:
    return [bytes((knob, 7)) + b"plant/7|21.5|\x01\x01" for knob in range(16)]


@twins(_publish_parts)
def publish_to_send(kernel: ModuleType, buffer: Any) -> object:
    knobs = bytes(buffer[:2]).ljust(2, b"\0")
    topic, _, rest = bytes(buffer[2:]).partition(b"|")
    payload, _, properties = rest.partition(b"|")
    return kernel.mqtt_encode_publish(
        4 + (knobs[0] & 1),
        topic,
        payload,
        knobs[0] >> 1 & 3,
        bool(knobs[0] & 8),
        bool(knobs[0] & 16),
        knobs[1],
        properties,
    )


def _from_servers() -> list[bytes]:
    said = (
        "20020000", "2003000000", "20060000032100 0a", "9003000a00", "900400 0a 00 00", "b002000a", "b004000a0000",
        "40020001", "4004000110 00", "50020001", "62020001", "70020001", "d000", "e000", "e00281 00", "f0020000",
        "3007000161 00686930", "90050001 00 0102",
    )  # fmt: skip
    return [bytes((version, 1, 0, 0)) + bytes.fromhex(text) for text in said for version in (4, 5)]


@target(lambda: [*seeds.packets(), *_from_servers()], refusals=(BadPacket,), tokens=MQTT, size_max=1024)
def mqtt_packets(data: bytes) -> None:
    """What is decoded is encoded to packets that say the same; and the kernel sees the same messages."""
    knobs, data = data[:4].ljust(4, b"\0"), data[4:]
    version, from_server = (0, 4, 5)[knobs[0] % 3], bool(knobs[1] & 1)
    if data[:1] == b"\x10":
        connect_level(data, 2, len(data)) if len(data) > 2 else None
    packets, size = decode_all(data, version, packet_bytes_max=knobs[2] << 8 or 1 << 20, from_server=from_server)
    if size > len(data):
        raise Finding(f"{size} bytes of {len(data)} were decoded")
    for packet in packets:
        if isinstance(packet, Connect):
            version = packet.version
        again = decode_all(encode(packet, version, from_server=from_server), version, from_server=from_server)[0]
        if again != [packet]:
            raise Finding(f"{packet!r:.300} comes back as {again!r:.300}")
    if version and not from_server and knobs[0] % 3:
        _check_publishes(data[:size], version, packets)


def _check_publishes(data: bytes, version: int, packets: list[Any]) -> None:
    found = kernel.mqtt_publishes(data, 0, len(data), version, 1 << 20)
    for i in range(len(found.flags)):
        packet = packets[i]
        topic = data[found.topic_starts[i] : found.topic_ends[i]].decode()
        payload = data[found.payload_starts[i] : found.payload_ends[i]]
        if not isinstance(packet, Publish) or (packet.topic, packet.payload) != (topic, payload):
            raise Finding(f"the kernel sees {topic!r:.100} and {payload!r:.100} in {packet!r:.300}")


def _properties() -> list[bytes]:
    given: list[Any] = [
        {"session_expiry_interval": 60, "receive_maximum": 5, "user_properties": [("a", "b"), ("a", "c")]},
        {"message_expiry_interval": 9, "content_type": "x", "response_topic": "a/b", "correlation_data": b"1"},
    ]
    made = [(PacketType.CONNECT, given[0]), (PacketType.PUBLISH, given[1])]
    return [bytes((kind,)) + property_bytes(properties, kind) for kind, properties in made]


@target(_properties, refusals=(BadPacket,), tokens=MQTT)
def mqtt_properties(data: bytes) -> None:
    kinds = list(PacketType)
    kind, from_server = kinds[data[0] % len(kinds)] if data else PacketType.CONNECT, bool(data[:1] >= b"\x80")
    found = parse_properties(data[1:], kind, from_server=from_server)
    again = parse_properties(property_bytes(found, kind, from_server=from_server), kind, from_server=from_server)
    if again != found:
        raise Finding(f"{found!r:.300} come back as {again!r:.300}")


FILTERS = (
    b"sensors/+/temperature",
    b"#",
    b"$share/g/a/#",
    b"$replay/-15m/a",
    b"$replay/all/#",
    b"+/+/a",
    b"$SYS/#",
    b"a//b",
)


@target(
    lambda: [b"|".join((one, b"sensors/attic/temperature")) for one in FILTERS],
    refusals=(BadPacket, TimeOutOfRange),
)
def topics_and_filters(data: bytes) -> None:
    filter_text, _, topic = data.decode("utf-8", "replace").partition("|")
    parsed = parse_filter(filter_text)
    matched = matches(parsed.filter, topic)
    if covers(parsed.filter, topic) != matched and not any(c in topic for c in "+#") and topic:
        raise Finding(f"{parsed.filter!r} matches {topic!r}: {matched}, and covers it: {not matched}")
    overlaps(parsed.filter, topic)
    if parsed.when is not None:
        replay_since_ns(parsed.when, now_ns=seeds.TIME_NS)


_RULES = (
    b"topic read announcements/#\nuser ann\ntopic readwrite sensors/#\ntopic deny sensors/secret/#\n"
    b"pattern write devices/%c/+\n# words\n\nuser bob\ntopic x"
)


@target(
    lambda: [_RULES, b"user a\r\ntopic a/+/b\r\n", b"pattern %u/%c/#"],
    refusals=(BadAccessFile,),
    tokens=(b"user ", b"topic ", b"pattern ", b"deny ", b"read ", b"%u", b"%c", b"\n", b"#", b"+/"),
)
def rules_of_a_broker(data: bytes) -> None:
    """What a file of rules allows is what its lines say one by one: the first kind that matches decides."""
    rules = Rules.parse(_text(data, BadAccessFile), "rules")
    for user in (None, "ann", "%c", "a/b"):
        own, patterns = list(rules.of_user(user)), list(rules.of_patterns(user, "client"))
        rights = Rights(Ruleset(own), Ruleset(patterns))
        for topic in ("sensors/secret/1", "announcements", "devices/client/x", "$SYS/a", "a//b"):
            found = rights.may_read(topic), rights.may_publish(topic)
            expected = _decided(own, patterns, topic, 1), _decided(own, patterns, topic, 2)
            if found != expected:
                raise Finding(f"{user} may read and publish {topic!r}: {found}, and by the lines: {expected}")
            if found[0] and not rights.may_subscribe(topic):
                raise Finding(f"{user} may read {topic!r} and not subscribe to it")


def _decided(own: list[Rule], patterns: list[Rule], topic: str, right: int) -> bool:
    for some in (own, patterns):
        matching = [rule for rule in some if matches(rule.filter, topic)]
        if any(rule.denies for rule in matching):
            return False
        if any(rule[right] for rule in matching):
            return True
    return False


_USERS = b"ann:$scrypt$16384,8,1$c2FsdHNhbHRzYWx0c2FsdA==$" + b"aGFzaA==" * 3 + b"\n# words\n\nbob:x\n"


@target(
    lambda: [_USERS[:-6], _USERS, b"a:$scrypt$2,1,1$AAAA$" + b"A" * 24],
    refusals=(BadAccessFile,),
    tokens=(b"$scrypt$", b",", b":", b"99999999999999999999", b"$"),
)
def users_of_a_broker(data: bytes) -> None:
    read_users_text(_text(data, BadAccessFile), "users")


def _text(data: bytes, refusal: type[Exception]) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise refusal("no text") from None
