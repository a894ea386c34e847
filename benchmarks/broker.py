"""The broker beside mosquitto, NATS JetStream and Redis Streams: `make bench-broker`.

All of them serve the same client process over loopback, with payloads of 100 bytes. They take turns in short
slices, and ratios are formed within each round, because machines are noisy. What each promises when it
acknowledges differs: mosquitto keeps messages in memory and writes a snapshot now and then, the nats-server of
Debian can't sync every message, Redis with `appendfsync no` hands them to the operating system as we do with `os`.

Figures:

    publish    messages/s, by publishers with up to 100 unacknowledged, or that wait for each acknowledgement
    fan out    messages/s that arrive at 1, 10 and 100 subscribers together
    latency    from publish to receive, at 1,000 messages/s
    catch up   messages/s to a durable subscriber that was away
    always     messages/s, each synced and waited for, by 16 and 64 publishers, beside `appendfsync always`
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from benchmarks.broker_peers import PAYLOAD, Chiplog, Mosquitto, Mqtt, Nats, Peer, Redis
from benchmarks.jobs import percentile
from benchmarks.machine import describe

WINDOW = 100
PACKETS = 1000
SUBSCRIBERS = (1, 10, 100)
BACKLOG = 200_000


# -- clients


class Client(asyncio.Protocol):
    """A connection that says hello, and knows when it was answered."""

    def __init__(self, peer: Peer, client_id: str, durable: bool = False) -> None:
        self.peer = peer
        self._hello, self._left = peer.hello(client_id, durable)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._hello)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self._left > 0:
            answer, data = data[: self._left], data[self._left :]
            self._left -= len(answer)
            if self._left == 0 and not self.ready.done():
                self.ready.set_result(None)
        if data:
            self.heard(data)

    def heard(self, data: bytes) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Sends as much as its window lets it."""

    def __init__(self, peer: Peer, number: int, qos: int, window: int) -> None:
        super().__init__(peer, f"p{number}")
        extra = {"inbox": f"p{number}".encode()} if isinstance(peer, Nats) else {}
        self._packets = [peer.publish(one, qos, **extra) for one in range(PACKETS)]
        self._qos, self._window = qos, window
        self._rest = b""
        self._next = 0
        self.count = 0
        self.running = True

    def go(self) -> None:
        self._fire(self._window)

    def heard(self, data: bytes) -> None:
        if not self._qos:
            self.count += self._window
            arrived = self._window
        elif isinstance(self.peer, Mqtt):
            data = self._rest + data
            arrived = len(data) // 4
            self._rest = data[arrived * 4 :]
            self.count += arrived
        else:
            data = self._rest + data
            whole = data.rfind(b"\r\n") + 2
            arrived = self.peer.acknowledgements(data[:whole])
            self._rest = data[whole:]
            self.count += arrived
        if arrived and self.running:
            self._fire(arrived)

    def _fire(self, count: int) -> None:
        first, self._next = self._next, (self._next + count) % PACKETS
        some = self._packets[first : first + count]
        if first + count > PACKETS:
            some += self._packets[: first + count - PACKETS]
        if not self._qos:
            some.append(PINGS[type(self.peer)])  # whose answer says that everything before it has been taken
        self.transport.write(b"".join(some))  # type: ignore[attr-defined]


PINGS = {Chiplog: b"\xc0\x00", Mosquitto: b"\xc0\x00", Nats: b"PING\r\n"}


class Subscriber(Client):
    """Counts what arrives, by bytes: all messages have the same size."""

    def __init__(self, peer: Peer, number: int, qos: int, durable: bool = False) -> None:
        super().__init__(peer, f"s{number}", durable)
        self._qos = qos
        self._size = len(peer.publish(1, qos))
        self._bytes = 0
        self._rest = b""
        self._subscribed = False
        self.latencies: list[float] | None = None
        self.count = 0

    def subscribe(self) -> None:
        self.transport.write(self.peer.subscribe(self._qos))  # type: ignore[attr-defined]

    def heard(self, data: bytes) -> None:
        if not self._subscribed:  # a SUBACK of five bytes comes first
            self._subscribed = True
            data = data[5:]
        data = self._rest + data
        whole = len(data) // self._size
        self._rest = data[whole * self._size :]
        self.count += whole
        if self._qos and whole:
            ids = [data[at * self._size + 15 : at * self._size + 17] for at in range(whole)]
            self.transport.write(b"".join([b"\x40\x02" + one for one in ids]))  # type: ignore[attr-defined]
        if self.latencies is not None:
            now = time.perf_counter()
            for at in range(whole):
                end = (at + 1) * self._size
                self.latencies.append(now - struct.unpack_from("d", data, end - 8)[0])


async def connected(client: Client) -> Client:
    await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", client.peer.port)
    await asyncio.wait_for(client.ready, 20)
    return client


# -- figures


async def publishing(peer: Peer, publishers: int, qos: int, window: int, seconds: float) -> float:
    everyone = [Publisher(peer, number, qos, window) for number in range(publishers)]
    for one in everyone:
        await connected(one)
    for one in everyone:
        one.go()
    await asyncio.sleep(0.2)
    before, began = sum(one.count for one in everyone), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(one.count for one in everyone) - before) / (time.perf_counter() - began)
    for one in everyone:
        one.running = False
    await asyncio.sleep(0.1)
    for one in everyone:
        one.transport.close()
    return rate


async def fanning_out(peer: Peer, subscribers: int, seconds: float) -> float:
    everyone = [Subscriber(peer, number, 0) for number in range(subscribers)]
    for one in everyone:
        await connected(one)
        one.subscribe()
    await asyncio.sleep(0.2)
    publisher = Publisher(peer, 0, 1, 50)
    await connected(publisher)
    publisher.go()
    await asyncio.sleep(0.2)
    before, began = sum(one.count for one in everyone), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(one.count for one in everyone) - before) / (time.perf_counter() - began)
    publisher.running = False
    await asyncio.sleep(0.3)
    for one in (*everyone, publisher):
        one.transport.close()
    return rate


async def latency(peer: Peer, seconds: float) -> list[float]:
    subscriber = Subscriber(peer, 0, 0)
    await connected(subscriber)
    subscriber.subscribe()
    publisher = Publisher(peer, 0, 1, 1)
    await connected(publisher)
    publisher.running = False
    await asyncio.sleep(0.2)
    subscriber.latencies = []
    began = time.perf_counter()
    sent = 0
    while (now := time.perf_counter()) - began < seconds:
        if now - began >= sent / 1000:
            stamped = PAYLOAD[:-8] + struct.pack("d", time.perf_counter())
            publisher.transport.write(peer.publish(sent, 1, stamped))  # type: ignore[attr-defined]
            sent += 1
        await asyncio.sleep(0.0002)
    await asyncio.sleep(0.3)
    for one in (subscriber, publisher):
        one.transport.close()
    return subscriber.latencies


async def catching_up(peer: Peer, backlog: int) -> float:
    away = Subscriber(peer, 77, 1, durable=True)
    await connected(away)
    away.subscribe()
    await asyncio.sleep(0.2)
    away.transport.close()
    await asyncio.sleep(0.2)
    publisher = Publisher(peer, 0, 1, WINDOW)
    await connected(publisher)
    publisher.go()
    while publisher.count < backlog:
        await asyncio.sleep(0.01)
    publisher.running = False
    await asyncio.sleep(0.3)
    back = Subscriber(peer, 77, 1, durable=True)
    back._subscribed = True
    began = time.perf_counter()
    await connected(back)
    deadline = began + 60
    while back.count < backlog and time.perf_counter() < deadline:
        await asyncio.sleep(0.001)
    rate = back.count / (time.perf_counter() - began)
    for one in (back, publisher):
        one.transport.close()
    return rate


# -- a run


class Run:
    """All of it, told as it goes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[dict[str, object]] = []

    def compare(self, what: str, ours: Peer, peers: list[Peer], measure, goal: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
        """A rate of ours and of each peer, in turns."""
        rates: dict[str, list[float]] = {peer.name: [] for peer in (ours, *peers)}
        for _ in range(self.options.rounds):
            for peer in (ours, *peers):
                rates[peer.name].append(uvloop.run(measure(peer)))
        row: dict[str, object] = {"what": what, ours.name: statistics.median(rates[ours.name])}
        line = f"{what:<44} {statistics.median(rates[ours.name]):>10,.0f}/s"
        for peer in peers:
            ratios = [a / max(b, 1e-9) for a, b in zip(rates[ours.name], rates[peer.name], strict=True)]
            ratio, wanted = statistics.median(ratios), goal.get(peer.name)
            row[peer.name] = statistics.median(rates[peer.name])
            row[f"to {peer.name}"] = ratio
            verdict = (
                "" if wanted is None else f", goal {wanted}: {'reached' if ratio >= wanted else 'NOT reached'}"
            )
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            line += f"   {peer.name} {row[peer.name]:>10,.0f}/s: {ratio:.2f} ({spread}{verdict})"
        self.rows.append(row)
        say(line)

    def run(self, folder: Path) -> None:
        seconds = self.options.seconds
        ours, mosquitto = Chiplog("chiplog", "os", folder / "o"), Mosquitto("mosquitto", "memory", folder / "m")
        nats, redis = Nats("nats", "unsynced", folder / "n"), Redis("redis", "no", folder / "r")
        with running(ours, mosquitto, nats, redis):
            for publishers in (1, 16):
                self.compare(
                    f"QoS 0, {publishers} publishers",
                    ours,
                    [mosquitto, nats],
                    lambda peer, n=publishers: publishing(peer, n, 0, WINDOW, seconds),
                    {},
                )
                self.compare(
                    f"QoS 1, {publishers} publishers, {WINDOW} under way each",
                    ours,
                    [mosquitto, nats, redis],
                    lambda peer, n=publishers: publishing(peer, n, 1, WINDOW, seconds),
                    {"mosquitto": 1.0},
                )
                self.compare(
                    f"QoS 1, {publishers} publishers, each waiting",
                    ours,
                    [mosquitto, nats, redis],
                    lambda peer, n=publishers: publishing(peer, n, 1, 1, seconds),
                    {},
                )
            for subscribers in SUBSCRIBERS:
                self.compare(
                    f"fan out to {subscribers} subscribers",
                    ours,
                    [mosquitto],
                    lambda peer, n=subscribers: fanning_out(peer, n, seconds),
                    {},
                )
            self.latencies(ours, mosquitto)
            self.compare(
                f"catch up with {self.options.backlog:,} messages",
                ours,
                [mosquitto],
                lambda peer: catching_up(peer, self.options.backlog),
                {},
            )
        ours, redis = Chiplog("chiplog", "always", folder / "oa"), Redis("redis", "always", folder / "ra")
        with running(ours, redis):
            for publishers in (16, 64):
                self.compare(
                    f"always, {publishers} publishers, each waiting",
                    ours,
                    [redis],
                    lambda peer, n=publishers: publishing(peer, n, 1, 1, seconds),
                    {"redis": 1.0},
                )

    def latencies(self, *peers: Peer) -> None:
        row: dict[str, object] = {"what": "latency at 1,000/s"}
        for peer in peers:
            found = uvloop.run(latency(peer, self.options.seconds * 3))
            row[peer.name] = {"p50 µs": percentile(found, 0.5) * 1e6, "p99 µs": percentile(found, 0.99) * 1e6}
            say(
                f"latency at 1,000/s, {peer.name}: p50 {percentile(found, 0.5) * 1e6:,.0f} µs, "
                f"p99 {percentile(found, 0.99) * 1e6:,.0f} µs"
            )
        self.rows.append(row)


class running:  # noqa: N801 - read as a word
    """Brokers, while a block lasts."""

    def __init__(self, *peers: Peer) -> None:
        self._peers = peers

    def __enter__(self) -> None:
        for peer in self._peers:
            peer.start()

    def __exit__(self, *_: object) -> None:
        for peer in self._peers:
            peer.stop()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a slice")
    parser.add_argument("--backlog", type=int, default=BACKLOG, help="messages to catch up with")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="for the logs")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    missing = [name for name in ("mosquitto", "nats-server", "redis-server") if shutil.which(name) is None]
    if missing:
        say(f"not installed: {', '.join(missing)}. On Debian, apt-get install {' '.join(missing)}")
        return 2
    say("; ".join(f"{name}: {value}" for name, value in describe(options.directory).items()))
    folder = Path(tempfile.mkdtemp(prefix="bench-broker-", dir=options.directory))
    folder.chmod(0o755)
    try:
        run = Run(options)
        run.run(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(run.rows, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
