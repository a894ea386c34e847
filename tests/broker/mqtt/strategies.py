"""Packets of every kind, for either version, and bytes that were packets once."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from forelog.broker.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5_0,
    Auth,
    Connack,
    Connect,
    Disconnect,
    PacketType,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from forelog.broker.mqtt.properties import PROPERTIES
from forelog.broker.mqtt.reasons import ReasonCode, allowed_reasons

VERSIONS = st.sampled_from([MQTT_3_1_1, MQTT_5_0])
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
LEVELS = st.text(st.characters(exclude_characters="\0/+#$", exclude_categories=["Cs"]), max_size=4)
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
NAMES = TOPICS | TOPICS.map(lambda topic: "$SYS/" + topic)
FILTERS = (
    st.lists(LEVELS | st.just("+"), max_size=4).flatmap(
        lambda levels: st.sampled_from([[*levels, "#"], levels or ["+"]])
    )
).map("/".join).filter(bool)  # fmt: skip
IDS = st.integers(1, 0xFFFF)

_VALUES = {
    "byte": st.integers(0, 255),
    "two": st.integers(0, 0xFFFF),
    "four": st.integers(0, 0xFFFF_FFFF),
    "number": st.integers(0, 0x0FFF_FFFF),
    "text": TEXTS,
    "bytes": st.binary(max_size=12),
    "pair": st.tuples(TEXTS, TEXTS),
}


@st.composite
def properties(draw: st.DrawFn, version: int, packet: PacketType, *, from_server: bool, leave: tuple = ()):
    """Any that the packet may have; empty in MQTT 3.1.1."""
    if version == MQTT_3_1_1:
        return {}
    unsent = {"session_expiry_interval"} if from_server else {"server_reference", "subscription_identifiers"}
    if packet is not PacketType.DISCONNECT:
        unsent = {"subscription_identifiers"} if packet is PacketType.PUBLISH and not from_server else set()
    found = {}
    for one in draw(st.permutations(list(PROPERTIES.values()))):
        if packet not in one.packets or one.name in unsent or one.name in leave or not draw(st.booleans()):
            continue
        values: Any = _VALUES[one.kind]
        if one.kind in ("byte", "two", "four", "number"):
            values = (
                st.integers(one.least, 1) if one.most == 1 else values.filter(lambda n, one=one: n >= one.least)
            )
        if one.name == "response_topic":
            values = TOPICS
        if one.name in ("user_properties", "subscription_identifiers"):
            once = packet is PacketType.SUBSCRIBE and one.name == "subscription_identifiers"
            values = st.lists(values, min_size=1, max_size=1 if once else 3)
        found[one.name] = draw(values)
    if "authentication_method" not in found:
        found.pop("authentication_data", None)
        if packet is PacketType.AUTH:
            found["authentication_method"] = draw(TEXTS)
    return found


@st.composite
def publishes(draw: st.DrawFn, version: int, *, from_server: bool = False, plain: bool = False) -> Publish:
    """Messages; plain ones are those that the kernel takes in bulk."""
    qos = draw(st.integers(0, 1 if plain else 2))
    leave = ("topic_alias",) if plain else ()
    given = draw(properties(version, PacketType.PUBLISH, from_server=from_server, leave=leave))
    topic = draw(TOPICS if plain else NAMES)
    if "topic_alias" in given and draw(st.booleans()):
        topic = ""
    retain = False if plain else draw(st.booleans())
    dup = bool(qos) and draw(st.booleans())
    payload = draw(st.binary(max_size=40) | st.sampled_from([b"x" * 127, b"y" * 128, b"z" * 20_000]))
    return Publish(topic, payload, qos, retain, dup, draw(IDS) if qos else 0, given)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    will = None
    if draw(st.booleans()):
        given = draw(properties(version, PacketType.WILL, from_server=False))
        will = Will(draw(NAMES), draw(st.binary(max_size=9)), draw(st.integers(0, 2)), draw(st.booleans()), given)
    user_name = draw(st.none() | TEXTS)
    password = draw(st.none() | st.binary(max_size=9))
    if version == MQTT_3_1_1 and user_name is None:
        password = None
    clean = draw(st.booleans())
    client_id = draw(TEXTS.filter(bool)) if version == MQTT_3_1_1 and not clean else draw(TEXTS)
    given = draw(properties(version, PacketType.CONNECT, from_server=False))
    return Connect(client_id, version, clean, draw(st.integers(0, 0xFFFF)), will, user_name, password, given)


@st.composite
def from_clients(draw: st.DrawFn, version: int):
    """Any packet that a client sends."""
    kind = draw(st.sampled_from(["connect", "publish", "answer", "subscribe", "unsubscribe", "other"]))
    if kind == "connect":
        return draw(connects(version))
    if kind == "publish":
        return draw(publishes(version))
    if kind == "answer":
        return draw(answers(version, from_server=False))
    if kind == "subscribe":
        given = draw(properties(version, PacketType.SUBSCRIBE, from_server=False))
        return Subscribe(draw(IDS), draw(st.lists(_subscriptions(version), min_size=1, max_size=4)), given)
    if kind == "unsubscribe":
        given = draw(properties(version, PacketType.UNSUBSCRIBE, from_server=False))
        return Unsubscribe(draw(IDS), draw(st.lists(FILTERS, min_size=1, max_size=4)), given)
    return draw(st.just(Pingreq()) | _ends(version, from_server=False))


@st.composite
def from_servers(draw: st.DrawFn, version: int):
    """Any packet that a server sends."""
    kind = draw(st.sampled_from(["connack", "publish", "answer", "suback", "unsuback", "other"]))
    if kind == "connack":
        code = draw(_codes(version, PacketType.CONNACK))
        present = not code and draw(st.booleans())
        return Connack(present, code, draw(properties(version, PacketType.CONNACK, from_server=True)))
    if kind == "publish":
        return draw(publishes(version, from_server=True))
    if kind == "answer":
        return draw(answers(version, from_server=True))
    if kind == "suback":
        codes = draw(st.lists(_codes(version, PacketType.SUBACK), min_size=1, max_size=4))
        return Suback(draw(IDS), codes, draw(properties(version, PacketType.SUBACK, from_server=True)))
    if kind == "unsuback":
        codes = draw(st.lists(_codes(version, PacketType.UNSUBACK), min_size=1, max_size=4))
        given = () if version == MQTT_3_1_1 else codes
        return Unsuback(draw(IDS), given, draw(properties(version, PacketType.UNSUBACK, from_server=True)))
    return draw(st.just(Pingresp()) | _ends(version, from_server=True))


def _codes(version: int, kind: PacketType):
    codes = sorted(allowed_reasons(kind, from_server=True))
    if version == MQTT_3_1_1:
        codes = [0, 0x84, 0x85, 0x88, 0x86, 0x87] if kind is PacketType.CONNACK else [0, 1, 2, 0x80]
    return st.sampled_from(codes).map(ReasonCode)


@st.composite
def answers(draw: st.DrawFn, version: int, *, from_server: bool):
    kinds: list[type[Puback | Pubrec | Pubrel | Pubcomp]] = [Puback, Pubrec, Pubrel, Pubcomp]
    make = draw(st.sampled_from(kinds))
    codes = sorted(allowed_reasons(make.type, from_server=from_server)) if version == MQTT_5_0 else [0]
    given = draw(properties(version, make.type, from_server=from_server))
    return make(draw(IDS), ReasonCode(draw(st.sampled_from(codes))), given)


@st.composite
def _ends(draw: st.DrawFn, version: int, *, from_server: bool):
    if version == MQTT_3_1_1:
        return Disconnect()
    kinds: list[type[Disconnect | Auth]] = [Disconnect, Auth]
    make = draw(st.sampled_from(kinds))
    code = draw(st.sampled_from(sorted(allowed_reasons(make.type, from_server=from_server))))
    return make(ReasonCode(code), draw(properties(version, make.type, from_server=from_server)))


@st.composite
def _subscriptions(draw: st.DrawFn, version: int) -> Subscription:
    text, no_local = draw(FILTERS), draw(st.booleans())
    prefix = draw(st.sampled_from(["", "", "$share/group/", "$replay/-15m/", "$replay/2026-11-15T18:00:00Z/"]))
    if version == MQTT_3_1_1:
        return Subscription(prefix + text, draw(st.integers(0, 2)))
    no_local = no_local and not prefix.startswith("$share")
    flags = draw(st.booleans()), draw(st.integers(0, 2))
    return Subscription(prefix + text, draw(st.integers(0, 2)), no_local, *flags)


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """The same bytes with some changed, cut out or put in."""
    out = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(out)))
        action = draw(st.sampled_from(["flip", "set", "cut", "insert"]))
        if action == "flip" and place < len(out):
            out[place] ^= 1 << draw(st.integers(0, 7))
        elif action == "set" and place < len(out):
            out[place] = draw(st.sampled_from([0, 1, 0x23, 0x24, 0x26, 0x2B, 0x7F, 0x80, 0xC0, 0xED, 0xFF]))
        elif action == "cut":
            del out[place : place + draw(st.integers(1, 20))]
        elif action == "insert":
            out[place:place] = draw(st.binary(max_size=8))
    return bytes(out)
