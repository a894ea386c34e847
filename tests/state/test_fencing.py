"""Who takes a log's place shuts the one before out, wherever that happens; and nobody else does."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from forelog.copies.slots import read_identity, whole_slot
from forelog.copies.wire import Address, Kind, identity_fields, parse_place
from forelog.errors import ReplicaError, Superseded
from forelog.log.position import Position
from forelog.state import Follower, PersistentDict, ReplicaServer
from forelog.testing import CrashDisk
from tests.state.keeping import Follows, converged, hello, wait_until
from tests.state.test_slots import catch_up, twin


def state_of(things: PersistentDict, name: str) -> str:
    return things.log.health().destinations[name].state


def is_refused(things: PersistentDict, where: str, **options) -> bool:
    """Whether a log whose place was taken is told so, and stops."""
    name = things.log.add_destination(where, **options)
    wait_until(lambda: state_of(things, name) not in ("connecting", "live") or converged(things, name))
    if state_of(things, name) != "superseded":
        return False
    with pytest.raises(Superseded, match="is over"):
        things["too"] = "late"
    return True


@pytest.fixture
def copied(tmp_path):
    """The path of a log, and of a copy of it."""
    log, copy = str(tmp_path / "log"), str(tmp_path / "copy")
    with PersistentDict(log) as things:
        things["a"] = 1
        things.log.add_destination(copy, ack="synced")
        things["b"] = 2
    return log, copy


@pytest.mark.parametrize("by_slot", [False, True])
def test_a_copy_that_was_promoted_where_it_is_takes_nothing_from_the_old_primary(copied, by_slot):
    log, copy = copied
    with PersistentDict(whole_slot(copy) if by_slot else copy, promote=True) as new:
        new["promoted"] = 3
        assert new.log.identity.epoch == (2, 1)
    with PersistentDict(log) as old:
        assert is_refused(old, copy)
    with PersistentDict(copy) as new:
        assert dict(new) == {"a": 1, "b": 2, "promoted": 3}
        assert new.log.identity.epoch == (2, 2)


def test_a_primary_that_is_still_open_is_refused_by_a_copy_that_was_opened_as_a_log(tmp_path):
    copy = str(tmp_path / "copy")
    with PersistentDict(str(tmp_path / "log")) as old:
        old["a"] = 1
        name = old.log.add_destination(copy)
        wait_until(lambda: converged(old, name))
        old.log.remove_destination(name)
        with PersistentDict(copy) as new:
            new["b"] = 2
        assert is_refused(old, copy)
    with PersistentDict(copy) as new:
        assert dict(new) == {"a": 1, "b": 2}


def test_a_replica_whose_copy_was_promoted_while_it_was_stopped_refuses_the_old_primary(tmp_path):
    log, copies = str(tmp_path / "log"), str(tmp_path / "copies")
    with ReplicaServer(copies) as server, PersistentDict(log) as things:
        things.log.add_destination(f"replica://127.0.0.1:{server.address[1]}/things", ack="synced")
        things["a"] = 1
    with PersistentDict(f"{copies}/things", promote=True) as new:
        new["promoted"] = 2
    with ReplicaServer(copies) as server, PersistentDict(log) as old:
        assert is_refused(old, f"replica://127.0.0.1:{server.address[1]}/things", ack="synced")
    with PersistentDict(f"{copies}/things") as new:
        assert dict(new) == {"a": 1, "promoted": 2}


def test_a_promotion_is_younger_than_any_that_the_copy_was_told_of(tmp_path, copied):
    with ReplicaServer(str(tmp_path)) as server:
        hello(Address("127.0.0.1", server.address[1], "copy"), "promote").close()  # somebody else was to take over
    with PersistentDict(copied[1], promote=True) as new:
        assert new.log.identity.epoch == (3, 1)


def test_no_update_of_a_promoted_copy_survives_a_crash_that_its_epoch_doesnt(tmp_path, crash_count):
    disk = CrashDisk()
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        catch_up(things, disk)
    disk = twin(disk)
    with PersistentDict("copy", files=disk, promote=True, sync="always") as new:
        new["promoted"] = 2
    met = 0
    for state in disk.states_everywhere(limit=4):
        crash_count(state)
        fenced = read_identity("copy", state.disk).term == 2
        with PersistentDict("copy", files=state.disk) as found:
            met += "promoted" in found
            assert fenced or "promoted" not in found
    assert met


class Late(Follower):
    """It follows when it is told to."""

    may_follow: threading.Event

    def _follow(self) -> None:
        self.may_follow.wait()
        super()._follow()


def test_a_promotion_waits_for_what_the_replica_has_also_while_that_is_being_made_anew(tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server:
        address = Address("127.0.0.1", server.address[1], "things")
        follows = Follows(str(address), tmp_path / "follower")
        with PersistentDict(str(tmp_path / "log")) as things:
            things.log.add_destination(str(address), ack="synced")
            things["first"] = 0
            with follows.follower:
                wait_until(lambda: follows.state == {"first": 0})
            for number in range(50):
                things[number] = "acknowledged"
            who = things.log.identity
        primary = hello(address, "primary", **identity_fields(who))
        primary.send(Kind.RESTART)  # and it dies before all of it was sent again
        primary.send(Kind.FLUSH, b"\1")
        assert parse_place(primary.expect(Kind.ACK)) == Position(0, 0)
        follower = Late(str(address), str(tmp_path / "follower"), replay=follows.replay, reset=follows.reset)
        follower.may_follow = threading.Event()
        follower.open()
        promoted: list[Any] = []
        thread = threading.Thread(target=lambda: promoted.append(follower.promote(follows.enumerate, timeout=30)))
        thread.start()
        wait_until(lambda: server._logs["things"].slots.identity.term == 2)
        follower.may_follow.set()
        thread.join()
        primary.close()
        promoted[0].close()
        assert follows.state == {"first": 0} | dict.fromkeys(range(50), "acknowledged")


@pytest.mark.parametrize("kind", ["directory", "replica", "store"])
def test_a_destination_that_belongs_to_another_log_stops_nobody(tmp_path, kind):
    with ReplicaServer(str(tmp_path / "copies")) as server:
        where = {
            "directory": str(tmp_path / "copy"),
            "replica": f"replica://127.0.0.1:{server.address[1]}/things",
            "store": f"memory://fencing-{tmp_path.name}/things",
        }[kind]
        with PersistentDict(str(tmp_path / "one")) as one:
            one.log.add_destination(where, name="copy", interval=0)
            wait_until(lambda: converged(one, "copy"))
        with PersistentDict(str(tmp_path / "two")) as two:
            two.log.add_destination(where, name="copy", interval=0)
            wait_until(lambda: "is a copy of log" in (two.log.health().destinations["copy"].error or ""))
            assert state_of(two, "copy") == "unhealthy"
            two["goes"] = "on"
            two.log.remove_destination("copy")
            two.log.add_destination(where, name="copy", ack="received", interval=0)
            with pytest.raises(ReplicaError, match="is a copy of log"):
                two["waits"] = "for it"
