"""Guessing is slow, and right passwords don't wait behind wrong ones."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import Future

import pytest

from forelog.broker import Access
from forelog.broker.access import logins
from forelog.broker.access.logins import Delays, Logins, network_of
from forelog.broker.access.passwords import Password, change_password
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, Connack, Connect
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.local import checked, local, until
from tests.broker.talking import Talk
from tests.notes import noted

WRONG = ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.fixture
def users(tmp_path):
    path = str(tmp_path / "users")
    for name in ("ann", "bob"):
        change_password(path, name, name.encode())
    return path


class Held(Logins):
    """Checks that nobody does, so that their order can be looked at."""

    def __init__(self) -> None:
        self.now = [1000.0]
        super().__init__(clock=lambda: self.now[0])
        self._thread = threading.Thread()  # it isn't started


@pytest.fixture
def checks():
    found = Held()
    yield found
    found._thread = None
    found.close()


KNOWN = Password((2, 8, 1), b"salt", b"hash" * 8)


def ask(checks, host, name="ann", password=b"guess"):
    found = checks.check(name, password, KNOWN, host)
    assert isinstance(found, Future)
    return found


def serve(checks, right=False):
    """Do the next check, as the thread would; which it was."""
    while not isinstance(check := checks._next(checks.now[0]), logins.Check):
        assert check is not None, "nobody waits"
        checks.now[0] = check
    checks._take(check)
    checks._note(check, right)
    logins._answer(check, None if right else WRONG)
    return check


def test_each_wrong_password_makes_the_next_one_wait_longer_up_to_a_bound(checks):
    began, waits = checks.now[0], []
    for number in range(30):
        ask(checks, "1.1.1.1", password=b"%d" % number)
        before = checks.now[0]
        serve(checks)
        waits.append(checks.now[0] - before)
    assert waits[:3] == [0, 0, 0]
    assert waits[3:] == sorted(waits[3:])
    assert waits[-1] == 2.0
    assert checks.now[0] - began > 30
    checks.now[0] += 86_400
    ask(checks, "1.1.1.1", password=b"x")
    before = checks.now[0]
    serve(checks)
    assert checks.now[0] == before, "it is forgotten"


def test_one_address_that_tries_many_names_waits_too(checks):
    for number in range(100):
        ask(checks, "1.1.1.1", name=f"user{number}")
        serve(checks)
    assert checks.now[0] > 1000 + 100
    before = checks.now[0]
    ask(checks, "2.2.2.2")
    serve(checks)
    assert checks.now[0] == before, "and nobody else"


def test_one_name_that_is_tried_from_many_addresses_waits_too(checks):
    for number in range(100):
        ask(checks, f"1.1.1.{number}", password=b"%d" % number)
        serve(checks)
    assert checks.now[0] > 1000 + 50
    before = checks.now[0]
    ask(checks, "2.2.2.2", name="bob")
    serve(checks)
    assert checks.now[0] == before, "other names don't"


def test_a_user_at_its_usual_address_waits_for_no_guesses_from_elsewhere(checks):
    ask(checks, "9.9.9.9", password=b"right")
    serve(checks, right=True)
    for number in range(500):
        ask(checks, f"1.1.{number & 7}.{number}", password=b"%d" % number)
    for _ in range(50):
        serve(checks)
    before = checks.now[0]
    mine = ask(checks, "9.9.9.9", password=b"another right one")
    assert serve(checks).found is mine
    assert checks.now[0] == before


def test_a_newcomer_is_served_before_addresses_that_guessed(checks):
    for number in range(250):
        ask(checks, f"1.1.1.{number}", password=b"%d" % number)
    mine = ask(checks, "2.2.2.2", name="bob")
    assert serve(checks).found is mine
    for _ in range(100):
        serve(checks)
    mine = ask(checks, "2.2.2.3", name="bob")
    assert serve(checks).found is mine


def test_usual_users_dont_keep_others_out(checks):
    for name in ("a", "b", "c", "d", "e", "f"):
        ask(checks, "1.1.1.1", name=name, password=b"right")
        serve(checks, right=True)
    for number in range(10):
        for name in ("a", "b", "c", "d", "e", "f"):
            ask(checks, "1.1.1.1", name=name, password=b"%d" % number)
    mine = ask(checks, "2.2.2.2", name="new")
    served = [serve(checks, right=True).found for _ in range(6)]
    assert mine in served


def test_a_flood_from_one_address_costs_only_that_address(checks):
    first = ask(checks, "2.2.2.2", name="bob")
    flood = [ask(checks, "1.1.1.1", name=f"user{number}") for number in range(3000)]
    assert checks.waiting == logins.WAITING_MAX
    later = ask(checks, "3.3.3.3", name="bob")
    assert not first.done()
    assert not later.done()
    assert sum(one.done() for one in flood) == 2002
    assert all(one.result() == ReasonCode.SERVER_BUSY for one in flood if one.done())
    assert {serve(checks).found, serve(checks).found, serve(checks).found} >= {first, later}


def test_the_newest_of_many_guesses_at_a_name_is_served_first_and_few_wait(checks):
    flood = [ask(checks, "1.1.1.1", password=b"%d" % number) for number in range(1000)]
    assert sum(not one.done() for one in flood) == logins.WAITING_OF_PAIR_MAX
    mine = ask(checks, "1.1.1.1", password=b"right")
    assert serve(checks).found is mine


def test_a_check_that_is_cancelled_waits_no_more(checks):
    asked = [ask(checks, "1.1.1.1", name=f"{number}") for number in range(20)]
    assert all(one.cancel() for one in asked)
    assert checks.waiting == 0
    assert checks._next(checks.now[0]) is None
    assert checks._counts == checks._waiting == {}


def test_a_check_that_has_waited_for_too_long_is_turned_away(checks):
    asked = [ask(checks, "1.1.1.1", name=f"{number}") for number in range(20)]
    checks.now[0] += logins.WAITING_SECONDS_MAX + 1
    late = ask(checks, "1.1.1.1", name="late")
    checks._turn_away(checks.now[0] - logins.WAITING_SECONDS_MAX)
    assert {one.result(0) for one in asked} == {ReasonCode.SERVER_BUSY}
    assert serve(checks).found is late


def test_every_table_is_bounded(checks, monkeypatch):
    for name in ("_USUAL_MAX", "_DELAYS_MAX", "_WRONG_MAX", "REMEMBERED_MAX"):
        monkeypatch.setattr(logins, name, 10)
    for number in range(100):
        ask(checks, f"1.1.1.{number}", name=f"{number}" * 1000)
        serve(checks, right=number % 2 == 0)
    tables = (
        checks._usual,
        checks._remembered,
        checks._wrong,
        checks._of_pair,
        checks._of_name,
        checks._of_address,
    )
    assert [len(table) for table in tables] == [10] * 6


def test_a_delay_never_grows_beyond_its_bound():
    delays = Delays(free=0, first=1, most=8, forget_seconds=1e9)
    for _ in range(5000):
        delays.fail("x", 0.0)
    assert delays.until("x") == 8


def test_the_addresses_of_one_network_count_as_one():
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("nonsense:") == "nonsense:"
    assert network_of("") == ""


def test_the_same_password_is_checked_once_for_all_who_wait(users):
    access = Access(users=users)
    try:
        began = time.process_time()
        found = [access.admit("ann", b"ann", f"127.0.0.{number}") for number in range(200)]
        assert all(one is None or checked(one) is None for one in found)
        assert time.process_time() - began < 200 * 0.02, "one check takes more than that"
    finally:
        access.close()


def test_a_wrong_password_that_was_checked_before_costs_nothing(users, monkeypatch):
    access = Access(users=users)
    count: list[int] = []
    is_of = Password.is_of
    monkeypatch.setattr(Password, "is_of", lambda self, password: noted(count, 1) or is_of(self, password))
    try:
        for _ in range(4):
            assert checked(access.admit("ann", b"wrong", "127.0.0.1")) == WRONG
        assert len(count) == 1
        assert checked(access.admit("ann", b"ann", "127.0.0.2")) is None
        assert access.admit("ann", b"x" * 5000, "127.0.0.2") == WRONG
    finally:
        access.close()


# -- the whole of it


def guess(port, number, host, name):
    """A connection with a wrong password, which nobody waits for."""
    talk = socket.create_connection(("127.0.0.1", port), source_address=(host, 0))
    talk.sendall(
        encode(Connect("g", MQTT_5_0, user_name=name, password=b"%d" % number), MQTT_5_0, from_server=False)
    )
    return talk


@pytest.mark.parametrize(
    ("hosts", "names", "mine"),
    [
        (["127.0.0.1"], ["ann"], ("127.0.0.1", "ann")),
        (["127.0.0.1"], ["ann"], ("127.0.0.1", "bob")),
        (["127.0.0.1"], [f"user{number}" for number in range(500)], ("127.0.0.1", "ann")),
        ([f"127.0.1.{number}" for number in range(1, 250)], ["ann"], ("127.0.0.1", "ann")),
    ],
    ids=["same address and name", "same address", "same address, many names", "many addresses, same name"],
)
def test_a_right_password_doesnt_wait_behind_a_thousand_wrong_ones(tmp_path, users, hosts, names, mine):
    with local(tmp_path / "log", access=Access(users=users)) as here, contextlib.ExitStack() as stack:
        for number in range(1000):
            host, name = hosts[number % len(hosts)], names[number % len(names)]
            stack.enter_context(guess(here.port, number, host, name))
        until(lambda: len(here.broker.presence.connections) > 0)
        talk = Talk(here.port)
        stack.enter_context(talk)
        talk.socket.settimeout(10)
        assert talk.connect("x", user_name=mine[1], password=mine[1].encode()).reason_code == 0


def test_closing_a_connection_cancels_its_check(tmp_path, users):
    access = Access(users=users)
    with local(tmp_path / "log", access=access) as here:
        flood = [guess(here.port, number, "127.0.0.1", f"user{number}") for number in range(300)]
        until(lambda: access._logins.waiting > 200)
        for one in flood:
            one.close()
        until(lambda: access._logins.waiting == 0 and not here.broker.presence.connections)


def test_more_than_can_be_checked_are_told_that_the_server_is_busy(tmp_path, users):
    with local(tmp_path / "log", access=Access(users=users)) as here, contextlib.ExitStack() as stack:
        talks = [stack.enter_context(Talk(here.port)) for _ in range(40)]
        for number, talk in enumerate(talks):
            talk.send(Connect("g", MQTT_5_0, user_name="ann", password=b"%d" % number))
        reasons = set()
        for talk in talks[:20]:
            reasons.add(talk.expect(Connack).reason_code)
        assert reasons <= {WRONG, ReasonCode.SERVER_BUSY}
        assert ReasonCode.SERVER_BUSY in reasons
