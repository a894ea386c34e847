"""A publisher that notes in a ledger which messages were acknowledged, and which the broker refused.

Messages are of QoS 1. A broker that can't write a turn's messages says so and closes the connection: whatever of a
burst wasn't acknowledged before that is refused. Whatever was under way when the connection broke is unknown. No
message is sent again: the next one has a new number.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import Disconnect, Puback, Publish
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.talking import Closed, Talk
from tests.readers.ledger import Ledger
from tests.readers.records import payload

TOPIC = "readers/all"
REFUSED = 0x80
WAIT_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Burst:
    """How messages come."""

    message_bytes: tuple[int, int]
    messages: tuple[int, int]
    large: float = 0.0
    """The share of bursts that are one large message instead."""


BURSTS = {
    "rolling": Burst((12, 120), (1, 20)),
    "full": Burst((1000, 8000), (20, 100)),
    "killed": Burst((20_000, 80_000), (20, 60), large=0.5),
}
LARGE_BYTES = (2 << 20, 6 << 20)


class Publisher:
    """One client, which connects again whenever it has to."""

    def __init__(self, way: str, port: int, ledger: Path, seed: int) -> None:
        self._burst = BURSTS[way]
        self._port = port
        self.ledger = Ledger(ledger)
        self._chance = random.Random(seed)
        self._talk: Talk | None = None

    def publish(self) -> None:
        """A burst of messages, up to the answers."""
        talk = self._connected()
        if talk is None:
            time.sleep(WAIT_SECONDS)
            return
        first = self.ledger.next
        data = bytearray()
        for packet_id, size in enumerate(self._sizes(), 1):
            number = self.ledger.trying(1)
            publish = Publish(TOPIC, payload(number, size), 1, packet_id=packet_id)
            data += encode(publish, talk.version, from_server=False)
        waiting = dict(enumerate(range(first, self.ledger.next), 1))
        refused = False
        try:
            talk.raw(data)
        except OSError:
            pass  # what the broker said before is still to be read
        try:
            while waiting:
                packet = talk.read()
                if isinstance(packet, Puback):
                    self._answered(waiting.pop(packet.packet_id), packet.reason_code)
                elif isinstance(packet, Disconnect):
                    refused = packet.reason_code == ReasonCode.QUOTA_EXCEEDED
        except (Closed, OSError):
            self.close()
        if refused:
            for number in waiting.values():
                self.ledger.refused(number, 1, "the connection was closed")
            time.sleep(WAIT_SECONDS)

    def _sizes(self) -> list[int]:
        if self._chance.random() < self._burst.large:
            return [self._chance.randint(*LARGE_BYTES)]
        count = self._chance.randint(*self._burst.messages)
        return [self._chance.randint(*self._burst.message_bytes) for _ in range(count)]

    def _answered(self, number: int, reason: int) -> None:
        if reason < REFUSED:
            self.ledger.acked(number, [None])
        else:
            self.ledger.refused(number, 1, f"reason {reason}")

    def _connected(self) -> Talk | None:
        if self._talk is None:
            talk = None
            try:
                talk = Talk(self._port)
                talk.connect("publisher")
                self._talk = talk
            except (OSError, Closed):
                if talk is not None:
                    talk.close()
        return self._talk

    def close(self) -> None:
        """Without a word."""
        if self._talk is not None:
            self._talk.close()
            self._talk = None
