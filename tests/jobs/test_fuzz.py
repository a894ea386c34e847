"""A little of what `make fuzz` does at length."""

from __future__ import annotations

import random
from typing import Any

import pytest

from forelog.jobs.machine.machine import Machine
from forelog.jobs.server.beyond import Beyond
from forelog.jobs.server.clients import Clients
from forelog.jobs.server.outage import Outage
from forelog.jobs.server.rare import Rare
from forelog.jobs.server.session import Session
from tests.jobs.fuzz import line, run


def test_lines_that_no_client_would_send_do_no_harm():
    told: list[str] = []
    run(3000, 1, told.append)
    assert "lines answered" in told[-1]


class Connection:
    """Of a client that is alone."""

    def address(self) -> str:
        return "127.0.0.1:1"

    def is_late(self, now: float) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def has_time(self) -> bool:
        return True

    def try_writing(self) -> None:
        raise AssertionError("nothing is on trial")


def session_of(machine: Machine) -> Session:
    connection, clients = Connection(), Clients(0)
    clients.enter(connection)
    outage = Outage(None, machine, None, None, None)
    rare = Rare(machine, clients, outage, None)
    return Session(machine, clients, outage, None, rare, Beyond(machine, outage), connection)


@pytest.mark.parametrize("seed", range(20))
def test_how_bytes_are_cut_makes_no_difference(seed):
    """Whatever the lines are, and wherever one read ends and the next begins, the answers are the same."""
    chance = random.Random(seed)
    data = b"".join(line(chance) for _ in range(60))
    answers = []
    for size in (len(data), 1, 7, 100):
        machine = Machine(10**18)
        session = session_of(machine)
        for at in range(0, len(data), size):
            session.feed(data[at : at + size], 10**18)
            while session.waiting is not None:
                client: Any = session.waiting.client
                client.end_wait()
                session.resume(10**18)
            if session.closed:
                break
        answers.append((b"".join(session.out), session.closed, len(machine.jobs)))
    assert answers[1:] == [answers[0]] * 3
