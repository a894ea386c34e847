"""Where a copy may be kept, and what happens when that place is taken away."""

from __future__ import annotations

import os

import pytest

from forelog import Stream
from forelog.errors import NotReplicated, ReplicaError
from forelog.state import PersistentDict, ReplicaServer
from tests.state.keeping import Follows, converged, restored, wait_until


@pytest.fixture
def things(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        yield things


def refused(things: PersistentDict, where: object, kind: type[Exception], why: str) -> None:
    before = things.stats().rotations
    with pytest.raises(kind, match=why):
        things.log.add_destination(str(where))
    assert not things.log.health().destinations
    assert things.stats().rotations == before, "nothing was done for it"


def test_a_directory_that_is_a_log_is_no_place_for_a_copy(things, tmp_path):
    with PersistentDict(str(tmp_path / "bank")) as bank:
        bank["balance"] = 1000
    with Stream(str(tmp_path / "orders")).appender() as orders:
        orders.append(b"chips")
    for name in ("bank", "orders"):
        before = sorted(os.listdir(tmp_path / name))
        refused(things, tmp_path / name, ReplicaError, "is a log itself")
        refused(things, f"file://{tmp_path}/{name}", ReplicaError, "is a log itself")
        assert sorted(os.listdir(tmp_path / name)) == before
    with PersistentDict(str(tmp_path / "bank")) as bank:
        assert dict(bank) == {"balance": 1000}


def test_a_replica_keeps_no_copy_in_a_directory_that_is_a_log(things, tmp_path):
    with PersistentDict(str(tmp_path / "bank")) as bank:
        bank["balance"] = 1000
    with ReplicaServer(str(tmp_path)) as server:
        name = things.log.add_destination(f"replica://127.0.0.1:{server.address[1]}/bank")
        wait_until(lambda: "is a log itself" in (things.log.health().destinations[name].error or ""))
    with PersistentDict(str(tmp_path / "bank")) as bank:
        assert dict(bank) == {"balance": 1000}


def test_a_destination_that_can_never_be_one_is_refused_at_once(things, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    for where, why in (
        ("", "is empty"),
        ("file://", "is empty"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "log", "where the log itself is"),
        ("log/", "where the log itself is"),
        ("link", "where the log itself is"),
        (tmp_path / "log" / "copy", "inside of the log"),
    ):
        refused(things, where, ValueError, why)


def test_a_copy_is_no_destination_of_itself(things, tmp_path):
    things.log.add_destination(str(tmp_path / "copy"), ack="synced")
    things["b"] = 2
    things.close()
    with PersistentDict(str(tmp_path / "copy"), promote=True) as copy:
        refused(copy, tmp_path / "copy", ValueError, "where the log itself is")
        refused(copy, tmp_path / "copy" / "b", ValueError, "inside of the log")
    with PersistentDict(str(tmp_path / "a")) as data:
        refused(data, tmp_path, ValueError, "where the log itself is")


def test_a_follower_whose_directory_was_removed_keeps_its_state_and_gets_a_new_copy(things, tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server:
        where = f"replica://127.0.0.1:{server.address[1]}/things"
        things.log.add_destination(where, ack="synced")
        follows = Follows(where, tmp_path / "follower")
        with follows.follower:
            wait_until(lambda: follows.state == {"a": 1})
            resets = follows.resets
            (tmp_path / "follower").rename(tmp_path / "elsewhere")
            things["b"] = 2
            wait_until(lambda: follows.resets > resets and follows.state == {"a": 1, "b": 2})
        assert restored(tmp_path / "follower") == {"a": 1, "b": 2}


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("served", [False, True])
def test_a_copy_whose_directory_was_taken_away_acknowledges_nothing_and_is_made_anew(
    things, tmp_path, served, replaced
):
    with ReplicaServer(str(tmp_path / "copies")) as server:
        place = tmp_path / "copies" / "things"
        where = f"replica://127.0.0.1:{server.address[1]}/things" if served else str(place)
        things.log.add_destination(where, name="copy", ack="synced")
        things["b"] = 2
        place.rename(tmp_path / "elsewhere")
        if replaced:
            place.mkdir(exist_ok=True)
        try:
            things["c"] = 3
        except NotReplicated as error:
            assert "removed or replaced" in str(error)  # noqa: PT017
        else:
            assert restored(place)["c"] == 3, "it was acknowledged"
        wait_until(lambda: converged(things, "copy"))
        things["d"] = 4
        assert restored(place) == dict(things)
