"""Many clients, and much to catch up with: `make load`, and in sizes that a test can wait for.

slow     1,000 subscribers, one of which never reads: what the others' latency is, with and without it
idle     10,000 connections that do nothing: bytes for each
behind   a durable subscriber far behind catches up while publishers go on: rates, and the broker's memory
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import struct
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from forelog import kernel
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, Connect, Subscribe, Subscription
from tests.broker.serving import Served, served

PUBLISH, PUBACK = 3, 4
NANOSECONDS = struct.Struct(">Q")
_clients: list[Client] = []
FOREVER: Any = {"session_expiry_interval": 0xFFFF_FFFF}


def message(topic: bytes, payload: bytes, qos: int = 0, packet_id: int = 0) -> bytes:
    return bytes(kernel.mqtt_encode_publish(MQTT_5_0, topic, payload, qos, False, False, packet_id, b""))


class Client(asyncio.Protocol):
    """As little as a client can be: it counts messages, acknowledges them, and notes how old they are."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.left = b""
        self.got = 0
        self.acknowledged = 0
        self.ages_ns: list[int] | None = None
        self.answers: asyncio.Queue[int] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        _clients.append(self)

    def data_received(self, data: bytes) -> None:
        data = self.left + data
        split = kernel.mqtt_split(data, 0, len(data), 1 << 24, 1 << 20)
        acks = bytearray()
        for start, body, end in zip(split.starts, split.bodies, split.ends, strict=True):
            kind = data[start] >> 4
            if kind == PUBLISH:
                self.got += 1
                at = body + 2 + int.from_bytes(data[body : body + 2])
                if data[start] & 6:
                    acks += b"\x40\x02" + data[at : at + 2]
                if self.ages_ns is not None:
                    self.ages_ns.append(time.monotonic_ns() - NANOSECONDS.unpack_from(data, end - 8)[0])
            elif kind == PUBACK:
                self.acknowledged += 1
            else:
                self.answers.put_nowait(kind)
        if acks:
            self.transport.write(bytes(acks))
        self.left = data[split.end :]


async def client(port: int, name: str, *, wants: str = "", qos: int = 0, durable: bool = False) -> Client:
    _, one = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    packet = Connect(name, MQTT_5_0, clean_start=not durable, properties=FOREVER if durable else {})
    one.transport.write(encode(packet, MQTT_5_0, from_server=False))
    await one.answers.get()
    if wants:
        one.transport.write(encode(Subscribe(1, [Subscription(wants, qos)]), MQTT_5_0, from_server=False))
        await one.answers.get()
    return one


async def until(what: Any, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it didn't come to pass"
        await asyncio.sleep(0.005)


# -- one that never reads


@dataclass
class Slow:
    without_ms: float
    with_it_ms: float
    before_bytes: int
    after_bytes: int
    sent_bytes: int


async def slow(broker: Served, subscribers: int, messages: int, payload_bytes: int) -> Slow:
    """Two halves: in the second, one more subscriber never reads; medians of both."""
    some = [await client(broker.port, f"s{n}", wants="fan/#") for n in range(subscribers)]
    publisher = await client(broker.port, "publisher")

    async def half() -> float:
        for one in some:
            one.got, one.ages_ns = 0, []
        for number in range(1, messages + 1):
            payload = bytes(payload_bytes - 8) + NANOSECONDS.pack(time.monotonic_ns())
            publisher.transport.write(message(b"fan/out", payload))
            await until(lambda count=number: all(one.got == count for one in some))
        return statistics.median(age for one in some for age in one.ages_ns or ()) / 1e6

    await half()  # once for nothing: everything is warm then
    without = await half()
    never_reads = await client(broker.port, "never-reads", wants="#")
    never_reads.transport.pause_reading()
    filler = await client(broker.port, "filler")
    before = broker.rss_bytes()
    stuffed = 0
    while stuffed < 64 << 20:  # far more than its socket and its buffer take
        filler.transport.write(b"".join(message(b"only/for/it", bytes(16 << 10)) for _ in range(64)))
        stuffed += 64 * (16 << 10)
        await asyncio.sleep(0)
    filler.transport.write(b"\xc0\x00")
    await filler.answers.get()
    with_it = await half()
    after = broker.rss_bytes()
    return Slow(without, with_it, before, after, stuffed)


# -- idle ones


async def idle(broker: Served, count: int) -> float:
    before = broker.rss_bytes()
    some = [await client(broker.port, f"idle-{n}") for n in range(count)]
    assert all(not one.transport.is_closing() for one in some)
    return (broker.rss_bytes() - before) / count


# -- one that is far behind


@dataclass
class Behind:
    published_per_s: float
    caught_up_per_s: float
    went_on_per_s: float
    before_bytes: int
    most_bytes: int


async def publish_many(publisher: Client, count: int, topic: bytes = b"far/behind", window: int = 2000) -> None:
    """At QoS 1, with a window of messages that aren't acknowledged yet."""
    goal, first = publisher.acknowledged + count, publisher.acknowledged
    chunk = 500
    for number in range(0, count, chunk):
        ids = ((first + number + n) % 60_000 + 1 for n in range(chunk))
        publisher.transport.write(b"".join(message(topic, bytes(100), 1, packet_id) for packet_id in ids))
        while publisher.acknowledged < first + number + chunk - window:
            await asyncio.sleep(0.0005)
    while publisher.acknowledged < goal:
        await asyncio.sleep(0.0005)


async def behind(broker: Served, count: int) -> Behind:
    subscriber = await client(broker.port, "far-behind", wants="far/behind", qos=1, durable=True)
    subscriber.transport.abort()
    publisher = await client(broker.port, "publisher")
    began = time.monotonic()
    await publish_many(publisher, count // 2)
    before = broker.rss_bytes()
    await publish_many(publisher, count // 2)
    published = count / (time.monotonic() - began)
    most = broker.rss_bytes()
    other = await client(broker.port, "others")
    done = asyncio.Event()
    went_on = 0

    async def go_on() -> None:
        nonlocal went_on
        while not done.is_set():
            await publish_many(other, 500, b"something/else")
            went_on += 500
            await asyncio.sleep(0.02)

    task = asyncio.create_task(go_on())
    began = time.monotonic()
    subscriber = await client(broker.port, "far-behind", durable=True)
    while subscriber.got < count:
        most = max(most, broker.rss_bytes())
        await asyncio.sleep(0.1)
        assert time.monotonic() < began + 500, f"it got {subscriber.got:,} of {count:,}"
        assert not task.done(), task.exception()
    seconds = time.monotonic() - began
    done.set()
    await task
    return Behind(published, count / seconds, went_on / seconds, before, most)


async def _whole(work: Any) -> Any:
    try:
        return await work
    finally:
        for one in _clients:
            one.transport.abort()
        _clients.clear()
        await asyncio.sleep(0.1)


def run(work: Any) -> Any:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_whole(work))
    return uvloop.run(_whole(work))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["slow", "idle", "behind"])
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=5_000_000)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for what in options.what:
        with tempfile.TemporaryDirectory() as folder, served(f"{folder}/log") as broker:
            if what == "slow":
                print(run(slow(broker, options.subscribers, 30, 1000)))
            elif what == "idle":
                print(f"{run(idle(broker, options.connections)):,.0f} bytes for each idle connection")
            else:
                print(run(behind(broker, options.messages)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
