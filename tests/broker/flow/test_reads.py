"""Who reads from disk: one at a time for a client, so many in all, and clients take turns."""

from __future__ import annotations

from typing import Any

from forelog.broker.flow.reads import Reads
from forelog.broker.limits import Limits
from forelog.broker.sessions.group import Group
from forelog.broker.sessions.session import Cursor, Sub
from forelog.log.position import Position
from tests.broker.local import local, until
from tests.broker.talking import Talk


def test_a_client_reads_once_at_a_time() -> None:
    reads, begun = Reads(10), list[str]()
    for what in ("first", "second"):
        reads.begin("ann", lambda what=what: begun.append(what))  # type: ignore[misc]
    assert begun == ["first"]
    reads.end("ann")
    assert begun == ["first", "second"]
    reads.end("ann")
    assert len(reads) == 0


def test_so_many_read_and_clients_take_turns() -> None:
    reads, begun = Reads(2), list[str]()
    for who in ("ann", "bob", "eve", "eve", "eve", "dan"):
        reads.begin(who, lambda who=who: begun.append(who))  # type: ignore[misc]
    assert begun == ["ann", "bob"]
    reads.end("ann")
    assert begun == ["ann", "bob", "eve"]
    reads.end("eve")
    assert begun == ["ann", "bob", "eve", "dan"], "before the second of eve"
    for who in ("bob", "dan", "eve", "eve"):
        reads.end(who)
    assert begun == ["ann", "bob", "eve", "dan", "eve", "eve"]
    assert len(reads) == 0


def test_what_begins_may_end_at_once() -> None:
    reads, begun = Reads(1), list[int]()
    reads.begin("ann", lambda: None)
    for number in range(100):

        def begin(number: int = number) -> None:
            begun.append(number)
            reads.end(number)

        reads.begin(number, begin)
    reads.end("ann")
    assert begun == list(range(100))


def test_thousands_of_groups_that_are_behind_read_one_after_the_other(tmp_path: Any) -> None:
    """All belong to one client, which gets what it has missed."""
    with local(tmp_path / "log", limits=Limits(tail_bytes_max=1)) as here:
        catchup = here.broker.catchup
        most, history = [0], here.broker.history
        read: Any = history.read

        def counted(wants: Any, position: Any) -> Any:
            most[0] = max(most[0], len(catchup._reads))
            return read(wants, position)

        history.read = counted
        client = Talk(here.port)
        here.clients.append(client)
        client.connect("c", clean=False, expiry=1000)
        for first in range(0, 1000, 250):
            client.subscribe(*(f"$share/g{n}/t/{n}" for n in range(first, first + 250)), qos=1)
        client.close()
        until(lambda: here.do(lambda: here.broker.store.sessions["c"].connection is None))
        publisher = Talk(here.port)
        here.clients.append(publisher)
        publisher.connect("p")
        for n in range(0, 1000, 100):
            publisher.publish(f"t/{n}", b"x", 1)
        again = Talk(here.port)
        here.clients.append(again)
        again.connect("c", clean=False, expiry=1000)
        assert {message.topic for message in again.take(10)} == {f"t/{n}" for n in range(0, 1000, 100)}
        until(lambda: here.do(lambda: all(group.live for group in here.broker.groups.all.values())))
        assert most[0] <= 2, "the client's own cursor, and its groups"
        assert len(catchup._reads) == 0


def test_a_group_caches_few_verdicts() -> None:
    """Thousands of groups may be behind at once."""
    group = Group("$share/g/+", "+", Position(0, 0))
    for number in range(10_000):
        assert group.verdict(b"%d" % number, Position(0, 0)) is not None
    assert len(group._cache) <= 64


def test_topics_that_no_filter_can_match_are_not_looked_up() -> None:
    cursor, topics = Cursor("", None, Position(0, 0)), [b"%d" % number for number in range(1000)]
    cursor.add("7", Sub(0))
    assert cursor.candidates(topics, range(5, 1000)) == [7]
    assert cursor.candidates(topics, range(8, 1000)) == []
    assert cursor.wants(frozenset(topics))
    assert not cursor.wants(frozenset(topics[8:]))
    cursor.add("+", Sub(0))
    assert cursor.candidates(topics, range(1000)) == range(1000)
    assert cursor.wants(frozenset(topics[8:]))


def test_a_broker_that_stops_reads_nothing_more(tmp_path: Any, caplog: Any) -> None:
    with local(tmp_path / "log", limits=Limits(tail_bytes_max=1)) as here:
        client = Talk(here.port)
        here.clients.append(client)
        client.connect("c")
        for number in range(10):
            client.publish(f"t/{number}", b"x", 1)
        for first in range(0, 500, 250):
            client.subscribe(*(f"$share/g{n}/t/+" for n in range(first, first + 250)), qos=1)

        def fall_behind() -> None:
            for group in here.broker.groups.all.values():
                group.fall_behind(Position(0, 0))
                here.broker.catchup.resume(group)

        here.do(fall_behind)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
