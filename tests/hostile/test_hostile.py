"""`make hostile` in small: the most telling attacks, one after the other against the same few servers.

What is asserted is memory, disk and answers, as in the long form. Times are generous: a machine that is busy with
other tests makes everybody wait.
"""

from __future__ import annotations

import itertools

import pytest

from tests.hostile.attacks import Attack, all_attacks
from tests.hostile.siege import Outcome, besiege_in_short
from tests.hostile.table import row

SLACK = 30.0


def groups() -> list[list[Attack]]:
    """Those that can use the same server."""
    some = sorted((one for one in all_attacks() if one.short), key=_server)
    return [list(group) for _, group in itertools.groupby(some, _server)]


def _server(attack: Attack) -> str:
    name = f"{attack.server} {attack.flags.__module__}.{attack.flags.__qualname__} {attack.ports} {attack.secret}"
    words = attack.flags.__closure__
    return name + "".join(str(cell.cell_contents) for cell in words or ())


@pytest.mark.parametrize("attacks", groups(), ids=lambda group: group[0].name.replace(" ", "-"))
def test_hostile_clients_cost_the_others_nothing(attacks):
    outcomes = besiege_in_short(attacks, slack=SLACK)
    assert all(found.fine for found in outcomes), "\n".join(row(found) for found in outcomes)
    assert len(outcomes) == len(attacks)


def test_a_bound_that_is_broken_is_a_failure():
    """The harness itself: an attack that costs too much isn't fine, whatever it is that it costs."""
    found = Outcome("broker nothing", "nothing")
    assert found.fine
    assert "fine" in row(found)
    found.problems.append("the server grew by 500 MiB, more than 48")
    assert not found.fine
    assert "FAILED" in row(found)
    assert "500 MiB" in row(found)
