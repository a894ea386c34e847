"""The broker beside mosquitto, NATS JetStream and Redis Streams.

All of them serve the same client process over loopback, with payloads of 100 bytes. They take turns in short
slices, and ratios are formed within each round, because machines are noisy. What each promises when it
acknowledges differs: mosquitto keeps messages in memory and writes a snapshot now and then, the nats-server of
Debian can't sync every message, Redis with `appendfsync no` hands them to the operating system as we do with `os`.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial

import uvloop

from benchmarks.broker_peers import PAYLOAD, Forelog, Mosquitto, Mqtt, Nats, Peer, Redis
from benchmarks.measure import (
    Case,
    Figure,
    Role,
    Settings,
    goal_of,
    growth,
    interleave,
    percentile,
    ratio_goal,
    require,
    row,
    row_of,
)

WINDOW = 100
PACKETS = 1000
SUBSCRIBERS = (1, 10, 100)
BACKLOG = 200_000
SLICE_SECONDS = 1.0
ROUNDS_MAX = 5
SYNC_ROUNDS_MAX = 11  # where a disk takes part, whose times differ more than all else
GOAL = 1.0


# -- clients


class Client(asyncio.Protocol):
    """A connection that says hello, and knows when it was answered."""

    def __init__(self, peer: Peer, client_id: str, durable: bool = False) -> None:
        self.peer = peer
        self._hello, self._left = peer.hello(client_id, durable)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._hello)  # type: ignore[attr-defined]

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.gone.set_result(None)

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


PINGS = {Forelog: b"\xc0\x00", Mosquitto: b"\xc0\x00", Nats: b"PING\r\n"}


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


async def close(*clients: Client) -> None:
    for client in clients:
        client.transport.close()
    await asyncio.wait_for(asyncio.gather(*(client.gone for client in clients)), 20)


# -- loads


async def publishing(peer: Peer, publishers: int, qos: int, window: int, seconds: float) -> float:
    everyone = [Publisher(peer, number, qos, window) for number in range(publishers)]
    for one in everyone:
        await connected(one)
    for one in everyone:
        one.go()
    await asyncio.sleep(0.2)
    rate = await growth(lambda: sum(one.count for one in everyone), seconds)
    for one in everyone:
        one.running = False
    await asyncio.sleep(0.1)
    await close(*everyone)
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
    rate = await growth(lambda: sum(one.count for one in everyone), seconds)
    publisher.running = False
    await asyncio.sleep(0.3)
    await close(*everyone, publisher)
    return rate


async def latencies(peer: Peer, seconds: float) -> list[float]:
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
    await close(subscriber, publisher)
    return subscriber.latencies


async def catching_up(peer: Peer, backlog: int) -> float:
    away = Subscriber(peer, 77, 1, durable=True)
    await connected(away)
    away.subscribe()
    await asyncio.sleep(0.2)
    await close(away)
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
    await close(back, publisher)
    return rate


# -- figures


@contextmanager
def running(settings: Settings, *kinds: tuple[type[Peer], str]) -> Iterator[list[Peer]]:
    """Brokers with these policies, in folders of their own, while a block lasts."""
    require("mosquitto", "nats-server", "redis-server")
    with settings.scratch() as path:
        path.chmod(0o755)  # mosquitto gives up root's rights before it looks at its folder
        peers = [kind(kind.__name__.lower(), policy, path / kind.__name__) for kind, policy in kinds]
        try:
            for peer in peers:
                peer.start()
            yield peers
        finally:
            for peer in peers:
                peer.stop()


OURS = (Forelog, "os")
UNSYNCED = (OURS, (Mosquitto, "memory"), (Nats, "unsynced"), (Redis, "no"))


def compare(
    settings: Settings,
    figure: Figure,
    what: str,
    peers: list[Peer],
    load: Callable[[Peer], Coroutine[None, None, float]],
    goals: dict[str, float] | None = None,
    *,
    rounds_max: int = ROUNDS_MAX,
) -> None:
    """A rate of ours and of each peer, in turns, and the ratios of the first to the others."""

    def case(peer: Peer) -> Case:
        role: Role = "forelog" if isinstance(peer, Forelog) else "peer"
        return Case(f"{peer.name}, {what}", peer.policy, role, lambda: uvloop.run(load(peer)))

    ours, *others = interleave(settings, [case(peer) for peer in peers], min(settings.rounds, rounds_max))
    figure.rows += [row(one, "messages/s") for one in (ours, *others)]
    for peer, one in zip(peers[1:], others, strict=True):
        wanted = (goals or {}).get(peer.name)
        figure.goals.append(ratio_goal(f"{what}, to {peer.name}", ours, one, at_least=wanted))


def _seconds(settings: Settings) -> float:
    return max(SLICE_SECONDS * settings.scale, 0.05)


def publish(settings: Settings) -> Figure:
    """Messages of QoS 0, of QoS 1 with many under way, and of QoS 1 by publishers that wait for each answer."""
    figure = Figure("broker-publish", "Messages published, nothing synced")
    seconds = _seconds(settings)
    with running(settings, *UNSYNCED) as peers:
        for publishers in (1, 16):
            who = f"{publishers} publisher{'s' if publishers > 1 else ''}"
            compare(
                settings,
                figure,
                f"QoS 0, {who}",
                peers[:3],
                partial(publishing, publishers=publishers, qos=0, window=WINDOW, seconds=seconds),
            )
            compare(
                settings,
                figure,
                f"QoS 1, {who}, {WINDOW} under way each",
                peers,
                partial(publishing, publishers=publishers, qos=1, window=WINDOW, seconds=seconds),
                {"mosquitto": GOAL},
            )
            compare(
                settings,
                figure,
                f"QoS 1, {who}, waiting",
                peers,
                partial(publishing, publishers=publishers, qos=1, window=1, seconds=seconds),
            )
    figure.notes.append(
        "Mosquitto keeps messages in memory, and Debian's nats-server 2.9 can't sync every message: both answer "
        "before anything is on a disk. Redis has appendfsync no."
    )
    return figure


def fan_out(settings: Settings) -> Figure:
    """What arrives at 1, 10 and 100 subscribers together."""
    figure = Figure("broker-fan-out", "Messages that arrive at all subscribers together")
    seconds = _seconds(settings)
    with running(settings, OURS, (Mosquitto, "memory")) as peers:
        for count in SUBSCRIBERS:
            who = f"{count} subscriber{'s' if count > 1 else ''}"
            compare(
                settings,
                figure,
                who,
                peers,
                partial(fanning_out, subscribers=count, seconds=seconds),
            )
    return figure


def latency(settings: Settings) -> Figure:
    """From publish to receive, at 1,000 messages/s."""
    figure = Figure("broker-latency", "From publish to receive, at 1,000 messages/s")
    rounds = min(settings.rounds, ROUNDS_MAX)
    with running(settings, OURS, (Mosquitto, "memory")) as peers:
        found: dict[str, list[list[float]]] = {peer.name: [] for peer in peers}
        for number in range(rounds):
            for peer in peers:
                settings.tell(f"round {number + 1} of {rounds}: {peer.name}")
                found[peer.name].append(uvloop.run(latencies(peer, _seconds(settings))))
    for part in (0.5, 0.99):
        name = f"p{part * 100:.0f}"
        ours, theirs = ([percentile(one, part) * 1e6 for one in rounds] for rounds in found.values())
        figure.rows.append(row_of(f"forelog, {name}", "µs", ours, "os"))
        figure.rows.append(row_of(f"mosquitto, {name}", "µs", theirs, "memory", "peer"))
        figure.goals.append(goal_of(f"latency, {name}, to mosquitto", ours, theirs))
    return figure


def catch_up(settings: Settings) -> Figure:
    """What a durable subscriber gets that was away."""
    backlog = settings.count(BACKLOG, least=1000)
    figure = Figure("broker-catch-up", f"A durable subscriber catches up with {backlog:,} messages")
    with running(settings, OURS, (Mosquitto, "memory")) as peers:
        compare(settings, figure, "catch up", peers, lambda peer: catching_up(peer, backlog))
    figure.notes.append("Ours reads them from the log; mosquitto has them in its memory.")
    return figure


def always(settings: Settings) -> Figure:
    """Each message synced and waited for."""
    figure = Figure("broker-always", "Messages published, each synced before its answer")
    seconds = _seconds(settings)
    with running(settings, (Forelog, "always"), (Redis, "always")) as peers:
        for publishers in (1, 16, 64):
            compare(
                settings,
                figure,
                f"{publishers} publisher{'s' if publishers > 1 else ''}, waiting",
                peers,
                partial(publishing, publishers=publishers, qos=1, window=1, seconds=seconds),
                {"redis": GOAL},
                rounds_max=SYNC_ROUNDS_MAX,
            )
    return figure
