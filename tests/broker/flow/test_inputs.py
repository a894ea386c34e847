"""Clients are read in turns: nobody who sends much, or with many others, keeps one that sends little waiting."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from forelog.broker.connections.inputs import LITTLE_BYTES, READ_BYTES, Inputs


class Rounds:
    """An event loop: in a round it calls what was scheduled in the last one, then reads who has sent something."""

    def __init__(self, **options) -> None:
        self.inputs = Inputs(self.call_soon, **options)
        self.clients: list[Client] = []
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, work: Callable[[], None]) -> None:
        self._soon.append(work)

    def client(self, sent: bytes = b"", *, work: Callable[[], None] = lambda: None) -> Client:
        self.clients.append(Client(sent, work))
        return self.clients[-1]

    def run(self) -> int:
        """Returns how many bytes were read from sockets."""
        soon, self._soon, count = self._soon, [], 0
        for work in soon:
            work()
        for client in self.clients:
            if client.sent and not client.is_paused:
                buffer = self.inputs.buffer
                size = min(len(buffer), len(client.sent))
                buffer[:size], client.sent = client.sent[:size], client.sent[size:]
                self.inputs.read(client, size)
                count += size
        return count


class Client:
    def __init__(self, sent: bytes, work: Callable[[], None]) -> None:
        self.sent, self.found, self._work = memoryview(sent), bytearray(), work
        self.is_paused = False

    def pause_input(self) -> None:
        self.is_paused = True

    def go_on(self) -> None:
        self.is_paused = False

    def data_received(self, data: bytes) -> None:
        self.found += data
        self._work()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += 0.001


def test_every_client_gets_all_it_sent_in_order():
    chance = random.Random(1)
    rounds = Rounds(bytes_max=READ_BYTES)
    sent = [chance.randbytes(chance.choice((1, 100, 5_000, 300_000))) for _ in range(40)]
    clients = [rounds.client(data) for data in sent]
    for _ in range(200):
        rounds.run()
    assert [client.found for client in clients] == sent
    assert len(rounds.inputs) == 0


def test_a_round_reads_no_more_than_its_bytes_and_a_little_of_all_others():
    rounds = Rounds(bytes_max=4 * READ_BYTES)
    clients = [rounds.client(bytes(1 << 20)) for _ in range(100)]
    most = 5 * READ_BYTES + len(clients) * LITTLE_BYTES
    while any(client.sent for client in clients):
        before = sum(len(client.found) for client in clients)
        assert rounds.run() <= most
        assert sum(len(client.found) for client in clients) - before <= most


def test_a_round_ends_when_its_time_is_used_up():
    clock = Clock()
    rounds = Rounds(seconds=0.005, clock=clock)
    for _ in range(100):
        rounds.client(b"x", work=clock.work)
    began = clock.now
    rounds.run()
    assert clock.now - began == pytest.approx(0.005)
    assert len(rounds.inputs) == 95, "the others wait for their turn, with what was read of them"


def test_one_that_sends_little_has_its_turn_after_a_turn_of_all_others():
    clock = Clock()
    rounds = Rounds(seconds=0.005, clock=clock)
    busy = [rounds.client(bytes(4 << 20), work=clock.work) for _ in range(50)]
    for _ in range(30):
        rounds.run()
    late = rounds.client(b"here I am")
    began = clock.now
    while not late.found:
        rounds.run()
    assert clock.now - began <= 0.001 * (len(busy) + 15), "a turn of all others, and the round that was under way"
    turns = [client.found for client in busy]
    assert min(map(len, turns)) > 0


def test_one_that_is_gone_is_forgotten():
    rounds = Rounds(bytes_max=1)
    rounds.client(b"a")
    gone = rounds.client(b"b")
    rounds.run()
    assert len(rounds.inputs) == 1
    rounds.inputs.drop(gone)
    rounds.inputs.drop(gone)
    rounds.run()
    assert not gone.found
    assert len(rounds.inputs) == 0
