"""A little of what `make fuzz` does at length."""

from __future__ import annotations

import random

import pytest

from forelog.jobs.machine.machine import Machine
from forelog.jobs.server.protocol import Session
from tests.jobs.fuzz import line, run


def test_lines_that_no_client_would_send_do_no_harm():
    told: list[str] = []
    run(3000, 1, told.append)
    assert "lines answered" in told[-1]


class Gate:
    read_only = trial = False
    token = None
    started_ns = 0

    def clients(self) -> int:
        return 1

    def complain(self, session: Session, what: str) -> None:
        pass

    def try_writing(self, session: Session) -> None:
        raise AssertionError("nothing is on trial")


@pytest.mark.parametrize("seed", range(20))
def test_how_bytes_are_cut_makes_no_difference(seed):
    """Whatever the lines are, and wherever one read ends and the next begins, the answers are the same."""
    chance = random.Random(seed)
    data = b"".join(line(chance) for _ in range(60))
    answers = []
    for size in (len(data), 1, 7, 100):
        machine = Machine(10**18)
        session = Session(machine, Gate(), None)
        for at in range(0, len(data), size):
            session.feed(data[at : at + size], 10**18)
            while session.waiting is not None:
                session.waiting.client.answer()
                session.resume(10**18)
            if session.closed:
                break
        answers.append((b"".join(session.out), session.closed, len(machine.jobs)))
    assert answers[1:] == [answers[0]] * 3
