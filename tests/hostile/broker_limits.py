"""Each documented limit of the broker, from both sides: just within it, and just past it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forelog.broker.mqtt.packets import Connack, Connect, Disconnect, Publish, Pubrec, Suback, Will
from tests.broker.talking import Talk
from tests.hostile.attacks import attack
from tests.hostile.broker_door import frame, head, second_port, upgrade, with_websockets
from tests.hostile.site import Closed, Site, Unmet, packet

QUOTA, TOO_LARGE, RECEIVE_MAX, BAD_ALIAS, BAD_FILTER = 0x97, 0x95, 0x93, 0x94, 0x8F


def flags(*words: str) -> Callable[[Path], Sequence[str]]:
    return lambda _: words


def want(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unmet(otherwise)


def ended(talk: Talk) -> int | None:
    """The reason with which a client is disconnected; None if it isn't told."""
    talk.socket.settimeout(5)
    try:
        found = talk.end()
    except (OSError, Closed):
        return None
    return found.reason_code if isinstance(found, Disconnect | Connack) else None


def answer_to(site: Site, wrong: bytes) -> int | None:
    """What the broker says to a SUBSCRIBE: in a SUBACK, or as the reason for which it disconnects."""
    talk = site.mqtt(f"filter{time.monotonic_ns()}")
    body = b"\x00\x01\x00" + len(wrong).to_bytes(2) + wrong + b"\x00"
    talk.raw(head(0x82, len(body)) + body)
    talk.socket.settimeout(5)
    found = talk.read()
    site.drop(talk)
    if isinstance(found, Suback):
        return found.reason_codes[0]
    return found.reason_code if isinstance(found, Disconnect) else None


def limit(name: str, *words: str, **more: Any) -> Callable[[Callable[[Site], None]], Callable[[Site], None]]:
    if words:
        more["flags"] = flags(*words)
    return attack(f"broker limit {name}", limits=True, latency_ms=1000, **more)


@limit("clients", "--max-clients", "20", full=True)
def clients(site: Site) -> None:
    """15 more clients than 20 are refused with a reason, and come in once others have left."""
    some: list[Talk] = []
    refused = 0
    for number in range(35):
        talk = Talk(site.port)
        try:
            talk.socket.settimeout(5)
            talk.send(Connect(f"limit{number}"))
            refused += talk.expect(Connack).reason_code != 0
        except (OSError, Closed):
            refused += 1
        some.append(talk)
    for talk in some:
        talk.close()
    want(14 <= refused <= 18, f"{refused} of 35 clients were refused, where 20 may be there, two of the probe")
    until = time.monotonic() + 5
    while time.monotonic() < until:
        with contextlib.suppress(Unmet, OSError, Closed):
            site.drop(site.mqtt("late"))
            return
        time.sleep(0.1)
    raise Unmet("nobody comes in after others have left")


@limit("packet", "--max-packet", "100KB")
def packet_size(site: Site) -> None:
    """A packet of 100 kB is taken, one a byte larger is refused with 0x95, before it has come."""
    room = 100_000 - len(packet(Publish("size/a", bytes(99_000), 1, packet_id=1))) + 99_000
    talk = site.mqtt("within")
    want(talk.publish("size/a", bytes(room), 1) == 0, "a packet of 100 kB isn't taken")
    talk.raw(head(0x30, 100_000 - 3))  # this head and that are 100,001 bytes
    want(ended(talk) == TOO_LARGE, "a packet that is announced with a byte more isn't refused with 0x95")
    with Talk(site.port) as other:
        told = other.connect("told").properties.get("maximum_packet_size")
        want(told == 100_000, f"CONNACK says that packets may have {told} bytes")


@limit("subscriptions", "--max-subscriptions", "50", short=1)
def subscriptions(site: Site) -> None:
    """50 subscriptions are granted, the 51st gets 0x97; the same one again is none more."""
    talk = site.mqtt("fifty")
    codes = talk.subscribe(*(f"limit/{number}" for number in range(50)))
    want(set(codes) == {0}, f"of 50 subscriptions some are refused: {set(codes)}")
    codes = talk.subscribe("limit/50", "$share/g/limit/50", "$replay/-1s/limit/50")
    want(codes == [QUOTA] * 3, f"past 50 subscriptions come {codes}, not 0x97")
    want(talk.subscribe("limit/0") == [0], "one that it has already is refused, past the limit")
    talk.unsubscribe("limit/0")
    want(talk.subscribe("limit/50") == [0], "one more after one less is refused")


@limit("in-flight", "--max-inflight", "10")
def in_flight(site: Site) -> None:
    """A subscriber that acknowledges nothing gets 10 messages, and the 11th after an acknowledgement."""
    talk, publisher = site.mqtt("ten"), site.mqtt("publisher")
    talk.subscribe("flight/#", qos=1)
    for number in range(30):
        publisher.publish("flight/a", b"%d" % number, 1)
    found = [one for one in talk.drain() if isinstance(one, Publish)]
    want(len(found) == 10, f"{len(found)} messages came, where 10 may be unacknowledged")
    from forelog.broker.mqtt.packets import Puback

    talk.send(Puback(found[0].packet_id))
    want(talk.expect(Publish).payload == b"10", "after an acknowledgement the next one doesn't come")


@limit("receive-maximum")
def receive_maximum(site: Site) -> None:
    """1,000 messages of QoS 2 may be unreleased; the 1,001st ends the connection with 0x93."""
    talk = site.mqtt("receive")
    with Talk(site.port) as other:
        most = other.connect("told").properties.get("receive_maximum", 65_535)
    for number in range(1, most + 1):
        talk.send(Publish("receive/a", b"x", 2, packet_id=number))
    for number in range(1, most + 1):
        answer = talk.expect(Pubrec)
        want(answer.reason_code < 0x80, f"message {number} of {most} is refused with {answer.reason_code}")
    talk.send(Publish("receive/a", b"x", 2, packet_id=most + 1))
    code = ended(talk)
    want(code == RECEIVE_MAX, f"one more than {most} unreleased messages is answered {code}, not 0x93")


@limit("topic-aliases")
def topic_aliases(site: Site) -> None:
    """As many aliases as CONNACK says may be defined; one more ends the connection with 0x94, and so does 0."""
    with Talk(site.port) as other:
        most = other.connect("told").properties.get("topic_alias_maximum", 0)
    want(most > 0, "CONNACK allows no topic aliases")
    talk = site.mqtt("aliases")
    for number in range(1, most + 1):
        talk.publish(f"alias/{number}", b"x", 1, properties={"topic_alias": number})
    want(talk.publish("", b"x", 1, properties={"topic_alias": most}) in (0, 0x10), "an alias isn't known")
    for wrong in (most + 1, 0):
        other = site.mqtt(f"wrong{wrong}")
        other.raw(b"\x30\x0e\x00\x07alias/x\x03\x23" + wrong.to_bytes(2) + b"x")
        code = ended(other)
        want(code in (BAD_ALIAS, 0x82), f"alias {wrong} is answered {code}, not 0x94")


@limit("levels")
def levels(site: Site) -> None:
    """A filter of 200 levels is granted, one of 201 gets 0x8F; so do those with a prefix."""
    talk = site.mqtt("levels")
    want(talk.subscribe("/".join(["l"] * 200)) == [0], "a filter of 200 levels is refused")
    many = b"/".join([b"l"] * 201)
    for wrong in (many, b"/".join([b"+"] * 201), b"+/" * 200 + b"#", b"$share/g/" + many, b"$replay/all/" + many):
        code = answer_to(site, wrong)
        want(code == BAD_FILTER, f"the filter {wrong[:20]!r}... of 201 levels is answered {code}, not 0x8F")


@limit("session-expiry", "--session-expiry", "2s")
def session_expiry(site: Site) -> None:
    """A session that asks for an hour is told 2 s, is there after 1 s and not after 4 s."""
    with Talk(site.port) as talk:
        told = talk.connect("expiry", clean=False, expiry=3600).properties.get("session_expiry_interval")
    want(told == 2, f"CONNACK says that the session is kept for {told} s")
    time.sleep(0.7)
    with Talk(site.port) as talk:
        want(talk.connect("expiry", clean=False, expiry=3600).session_present, "the session ended too early")
    time.sleep(4)
    with Talk(site.port) as talk:
        present = talk.connect("expiry", clean=False, expiry=3600).session_present
    want(not present, "the session outlives its limit")


@limit("keep-alive")
def keep_alive(site: Site) -> None:
    """A client that promised a packet every 2 s is there after 2.5 s of silence, and not after 6 s."""
    talk = site.mqtt("alive", keep_alive=2)
    time.sleep(2.5)
    talk.drain()
    want(site.is_closed(talk.socket, 6), "a client that has been silent for 6 s is still there")


@limit("websocket-handshake", flags=with_websockets, ports=2)
def websocket_handshake(site: Site) -> None:
    """A handshake with a few headers is answered, one of more than 64 KiB ends the connection."""
    one = site.dial(port=second_port(site))
    site.send(one, upgrade(b"X: y\r\n" * 20) + b"\r\n")
    one.settimeout(5)
    want(one.recv(4096).startswith(b"HTTP/1.1 101"), "a handshake with 20 headers is refused")
    site.send(one, frame(packet(Connect("ws"))))
    want(one.recv(4096)[:1] == b"\x82", "a CONNECT in a frame gets no answer")
    other = site.dial(port=second_port(site))
    site.send(other, upgrade() + b"X: " + b"y" * 70_000)
    want(site.is_closed(other, 3), "a handshake of more than 64 KiB goes on")


@limit("subscribe-empty")
def subscribe_empty(site: Site) -> None:
    """A SUBSCRIBE without a filter, and one with a filter that is none, get the documented answers."""
    for wrong in (b"a/#/b", b"a+", b"#a", b"$share//a", b"$share/g", b"$replay/x"):
        code = answer_to(site, wrong)
        want(code == BAD_FILTER, f"the filter {wrong!r} is answered {code}, not 0x8F")
    other = site.mqtt("none")
    other.raw(b"\x82\x03\x00\x01\x00")
    want(ended(other) == 0x82, "a SUBSCRIBE without a filter isn't refused as a protocol error")


# -- what `--limit` sets


@limit("connect", "--limit", "connect_bytes_max=2000", "--limit", "name_bytes_max=2000", short=1)
def connect_size(site: Site) -> None:
    """A CONNECT of 2,000 bytes is taken; one that announces a byte more is closed before it has come."""
    room = 1900 + 2000 - len(packet(Connect("within", will=Will("limit/will", bytes(1900)))))
    site.drop(site.mqtt("within", will=Will("limit/will", bytes(room))))
    one = site.dial()
    site.send(one, head(0x10, 2000 - 2))  # this head and that are 2,001 bytes
    want(site.is_closed(one, 3), "a CONNECT that is announced with 2,001 bytes is waited for")


@limit("control-packets")
def control_packets(site: Site) -> None:
    """A SUBSCRIBE of nearly 256 KiB is taken; one that announces more ends the connection with 0x95."""
    talk = site.mqtt("control")
    codes = talk.subscribe(*(f"{number}/" + "c" * 60_000 for number in range(4)))
    want(len(codes) == 4, f"a SUBSCRIBE of 240 kB is answered {codes}")
    other = site.mqtt("more")
    other.raw(head(0x82, (256 << 10) + 1))
    code = ended(other)
    want(code == TOO_LARGE, f"a SUBSCRIBE of more than 256 KiB is answered {code}, not 0x95")


@limit("properties")
def properties(site: Site) -> None:
    """Properties of 60 kB are taken; those of 70 kB end the connection with a reason."""
    talk = site.mqtt("properties")
    pairs = [("k", "v" * 993)]  # a thousand bytes each
    want(
        talk.publish("p/a", b"x", 1, properties={"user_properties": pairs * 60}) in (0, 0x10), "60 kB are refused"
    )
    body = b"\x00\x03p/a" + head(0, 70_070)[1:] + (b"\x26\x00\x01k\x03\xe3" + b"v" * 995) * 70
    talk.raw(head(0x30, len(body)) + body)
    code = ended(talk)
    want(code is not None and code >= 0x80, f"properties of 70 kB are answered {code}")


@limit("keep-alive-max", "--keep-alive-max", "30")
def keep_alive_max(site: Site) -> None:
    """A client that wants 20 s keeps them; one that wants 60, or none, is told 30."""
    for wanted, expected in ((20, None), (60, 30), (0, 30)):
        with Talk(site.port) as talk:
            told = talk.connect(f"keep{wanted}", keep_alive=wanted).properties.get("server_keep_alive")
        want(told == expected, f"a keep alive of {wanted} s is answered {told}, not {expected}")


@limit("connect-seconds", "--limit", "connect_seconds=2")
def connect_seconds(site: Site) -> None:
    """A CONNECT whose last byte comes after 1 s is answered; one after 4 s finds the connection closed."""
    whole = packet(Connect("late"))
    one, other = site.dial(), site.dial()
    site.send(one, whole[:-1])
    site.send(other, whole[:-1])
    time.sleep(1)
    site.send(one, whole[-1:])
    one.settimeout(3)
    want(one.recv(100)[:1] == b"\x20", "a CONNECT that took 1 s isn't answered")
    want(site.is_closed(other, 3), "a CONNECT that takes longer than 2 s is waited for")
