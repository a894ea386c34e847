"""The promise: a subscriber that was away misses nothing, whatever happens to it or to the broker. `make promise`

Publishers send at QoS 1 and 2. Meanwhile durable subscribers lose their connections at random moments, most of
them in the middle of a packet, publishers do now and then, and the broker is killed with -9. Whoever reconnects
sends again what wasn't acknowledged, under the same packet ids. In the end

    every message that was acknowledged to its publisher has reached every subscriber,
    in order for each publisher and topic, by their first occurrences,
    and those of QoS 2 exactly once.

The same can be done to mosquitto, to see what it loses: `python -m tests.broker.promise --mosquitto`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from forelog import kernel
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_3_1_1, MQTT_5_0, Connect, Properties, Subscribe, Subscription
from tests.broker.serving import Mosquitto, Served

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK = 2, 3, 4, 5, 6, 7, 9
TOPICS = 2
WINDOW = 200
PATIENCE_S = 30
PAYLOAD = struct.Struct(">BBI")
"""Publisher, topic, number: what a message is known by."""
FOREVER: Properties = {"session_expiry_interval": 0xFFFF_FFFF}


@dataclass
class Plan:
    messages: int = 200_000
    cuts: int = 1000
    kills: int = 20
    seed: int = 0
    publishers: int = 4
    subscribers: int = 3
    connection_s: float = 0.06
    """How long a subscriber's connection lasts, on average."""


@dataclass
class Tally:
    """What happened."""

    acknowledged: int = 0
    cuts: int = 0
    kills: int = 0
    received: int = 0
    again_once: int = 0
    """Of QoS 1, that came more than once: which they may."""
    again_never: int = 0
    """Of QoS 2, that came more than once: which they must not."""
    missing: int = 0
    out_of_order: int = 0
    sessions_lost: int = 0
    seconds: float = 0.0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def kept(self) -> bool:
        return not (self.missing or self.out_of_order or self.again_never or self.sessions_lost)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged:,} messages acknowledged, {self.received:,} deliveries, "
            f"{self.cuts:,} connections cut, {self.kills} kills, {self.seconds:.0f} s: "
            f"{self.missing:,} missing, {self.out_of_order:,} out of order, "
            f"{self.again_never:,} of QoS 2 more than once, {self.sessions_lost} sessions lost "
            f"({self.again_once:,} of QoS 1 came again, as they may)"
        )


class Peer:
    """A client: it connects whenever it isn't connected, until everything is done."""

    def __init__(self, name: str, version: int, port: int, tally: Tally, chance: random.Random) -> None:
        self.name, self.version, self.port = name, version, port
        self.tally, self.chance = tally, chance
        self.writer: asyncio.StreamWriter | None = None
        self.was_here = False
        self.cut_at = 0.0

    async def run(self) -> None:
        while not self.tally.done.is_set():
            try:
                reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            try:
                await self._talk(reader)
            except (OSError, RuntimeError, asyncio.IncompleteReadError):
                pass  # uvloop has a RuntimeError for a socket that was closed meanwhile
            finally:
                if not self.writer.is_closing():
                    self.writer.transport.abort()
                self.lost()

    async def _talk(self, reader: asyncio.StreamReader) -> None:
        properties: Properties = FOREVER if self.version == MQTT_5_0 else {}
        connect = Connect(self.name, self.version, clean_start=False, keep_alive=0, properties=properties)
        self.writer.write(encode(connect, self.version, from_server=False))
        # Most live until they are let in at least: a broker that is short of time would only ever see dead ones.
        self.cut_at = time.monotonic() + (self.life_s() if self.chance.random() < 0.05 else 1e9)
        left = b""
        while not self.tally.done.is_set():
            wait_s = min(max(self.cut_at - time.monotonic(), 0) + 0.02, 0.5)
            try:
                data = await asyncio.wait_for(reader.read(1 << 16), wait_s)
            except TimeoutError:
                if self.cut_at <= time.monotonic():
                    self._count_cut()
                    return  # between packets
                continue
            if not data:
                return
            data = left + data
            end = len(data)
            cut = self.cut_at <= time.monotonic()
            if cut:  # what came is taken up to some byte only, and the answers to it leave up to some byte only
                end = self.chance.randrange(len(data) + 1)
            answers, taken = self._take(data, end)
            if cut:
                self.writer.write(bytes(answers)[: self.chance.randrange(len(answers) + 1)])
                self.writer.close()
                self._count_cut()
                return
            if answers:
                self.writer.write(bytes(answers))
            left = data[taken:]
            await self.writer.drain()

    def _take(self, data: bytes, end: int) -> tuple[bytearray, int]:
        answers = bytearray()
        split = kernel.mqtt_split(data, 0, end, 1 << 20, 1 << 20)
        for start, body, stop in zip(split.starts, split.bodies, split.ends, strict=True):
            kind = data[start] >> 4
            if kind == CONNACK:
                self._welcome(data[body] & 1, data[body + 1])
            else:
                self.packet(kind, data[start], data[body:stop], answers)
        return answers, split.end

    def _welcome(self, present: int, reason: int) -> None:
        assert reason == 0, f"{self.name} was refused: {reason}"
        if self.was_here and not present:
            self.tally.sessions_lost += 1
            self.forget()
        self.was_here = True
        self.cut_at = min(self.cut_at, time.monotonic() + self.life_s())
        self.welcome()

    def _count_cut(self) -> None:
        if isinstance(self, Subscriber):
            self.tally.cuts += 1

    def life_s(self) -> float:
        return self.chance.expovariate(1 / 1.0)

    def lost(self) -> None:
        """The connection is no more."""

    def forget(self) -> None:
        """The broker has lost the session."""

    def welcome(self) -> None:
        """There is a connection again."""
        raise NotImplementedError

    def packet(self, kind: int, first: int, body: bytes, answers: bytearray) -> None:
        raise NotImplementedError


class Publisher(Peer):
    """Sends numbered messages, and sends them again until they are acknowledged."""

    def __init__(self, number: int, qos: int, plan: Plan, *rest: Any) -> None:
        super().__init__(f"publisher-{number}", *rest)
        self.number, self.qos, self.plan = number, qos, plan
        self.total = plan.messages // plan.publishers
        self.sent = 0
        self.acknowledged = 0
        self.under_way: dict[int, bytes] = {}
        self.released: dict[int, None] = {}
        self.connected = False
        self.last_id = 0

    def _message(self, number: int, packet_id: int) -> bytes:
        topic = f"promise/{self.number}/{number % TOPICS}".encode()
        payload = PAYLOAD.pack(self.number, number % TOPICS, number // TOPICS) + bytes(number % 40)
        return bytes(
            kernel.mqtt_encode_publish(self.version, topic, payload, self.qos, False, False, packet_id, b"")
        )

    def welcome(self) -> None:
        self.connected = True
        again = [bytes((data[0] | 8,)) + data[1:] for data in self.under_way.values()]
        again += [b"\x62\x02" + packet_id.to_bytes(2) for packet_id in self.released]
        self.writer.write(b"".join(again))

    def lost(self) -> None:
        self.connected = False

    def forget(self) -> None:
        self.acknowledged += len(self.released)
        self.released.clear()

    def go_on(self, allowed: int) -> None:
        """Send more, up to so many in all."""
        out: list[bytes] = []
        busy = len(self.under_way) + len(self.released)
        while self.connected and self.sent < min(allowed, self.total) and busy + len(out) < WINDOW:
            packet_id = self.last_id = self.last_id % 65535 + 1
            if packet_id in self.under_way or packet_id in self.released:
                continue
            data = self.under_way[packet_id] = self._message(self.sent, packet_id)
            self.sent += 1
            out.append(data)
        if out:
            with contextlib.suppress(RuntimeError):  # it is lost, and will be sent again
                self.writer.write(b"".join(out))

    def packet(self, kind: int, first: int, body: bytes, answers: bytearray) -> None:
        packet_id = int.from_bytes(body[:2])
        if kind in (PUBACK, PUBREC) and len(body) > 2:
            assert body[2] < 0x80, f"{self.name}: message {packet_id} was refused with {body[2]}"
        if kind == PUBACK and self.under_way.pop(packet_id, None) is not None:
            self.acknowledged += 1
            self.tally.acknowledged += 1
        elif kind == PUBREC:
            if self.under_way.pop(packet_id, None) is not None:
                self.released[packet_id] = None
                self.tally.acknowledged += 1
            answers += b"\x62\x02" + body[:2]
        elif kind == PUBCOMP and self.released.pop(packet_id, 0) is None:
            self.acknowledged += 1


class Subscriber(Peer):
    """Wants everything, and keeps what it got."""

    def __init__(self, number: int, qos: int, plan: Plan, *rest: Any) -> None:
        super().__init__(f"subscriber-{number}", *rest)
        self.qos, self.plan = qos, plan
        each = plan.messages // plan.publishers // TOPICS + 1
        self.seen = {(p, t): bytearray(each) for p in range(plan.publishers) for t in range(TOPICS)}
        self.latest = dict.fromkeys(self.seen, -1)
        self.unreleased: set[int] = set()
        self.got = 0
        self.subscribed = False
        self.quiet_since = time.monotonic()

    def life_s(self) -> float:
        if self.tally.cuts >= self.plan.cuts:
            return 1e9
        return self.chance.expovariate(1 / self.plan.connection_s)

    def welcome(self) -> None:
        if not self.subscribed:
            packet = Subscribe(1, [Subscription("promise/#", self.qos)])
            self.writer.write(encode(packet, self.version, from_server=False))

    def forget(self) -> None:
        self.subscribed = False
        self.unreleased.clear()

    def packet(self, kind: int, first: int, body: bytes, answers: bytearray) -> None:
        if kind == PUBLISH:
            qos = first >> 1 & 3
            at = 2 + int.from_bytes(body[:2])
            packet_id = body[at : at + 2]
            at += 2 if self.version == MQTT_3_1_1 else 3
            if qos == 1:
                self._got(body, at, 1)
                answers += b"\x40\x02" + packet_id
            else:
                if int.from_bytes(packet_id) not in self.unreleased:
                    self.unreleased.add(int.from_bytes(packet_id))
                    self._got(body, at, self.qos)
                answers += b"\x50\x02" + packet_id
        elif kind == PUBREL:
            self.unreleased.discard(int.from_bytes(body[:2]))
            answers += b"\x70\x02" + body[:2]
        elif kind == SUBACK:
            self.subscribed = True

    def _got(self, body: bytes, at: int, qos: int) -> None:
        publisher, topic, number = PAYLOAD.unpack_from(body, at)
        self.tally.received += 1
        self.quiet_since = time.monotonic()
        key = publisher, topic
        if self.seen[key][number]:
            if qos == 2:
                self.tally.again_never += 1
            else:
                self.tally.again_once += 1
            return
        self.seen[key][number] = 1
        self.got += 1
        if number < self.latest[key]:
            self.tally.out_of_order += 1
        self.latest[key] = max(self.latest[key], number)


async def _publish_all(
    plan: Plan, broker: Any, publishers: list[Publisher], subscribers: list[Subscriber]
) -> None:
    """Have everything published, no faster than connections are cut, and kill the broker now and then."""
    tally = publishers[0].tally
    say_at = time.monotonic()
    while any(publisher.acknowledged < publisher.total for publisher in publishers):
        part = min(tally.cuts / plan.cuts, 1.0) if plan.cuts else 1.0
        for publisher in publishers:
            publisher.go_on(int(publisher.total * part) + plan.messages // 1000 + 1)
        if tally.kills < plan.kills and tally.acknowledged > plan.messages * (tally.kills + 1) / (plan.kills + 1):
            tally.kills += 1
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        if time.monotonic() > say_at + 10:
            say_at = time.monotonic()
            told = f"  {tally.acknowledged:,} acknowledged, {tally.cuts:,} cuts, {tally.kills} kills"
            print(told, file=sys.stderr)
        await asyncio.sleep(0.002)
    while any(subscriber.got < plan.messages for subscriber in subscribers):
        if all(time.monotonic() > subscriber.quiet_since + PATIENCE_S for subscriber in subscribers):
            break
        await asyncio.sleep(0.01)


async def keep(plan: Plan, broker: Any) -> Tally:
    """One run against a broker that can be killed and started."""
    tally, began = Tally(), time.monotonic()
    chance = random.Random(plan.seed)

    def rest(number: int) -> tuple[int, int, Tally, random.Random]:
        version = MQTT_5_0 if number % 2 else MQTT_3_1_1
        return version, broker.port, tally, random.Random(chance.random())

    subscribers = [Subscriber(n, 1 if n == 2 else 2, plan, *rest(n)) for n in range(plan.subscribers)]
    publishers = [Publisher(n, 1 + n // 2 % 2, plan, *rest(n)) for n in range(plan.publishers)]
    tasks = [asyncio.create_task(one.run()) for one in subscribers]
    while not all(one.subscribed for one in subscribers):
        await asyncio.sleep(0.01)
    tasks += [asyncio.create_task(one.run()) for one in publishers]
    work = asyncio.create_task(_publish_all(plan, broker, publishers, subscribers))
    await asyncio.wait([work, *tasks], return_when=asyncio.FIRST_COMPLETED)  # a client that fails ends it at once
    tally.done.set()
    for publisher in publishers:
        publisher.connected = False
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    await work
    await asyncio.sleep(0.1)
    tally.seconds = time.monotonic() - began
    tally.missing = sum(plan.messages - subscriber.got for subscriber in subscribers)
    return tally


def run(plan: Plan, broker: Any) -> Tally:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(keep(plan, broker))
    return uvloop.run(keep(plan, broker))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--cuts", type=int, default=1000, help="connections of subscribers that are cut")
    parser.add_argument("--kills", type=int, default=20, help="how often the broker is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync", default="os")
    parser.add_argument("--mosquitto", action="store_true", help="against Debian's mosquitto, with persistence on")
    options = parser.parse_args()
    plan = Plan(options.messages, options.cuts, options.kills, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        where = f"{folder}/broker"
        broker: Any = Mosquitto(where) if options.mosquitto else Served(where, "--sync", options.sync)
        try:
            tally = run(plan, broker)
        finally:
            broker.close()
        said = "" if options.mosquitto else broker.said()
    print(f"{'mosquitto' if options.mosquitto else 'forelog'}: {tally}")
    if options.mosquitto:
        return 0
    if "Traceback" in said:
        print(said[-4000:])
    return 0 if tally.kept() and "Traceback" not in said else 1


if __name__ == "__main__":
    raise SystemExit(main())
