"""A state in another process: through restarts, replays that break off, and promotions."""

from __future__ import annotations

from collections import Counter

import pytest

from forelog.copies.wire import Address, identity_fields
from forelog.errors import LockTimeout, NotReplicated, ReplicaError
from forelog.files import OSFile
from forelog.log.position import Position
from forelog.state import PersistentDict, ReplicaServer, StateLog
from tests.state.keeping import Follows, Replica, converged, hello, restored, wait_until


def test_a_follower_has_the_state_and_keeps_it_through_restarts_of_everyone(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    follows = Follows(replica.url(), tmp_path / "follower")
    with PersistentDict(str(tmp_path / "log")) as things, follows.follower:
        name = things.log.add_destination(replica.url())
        things.update({number: number for number in range(100)})
        del things[50]
        follows.follower.wait_for(things.log.update(["x", 1]), 30)
        things["x"] = 1
        replica.kill()
        things["y"] = 2
        replica = children(Replica, tmp_path / "replica", port=replica.port)
        follows.follower.wait_for(things.log.update(["z", 3]), 30)
        things["z"] = 3
        things.rotate()
        wait_until(lambda: converged(things, name))
        wait_until(lambda: follows.state == dict(things))
        kept = dict(things)
    again = Follows(replica.url(), tmp_path / "follower")
    again.follower.open()
    assert again.state == kept, "from its own copy, at once"
    again.follower.close()


def test_a_follower_that_missed_too_much_begins_again(tmp_path):
    with ReplicaServer(str(tmp_path / "replica")) as server:
        where = f"replica://127.0.0.1:{server.address[1]}/things"
        follows = Follows(where, tmp_path / "follower")
        with PersistentDict(str(tmp_path / "log")) as things:
            name = things.log.add_destination(where)
            things["a"] = 1
            with follows.follower:
                wait_until(lambda: follows.state == {"a": 1})
            del things["a"]
            for number in range(3):
                things["b"] = number
                things.rotate()
            wait_until(lambda: converged(things, name))
            again = Follows(where, tmp_path / "follower")
            with again.follower:
                wait_until(lambda: again.state == {"b": 2})


def test_a_follower_without_its_replica_is_promoted_only_by_force(tmp_path):
    with ReplicaServer(str(tmp_path / "replica")) as server:
        where = f"replica://127.0.0.1:{server.address[1]}/things"
        follows = Follows(where, tmp_path / "follower")
        follows.follower.open()
        with PersistentDict(str(tmp_path / "log")) as things:
            things.log.add_destination(where)
            things["a"] = 1
            wait_until(lambda: follows.state == {"a": 1})
    with pytest.raises(ReplicaError):
        follows.follower.promote(follows.enumerate, timeout=1)
    with follows.follower.promote(follows.enumerate, timeout=1, force=True) as log:
        log.update(["b", 2])
        assert log.identity.term == 2
    assert restored(tmp_path / "follower") == {"a": 1, "b": 2}


class Fails(Follows):
    """A follower whose app raises while it is told to, for one key, and counts what it has replayed."""

    def __init__(self, where: str, path, key: str) -> None:
        super().__init__(where, path)
        self.key = key
        self.broken = True
        self.counts: Counter = Counter()

    def replay(self, event) -> None:
        if self.broken and event[0] == self.key:
            raise RuntimeError("not now")
        self.counts[event[0]] += 1
        super().replay(event)

    def reset(self) -> None:
        super().reset()
        self.counts.clear()


@pytest.fixture
def kept(tmp_path):
    """A dict, a replica of it, and where that is."""
    with ReplicaServer(str(tmp_path / "replica")) as server, PersistentDict(str(tmp_path / "log")) as things:
        where = f"replica://127.0.0.1:{server.address[1]}/things"
        things.log.add_destination(where, ack="received")
        yield things, where


def test_an_event_whose_replay_raises_is_not_passed_over(kept, tmp_path):
    things, where = kept
    things["first"] = 1
    follows = Fails(where, tmp_path / "follower", "k5")
    with follows.follower as follower:
        follower.wait_for(Position(1, 0), 30)
        wait_until(lambda: follows.state == dict(things))
        positions = [things.log.update([f"k{number}", number]) for number in range(10)]
        wait_until(lambda: follower.health().error)
        assert "RuntimeError: not now" in follower.health().error
        assert follower.health().state != "live"
        assert follower.position <= positions[5]
        with pytest.raises(NotReplicated, match="not now"):
            follower.wait_for(positions[5], 0)
        follows.broken = False
        follower.wait_for(positions[9], 30)
        assert follows.state == {"first": 1, **{f"k{number}": number for number in range(10)}}
        wait_until(lambda: follower.health().state == "live")
        assert follower.health().error is None


def test_a_new_copy_whose_replay_raises_is_replayed_again(kept, tmp_path):
    things, where = kept
    things.update(dict.fromkeys("abc", 1))
    follows = Fails(where, tmp_path / "follower", "b")
    with follows.follower as follower:
        wait_until(lambda: "not now" in (follower.health().error or ""))
        assert follower.position == Position(0, 0)
        follows.broken = False
        wait_until(lambda: follows.state == dict(things))
        wait_until(lambda: follower.health().state == "live")


def test_what_a_failed_sync_cut_from_a_followers_copy_is_not_replayed_twice(kept, tmp_path, monkeypatch):
    things, where = kept
    things["first"] = 1
    follows = Fails(where, tmp_path / "follower", "")
    with follows.follower as follower:
        wait_until(lambda: follows.state == dict(things))
        failing, sync = [follower._slots.whole._file], OSFile.sync

        def fail_once(file: OSFile) -> None:
            if file in failing:
                failing.clear()
                raise OSError(5, "Input/output error")
            sync(file)

        monkeypatch.setattr(OSFile, "sync", fail_once)
        things["second"] = 2
        wait_until(lambda: follows.state == dict(things))
        things.log._appender.roll()  # a copy syncs the segment before when the next one begins
        follower.wait_for(things.log.update(["third", 3]), 30)
        assert not failing
        assert follows.state == {"first": 1, "second": 2, "third": 3}
        assert follows.counts == {"first": 1, "second": 1, "third": 1}


def test_a_follower_that_cant_replay_is_not_promoted_and_shuts_nobody_out(kept, tmp_path):
    things, where = kept
    things["first"] = 1
    follows = Fails(where, tmp_path / "follower", "second")
    with follows.follower as follower:
        wait_until(lambda: follows.state == dict(things))
        things["second"] = 2
        wait_until(lambda: follower.health().error)
        for force in (False, True):
            with pytest.raises(NotReplicated, match=r"nothing to promote after 0\.1 s: RuntimeError: not now"):
                follower.promote(follows.enumerate, timeout=0.1, force=force)
        things["third"] = 3
        follows.broken = False
        with follower.promote(follows.enumerate, timeout=30) as log:
            log.rotate()
    assert restored(tmp_path / "follower") == {"first": 1, "second": 2, "third": 3}


@pytest.mark.parametrize("works", [True, False])
def test_a_replay_that_breaks_off_while_a_follower_is_promoted_is_made_up_for(kept, tmp_path, monkeypatch, works):
    things, where = kept
    things["first"] = 1
    follows = Fails(where, tmp_path / "follower", "second")
    with follows.follower as follower:
        wait_until(lambda: follows.state == dict(things))

        def fence(timeout: float, *, force: bool) -> None:
            things["second"] = 2
            wait_until(lambda: follower.health().error)
            follower._stop()
            follows.broken = not works

        monkeypatch.setattr(follower, "_fence", fence)
        if works:
            with follower.promote(follows.enumerate) as log:
                log.rotate()
            assert restored(tmp_path / "follower") == {"first": 1, "second": 2}
        else:
            with pytest.raises(ReplicaError, match="can't be promoted, its copy can't be replayed: not now"):
                follower.promote(follows.enumerate)
            follows.broken = False
            wait_until(lambda: follows.state == dict(things))


def test_a_follower_that_is_opened_again_begins_with_nothing(kept, tmp_path):
    things, where = kept
    things.update({"a": 1, "b": 2})
    follows = Fails(where, tmp_path / "follower", "")
    with follows.follower:
        wait_until(lambda: follows.state == dict(things))
    follows.state["left over"] = True
    follows.counts.clear()
    with follows.follower:
        assert follows.state == {"a": 1, "b": 2}
        assert set(follows.counts.values()) == {1}


def test_a_promotion_without_a_copy_to_promote_shuts_nobody_out(kept, tmp_path, monkeypatch):
    things, where = kept
    things["a"] = 1
    never_opened = Follows(where, tmp_path / "never opened")
    with pytest.raises(ReplicaError, match="is not open: open it before it is promoted"):
        never_opened.follower.promote(never_opened.enumerate, timeout=1)
    things["b"] = 2
    too_early = Follows(where, tmp_path / "too early")

    def follow() -> None:
        raise ReplicaError("it isn't reached")

    monkeypatch.setattr(too_early.follower, "_follow", follow)
    with too_early.follower, pytest.raises(ReplicaError, match=r"nothing to promote .* it isn't reached"):
        too_early.follower.promote(too_early.enumerate, timeout=0.1)
    things["c"] = 3


def test_followers_of_a_log_without_a_whole_copy_take_nobodys_place(tmp_path):
    with (
        ReplicaServer(str(tmp_path / "replica"), connections_max=3) as server,
        PersistentDict(str(tmp_path / "log")) as things,
    ):
        address = Address("127.0.0.1", server.address[1], "things")
        hello(address, "primary", **identity_fields(things.log.identity)).close()
        for _ in range(10):
            with pytest.raises(ReplicaError, match=r"no whole copy of this|connections here already|closed|reset"):
                hello(address, "follower")
        follows = Follows(str(address), tmp_path / "follower")
        with follows.follower:
            wait_until(lambda: "no whole copy" in (follows.follower.health().error or ""))
            things["a"] = 1
            things.log.add_destination(str(address))
            wait_until(lambda: follows.state == {"a": 1})


def test_a_copy_that_is_open_as_a_log_takes_nothing_from_a_primary(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        name = things.log.add_destination(str(tmp_path / "copy"))
        wait_until(lambda: converged(things, name))
        things.log.remove_destination(name)
        with PersistentDict(str(tmp_path / "copy"), promote=True):
            things.log.add_destination(str(tmp_path / "copy"), name=name)
            wait_until(lambda: things.log.health().destinations[name].error)
            assert "is in use" in things.log.health().destinations[name].error
    log = StateLog(str(tmp_path / "copy"), replay=lambda _: None, enumerate=lambda _: None)
    with log, pytest.raises(LockTimeout):
        PersistentDict(str(tmp_path / "copy")).open()
