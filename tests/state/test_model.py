"""Random lives of a bank, whose enumerations are interleaved with changes, crashed at every point.

The bank has events of every kind that the page on state speaks of: those that say all of a thing (a Struct),
those that say only what changes (a dataclass), those of two things at once, and those of things that go. Changes
happen in the midst of an enumeration, between two of its objects, on the same thread: so an example that fails,
fails again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forelog.log.appender import Sync
from forelog.state import Enumeration, StateLog
from forelog.testing import CrashDisk

IDS = 4


class Account(msgspec.Struct, frozen=True):
    """All that there is to say of an account."""

    id: int
    cents: int
    owner: str = ""


@dataclass(frozen=True)
class Deposit:
    """Only what changes."""

    id: int
    cents: int


class Transfer(msgspec.Struct, frozen=True):
    """Two accounts change at once, of which a replay may know one, or none."""

    source: int
    target: int
    cents: int


@dataclass(frozen=True)
class Closed:
    id: int


class Together(NamedTuple):
    """Several events in one record."""

    events: tuple[Any, ...]


class NotNow(Exception):
    pass


class Rotate(NamedTuple):
    """A rotation, with what happens before each object that is enumerated, and at which it fails, if it does."""

    between: tuple[tuple[Any, ...], ...]
    fails_at: int | None


class Reopen(NamedTuple):
    """The bank is closed, and opened by another process."""


class Bank:
    """Accounts, a log, and who is told of every change that was acknowledged."""

    def __init__(self, disk: CrashDisk, sync: Sync = "os", told: Any = lambda begun: None) -> None:
        self.disk = disk
        self.accounts: dict[int, Account] = {}
        self.told = told
        self.between: list[tuple[Any, ...]] = []
        self.fails_at: int | None = None
        self.log = StateLog(
            "bank",
            replay=self.change,
            enumerate=self.enumerate,
            types=[Account, Deposit, Transfer, Closed],
            sync=sync,
            rotate_bytes=1 << 30,
            files=disk,
        )

    def change(self, event: Any) -> None:
        """What an event does, in a replay as well: it passes over what isn't there yet."""
        if isinstance(event, Account):
            self.accounts[event.id] = event
        elif isinstance(event, Deposit):
            self._add(event.id, event.cents)
        elif isinstance(event, Transfer):
            self._add(event.source, -event.cents)
            self._add(event.target, event.cents)
        else:
            assert isinstance(event, Closed)
            self.accounts.pop(event.id, None)

    def _add(self, number: int, cents: int) -> None:
        if (found := self.accounts.get(number)) is not None:
            self.accounts[number] = Account(found.id, found.cents + cents, found.owner)

    def possible(self, event: Any) -> bool:
        if isinstance(event, Account):
            return True
        if isinstance(event, Transfer):
            return event.source in self.accounts and event.target in self.accounts
        return event.id in self.accounts

    def do(self, event: Any) -> None:
        if isinstance(event, Together):
            self.do_together(event.events)
            return
        if not self.possible(event):
            return
        begun = len(self.disk.events)
        self.log.update(event)
        self.change(event)
        self.told(begun)

    def do_together(self, events: tuple[Any, ...]) -> None:
        before, possible = dict(self.accounts), []
        for event in events:  # each is possible after those before it, or it isn't
            if self.possible(event):
                possible.append(event)
                self.change(event)
        self.accounts, after = before, self.accounts
        if possible:
            begun = len(self.disk.events)
            self.log.update_together(possible)
            self.accounts = after
            self.told(begun)

    def enumerate(self, log: Enumeration) -> None:
        for place, number in enumerate(sorted(self.accounts)):
            if place < len(self.between):
                for event in self.between[place]:
                    self.do(event)
            if place == self.fails_at:
                raise NotNow(number)
            if number in self.accounts:
                log.update(self.accounts[number])

    def rotate(self, how: Rotate) -> None:
        self.between, self.fails_at = list(how.between), how.fails_at
        try:
            self.log.rotate()
        except NotNow:
            assert not self.log.stats().complete
        finally:
            self.between, self.fails_at = [], None


def restored(disk: CrashDisk) -> dict[int, Account]:
    bank = Bank(disk)
    with bank.log:
        assert bank.log.stats().complete, "once it is open, the newest generation is whole"
        return bank.accounts


class Life:
    """A history on a crash disk, with what was sure to survive at each moment."""

    def __init__(self, steps: list[Any], sync: Sync, disk: CrashDisk | None = None) -> None:
        self.disk = disk or CrashDisk(sector_bytes=64)
        self.history: list[tuple[int, int, dict[int, Account]]] = []
        """From when on a state may be found, from when on it must be, unless a later one is, and the state."""
        self.sync = sync
        self.found: dict[tuple[str, int], dict[int, Account]] = {}
        self.bank = self._open()
        for step in steps:
            if isinstance(step, Rotate):
                self.bank.rotate(step)
            elif isinstance(step, Reopen):
                self.bank.log.close()
                expected = self.bank.accounts
                self.bank = self._open()
                assert self.bank.accounts == expected
            else:
                self.bank.do(step)
        self.bank.log.close()

    def _open(self) -> Bank:
        bank = Bank(self.disk, self.sync, self._told)
        bank.log.open()
        self.bank = bank
        if not self.history:
            self.history.append((0, 0, dict(bank.accounts)))
        return bank

    def _told(self, begun: int) -> None:
        self.history.append((begun, len(self.disk.events), dict(self.bank.accounts)))

    def check(self, disk: CrashDisk, moment: int) -> None:
        key = (disk.origin, disk.boot)
        if key not in self.found:
            self.found[key] = restored(disk)
            assert restored(disk) == self.found[key], "a second restore says the same"
        found = self.found[key]
        sure = max(index for index, (_, durable, _) in enumerate(self.history) if durable <= moment)
        possible = [state for begun, _, state in self.history[sure:] if begun <= moment]
        assert len(possible) <= 2, "one change at a time"
        assert found in possible, f"after event {moment}: {found} is none of {possible}"


NUMBERS = st.integers(0, IDS - 1)
CENTS = st.integers(1, 99)
SINGLE_EVENTS = st.one_of(
    st.builds(Account, NUMBERS, CENTS, st.sampled_from(["", "ada", "x" * 70])),
    st.builds(Deposit, NUMBERS, CENTS),
    st.builds(Transfer, NUMBERS, NUMBERS, CENTS),
    st.builds(Closed, NUMBERS),
)
EVENTS = SINGLE_EVENTS | st.builds(Together, st.lists(SINGLE_EVENTS, min_size=1, max_size=4).map(tuple))
ROTATIONS = st.builds(
    Rotate,
    st.lists(st.lists(EVENTS, max_size=3).map(tuple), max_size=IDS).map(tuple),
    st.none() | st.integers(0, IDS - 1),
)
STEPS = st.lists(st.one_of(EVENTS, EVENTS, ROTATIONS, st.just(Reopen())), min_size=1, max_size=10)
FULL = [Account(number, 100 * number) for number in range(IDS)]
# A transfer of which the new generation knows one side; one of both sides unknown; a thing that goes before its
# turn, and comes again; and all of it in an enumeration that fails, is tried again, and changed again.
TOLD_OF_BOTH = Rotate(
    ((), (Transfer(0, 3, 7), Deposit(2, 1)), (Closed(3), Transfer(2, 1, 5)), (Account(3, 1),)), None
)
BROKEN = Rotate(TOLD_OF_BOTH.between, 2)
ALL_AT_ONCE = Together((Account(0, 1, "x" * 70), Closed(1), Transfer(2, 3, 50), Account(1, 7), Deposit(3, 1)))


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(STEPS)
@example([*FULL, TOLD_OF_BOTH, Transfer(3, 0, 1)])
@example([*FULL, BROKEN, Transfer(0, 3, 9), Closed(1), TOLD_OF_BOTH, Deposit(0, 1)])
@example([*FULL, ALL_AT_ONCE, Rotate(((ALL_AT_ONCE,), (), (ALL_AT_ONCE,)), 3), Reopen(), ALL_AT_ONCE])
@example([*FULL, BROKEN, Reopen(), Deposit(0, 1), BROKEN, BROKEN, Reopen(), Closed(0)])
def test_a_power_loss_anywhere_restores_what_was_synced(crash_count, steps):
    logging.disable(logging.CRITICAL)
    try:
        life = Life(steps, "always")
        for state in life.disk.states_everywhere(limit=6):
            crash_count(state)
            life.check(state.disk, state.events)
    finally:
        logging.disable(logging.NOTSET)


@settings(max_examples=16, suppress_health_check=list(HealthCheck))
@given(STEPS)
@example([*FULL, TOLD_OF_BOTH, Transfer(3, 0, 1)])
@example([*FULL, BROKEN, Transfer(0, 3, 9), Closed(1), TOLD_OF_BOTH, Deposit(0, 1)])
@example([*FULL, ALL_AT_ONCE, Rotate(((ALL_AT_ONCE,), (), (ALL_AT_ONCE,)), 3), Reopen(), ALL_AT_ONCE])
@example([*FULL, BROKEN, Reopen(), Deposit(0, 1), BROKEN, BROKEN, Reopen(), Closed(0)])
def test_a_killed_process_loses_nothing_that_was_acknowledged(steps):
    life = Life(steps, "os")
    for moment in range(len(life.disk.events) + 1):
        life.check(life.disk.killed(moment), moment)


@pytest.mark.parametrize("rotation", [TOLD_OF_BOTH, BROKEN], ids=["whole", "broken"])
def test_a_crash_while_restoring_from_a_crash_changes_nothing(rotation, crash_count):
    """The next start enumerates into the generation that wasn't whole: that is crashed as well."""
    life = Life([*FULL[-2:], Account(0, 5), rotation], "always")
    seen, again = set(), 0
    for state in life.disk.states_everywhere(limit=2):
        if state.disk.origin in seen:
            continue
        seen.add(state.disk.origin)
        crash_count(state)
        life.check(state.disk, state.events)
        expected = life.found[state.disk.origin, state.disk.boot]
        for second in state.disk.states_everywhere(limit=2):
            crash_count(second)
            assert restored(second.disk) == expected
            again += 1
    assert again > len(life.disk.events)


def test_the_state_goes_on_after_any_crash():
    """A restored bank takes changes and rotations, and those survive the next crash."""
    life = Life([*FULL, BROKEN, Deposit(0, 1)], "os")
    for moment in range(0, len(life.disk.events) + 1, 3):
        disk = life.disk.killed(moment)
        more = Life([Account(9, 9), TOLD_OF_BOTH, Transfer(9, 9, 1), Closed(9)], "os", disk)
        for later in range(len(disk.events) + 1):
            more.check(disk.killed(later), later)
