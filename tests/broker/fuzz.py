"""Packets that no client would send, by the million, at a real broker: `make fuzz`.

Valid packets that were bent, random bytes, packets that end too early, cut into reads at any byte, and floods of
CONNECTs, over many connections. The broker must answer or close, never hang, never grow; and a client that behaves
gets every one of its messages meanwhile, in order. Every seed gives the same packets.
"""

from __future__ import annotations

import argparse
import random
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from forelog.errors import BadPacket
from tests.broker.serving import served
from tests.broker.talking import Talk

PACKETS_PER_CONNECTION = 40  # most are closed before that
GROWTH_BYTES_MAX = 96 << 20
TOPICS = ("fuzz/a", "fuzz/b/c", "fuzz/" + "x" * 200, "fuzz/\u00fc", "fuzz//", "$SYS/x")
FILTERS = ("fuzz/#", "fuzz/+/c", "+/a", "$share/g/fuzz/#", "$replay/-1s/fuzz/a", "fuzz/a")


def some_properties(chance: random.Random) -> Any:
    every = {
        "payload_format_indicator": chance.randrange(2),
        "message_expiry_interval": chance.randrange(5),
        "content_type": "text/plain",
        "response_topic": "fuzz/a",
        "correlation_data": chance.randbytes(9),
        "user_properties": [("k", "v")] * chance.randrange(1, 4),
        "topic_alias": chance.randrange(1, 70),
    }
    return {key: every[key] for key in every if chance.random() < 0.2}


def packet(chance: random.Random) -> Packet:
    """A valid one."""
    packet_id, kind = chance.randrange(1, 12), chance.randrange(9)
    if kind < 3:
        qos = chance.randrange(3)
        payload = chance.randbytes(chance.choice((0, 1, 50, 300)))
        retain, dup = chance.random() < 0.2, qos > 0 and chance.random() < 0.3
        topic = chance.choice(TOPICS)
        return Publish(topic, payload, qos, retain, dup, packet_id if qos else 0, some_properties(chance))
    if kind == 3:
        options = chance.randrange(3), False, chance.random() < 0.5, chance.randrange(3)
        return Subscribe(packet_id, [Subscription(chance.choice(FILTERS), *options)])
    if kind == 4:
        return Unsubscribe(packet_id, [chance.choice(FILTERS)])
    if kind == 5:
        return chance.choice((Puback, Pubrec, Pubrel, Pubcomp))(packet_id)
    return Pingreq() if kind < 8 else Disconnect()


def connect(chance: random.Random) -> Connect:
    will = Will("fuzz/will", b"w", chance.randrange(3), chance.random() < 0.5) if chance.random() < 0.2 else None
    version = chance.choice((4, 5))
    properties: Any = {}
    if version == 5:
        every = {
            "session_expiry_interval": chance.randrange(3),
            "receive_maximum": chance.randrange(1, 5),
            "maximum_packet_size": chance.randrange(20, 300),
            "topic_alias_maximum": chance.randrange(1, 5),
        }
        properties = {key: every[key] for key in every if chance.random() < 0.3}
    client_id = f"fuzz-{chance.randrange(20)}"  # few, so that they take each other over
    return Connect(client_id, version, chance.random() < 0.5, chance.randrange(100), will, properties=properties)


def bent(data: bytes, chance: random.Random) -> bytes:
    """Whole, or not quite."""
    kind = chance.random()
    if kind < 0.55 or not data:
        return data
    at = chance.randrange(len(data))
    if kind < 0.7:
        return data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]
    if kind < 0.8:
        return data[:at] + chance.randbytes(chance.randrange(1, 5)) + data[at:]
    if kind < 0.9:
        return data[:at]
    return data[:at] + data[at + 1 :] if kind < 0.95 else chance.randbytes(chance.randrange(1, 80))


def conversation(chance: random.Random, count: int) -> bytes:
    """What one connection sends."""
    first = connect(chance)
    parts = [encode(first, first.version, from_server=False)]
    if chance.random() < 0.1:
        parts[0] = bent(parts[0], chance)
    while len(parts) < count:
        if chance.random() < 0.02:
            parts.append(encode(connect(chance), first.version, from_server=False))
            continue
        try:
            parts.append(encode(packet(chance), first.version, from_server=False))
        except BadPacket:
            continue
        if chance.random() < 0.15:  # most get further than their first packet
            parts[-1] = bent(parts[-1], chance)
    return b"".join(parts)


def talk(port: int, seed: int, packets: int) -> None:
    """Send packets, over as many connections as it takes, in pieces of any size."""
    chance = random.Random(seed)
    sent = 0
    while sent < packets:
        count = 1 if chance.random() < 0.1 else PACKETS_PER_CONNECTION  # a flood of CONNECTs, or more
        data = conversation(chance, count)
        sent += count
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(60)
            try:
                at, size = 0, chance.choice((1, 7, 100, 4096, 65536, 65536, 65536))
                while at < len(data):
                    connection.sendall(data[at : at + size])
                    at += size
                if chance.random() < 0.3:
                    continue  # gone without reading
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            except TimeoutError:
                raise AssertionError(f"the broker hangs: seed {seed}, after {sent} packets") from None
            except OSError:
                pass  # it has closed the connection, as it should


class Healthy(threading.Thread):
    """A client that behaves, and must not notice anything."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self.stopping = port, threading.Event()
        self.rounds = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with Talk(self._port) as publisher, Talk(self._port) as subscriber:
                publisher.connect("healthy-publisher")
                subscriber.connect("healthy-subscriber")
                subscriber.subscribe("healthy", qos=2)
                while not self.stopping.is_set():
                    for qos in (0, 1, 2):
                        payload = b"%d %d" % (self.rounds, qos)
                        assert publisher.publish("healthy", payload, qos=qos) == 0
                        assert subscriber.messages() == [("healthy", payload)]
                    self.rounds += 1
        except BaseException as error:
            self.error = error

    def stop(self) -> int:
        self.stopping.set()
        self.join(120)
        assert not self.is_alive(), "the client that behaves is stuck"
        if self.error is not None:
            raise AssertionError(f"the client that behaves has noticed, in round {self.rounds}") from self.error
        return self.rounds


def run(packets: int, seed: int, say: Callable[[str], None]) -> None:
    part, sizes, sent, began = max(packets // 10, 1000), [], 0, time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        served(f"{folder}/log", "--limits", '{"packet_bytes_max": 100000, "tail_bytes_max": 4000000}') as broker,
        ThreadPoolExecutor(6) as pool,
    ):
        healthy = Healthy(broker.port)
        healthy.start()
        while sent < packets:
            seeds = [seed * 1_000_003 + sent + number for number in range(6)]
            list(pool.map(lambda one: talk(broker.port, one, -(-part // 6)), seeds))
            sent += -(-part // 6) * 6
            assert broker.process.poll() is None, f"the broker has ended: {broker.said()[-4000:]}"
            sizes.append(broker.rss_bytes())
            say(f"{sent:,} packets, {sizes[-1] >> 20} MiB, {time.monotonic() - began:.0f} s")
        rounds = healthy.stop()
        assert rounds, "the client that behaves got nowhere"
        settled = sizes[len(sizes) // 4]
        assert sizes[-1] < settled + GROWTH_BYTES_MAX, f"it grew from {settled} to {sizes[-1]} bytes"
        broker.stop()
        said = broker.said()
        assert "Traceback" not in said, said[-4000:]
        say(f"the client that behaves has sent and got {3 * rounds:,} messages meanwhile")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run(options.packets, options.seed, lambda text: print(text, file=sys.stderr, flush=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
