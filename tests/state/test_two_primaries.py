"""Two primaries of one log, in every way that one can get them, at each kind of copy.

One of them gets acknowledgements, the other is told, and everything that was acknowledged is in a restore.
"""

from __future__ import annotations

import contextlib
import copy
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

from forelog.copies.addresses import make_target
from forelog.copies.store.fetch import fetch
from forelog.errors import NotReplicated, Superseded
from forelog.state import Identity, PersistentDict, ReplicaServer
from tests.state import faulty
from tests.state.keeping import Follows, restored, wait_until
from tests.state.test_remote_servers import s3

COPY = "the copy"


class Place(NamedTuple):
    """Somewhere to keep a copy, and how to read it."""

    kind: str
    where: str
    found: Callable[[], dict]
    options: dict


@contextlib.contextmanager
def directory(folder: Path) -> Iterator[Place]:
    yield Place("directory", str(folder / "copy"), lambda: restored(folder / "copy"), {})


@contextlib.contextmanager
def replica(folder: Path) -> Iterator[Place]:
    with ReplicaServer(str(folder / "copies")) as server:
        where = f"replica://127.0.0.1:{server.address[1]}/things"
        yield Place("replica", where, lambda: restored(folder / "copies/things"), {})


@contextlib.contextmanager
def store(folder: Path, where: str = "", options: dict | None = None) -> Iterator[Place]:
    where = where or f"memory://two-primaries-{folder.name}/things"
    asked = {"interval": 0, "storage_options": options}

    def found() -> dict:
        fetch(where, folder / "fetched", options)
        try:
            with PersistentDict(str(folder / "fetched")) as things:
                return dict(things)
        finally:
            shutil.rmtree(folder / "fetched")

    yield Place("store", where, found, asked)


@contextlib.contextmanager
def plain_store(folder: Path) -> Iterator[Place]:
    """One that writes a name twice if it is asked to."""
    faulty.empty()
    with store(folder, "faulty://two/primaries") as place:
        yield place
    faulty.empty()


@contextlib.contextmanager
def bucket(folder: Path) -> Iterator[Place]:
    (folder / "server").mkdir()
    with s3(folder / "server") as server, store(folder, server.where, server.options) as place:
        yield place


KINDS = {"directory": directory, "replica": replica, "store": store, "plain store": plain_store, "s3": bucket}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def place(request, tmp_path):
    with request.param(tmp_path) as found:
        yield found


class Acknowledged(dict):
    """What a primary was told that the copy has synced."""

    def put(self, things: PersistentDict, *keys: object, value: object = 0) -> None:
        for key in keys:
            things[key] = [value, "x" * 50]
            self[key] = things[key]


def keep(things: PersistentDict, place: Place, *, rotate: bool = True) -> None:
    things.log.add_destination(
        place.where, name=COPY, ack="synced", ack_timeout=60, rotate=rotate, **place.options
    )
    wait_until(lambda: things.log.health().destinations[COPY].state != "connecting")


def let_go(things: PersistentDict) -> None:
    things.log.remove_destination(COPY)


def assert_told(things: PersistentDict, match: str, *, opening: Identity | None = None) -> None:
    """It gets no acknowledgement, and it is told why, with the names of both."""
    wait_until(lambda: not things.log.health().destinations[COPY].healthy, 10)
    for number in range(3):
        with pytest.raises((NotReplicated, Superseded)):
            things["not", "acknowledged", number] = True
    wait_until(lambda: re.search(match, things.log.health().destinations[COPY].error), 5)
    health = things.log.health().destinations[COPY]
    assert health.state in ("unhealthy", "superseded")
    if opening is not None:
        assert things.log.identity.opening in health.error
        assert opening.opening in health.error


def assert_refused(things: PersistentDict, first: PersistentDict, place: Place, match: str) -> None:
    """A primary is refused beside another one that is at work, and goes on to be."""
    if place.kind == "directory":  # only one process can have it
        keep(things, place)
        assert_told(things, "is in use")
        let_go(things)
        let_go(first)
    keep(things, place)
    assert_told(things, match, opening=first.log.identity)
    let_go(things)
    if place.kind == "directory":
        keep(first, place)


def open_log(path: object, **options) -> PersistentDict:
    return PersistentDict(str(path), rotate_bytes=1 << 30, **options).open()


@contextlib.contextmanager
def opened(path: object, **options) -> Iterator[PersistentDict]:
    with contextlib.closing(open_log(path, **options)) as things:
        yield things


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


# -- the ways


def a_directory_copied_while_it_was_in_use(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        other = copied(folder / "log", folder / "other")
        acked.put(production, *range(10, 20))
        with opened(other) as second:
            assert second.log.identity.epoch > production.log.identity.epoch
            assert_refused(second, production, place, "has what this log lacks")
            second.rotate()
            second.rotate()
            assert_refused(second, production, place, "has what this log lacks")
        acked.put(production, *range(20, 30))


def a_directory_copied_when_nothing_came_after(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        other = copied(folder / "log", folder / "other")
        if place.kind == "directory":
            let_go(production)
        with opened(other) as second:
            keep(second, place)
            acked.put(second, *range(10, 20))
            if place.kind == "directory":
                keep(production, place)
                assert_told(production, "is in use")
                let_go(production)
                let_go(second)
                keep(production, place)
            with contextlib.suppress(NotReplicated, Superseded):
                production["too"] = "late"
            assert_told(production, "is over", opening=second.log.identity if place.kind == "directory" else None)
            if place.kind == "directory":
                let_go(production)
                keep(second, place)
            acked.put(second, *range(20, 30))
    with opened(folder / "log") as production:  # and it isn't let in as the same epoch, or a higher one
        keep(production, place)
        assert_told(production, r"another primary of epoch 1\.2")
    for _ in range(3):
        open_log(folder / "log").close()
    with opened(folder / "log") as production:
        keep(production, place)
        assert_told(production, "isn't in this log's history")


def a_backup_with_fewer_runs(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
    backup = copied(folder / "log", folder / "backup")
    for start in (10, 20):
        with opened(folder / "log") as production:
            keep(production, place)
            acked.put(production, *range(start, start + 5))
    with opened(folder / "log") as production:
        keep(production, place)
        with opened(backup) as second:
            assert_refused(second, production, place, r"epoch 1\.2 is over: 1\.4 has written")
        acked.put(production, *range(30, 40))


def a_backup_with_the_same_run(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
    backup = copied(folder / "log", folder / "backup")
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10, 20))
        with opened(backup) as second:
            assert second.log.identity.epoch == production.log.identity.epoch
            assert_refused(second, production, place, r"another primary of epoch 1\.2")
        acked.put(production, *range(20, 30))


def a_backup_with_more_runs(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
    backup = copied(folder / "log", folder / "backup")
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10, 20))
        for _ in range(4):
            open_log(backup).close()
        with opened(backup) as second:
            assert second.log.identity.epoch == (1, 6)
            assert_refused(second, production, place, "isn't in this log's history")
        acked.put(production, *range(20, 30))


def a_backup_opened_once_while_production_is_stopped(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        backup = copied(folder / "log", folder / "backup")
        acked.put(production, *range(10, 20))
        first = production.log.identity
    with opened(backup) as second:
        keep(second, place)
        assert_told(second, "has what this log lacks", opening=first)
    assert acked.items() <= place.found().items()
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(20, 30))


def a_backup_that_somebody_promoted(folder: Path, place: Place, acked: Acknowledged) -> None:
    """The one way to have less in the copy than was acknowledged: because somebody said so."""
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        backup = copied(folder / "log", folder / "backup")
        Acknowledged().put(production, *range(10, 20))
        if place.kind == "directory":
            let_go(production)
        with opened(backup, promote=True) as second:
            keep(second, place)
            acked.put(second, *range(20, 30))
            assert place.found().keys() == acked.keys()
        with contextlib.suppress(NotReplicated, Superseded):
            production["too"] = "late"
        if place.kind == "directory":
            keep(production, place)
        assert_told(production, r"epoch 1\.1 is over")
    with opened(backup) as second:
        keep(second, place)
        acked.put(second, *range(30, 40))


def a_copy_that_was_promoted_and_the_old_primary_comes_back(
    folder: Path, place: Place, acked: Acknowledged
) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
    if place.kind == "replica":
        follows = Follows(place.where, folder / "new")
        follows.follower.open()
        wait_until(lambda: acked.items() <= follows.state.items())
        follows.follower.promote(follows.enumerate).close()
    elif place.kind == "directory":
        copied(folder / "copy", folder / "new")
        open_log(folder / "new", promote=True).close()
    else:
        fetch(place.where, folder / "new", place.options["storage_options"])
        open_log(folder / "new", promote=True).close()
    with opened(folder / "new") as new:
        assert new.log.identity.epoch == (2, 2)
        keep(new, place)
        acked.put(new, *range(10, 20))
        with opened(folder / "log") as old:
            assert_refused(old, new, place, r"epoch 1\.2 is over")
        acked.put(new, *range(20, 30))


def a_cloned_machine(folder: Path, place: Place, acked: Acknowledged) -> None:
    """Two processes with the same word, of which the second was cloned when nothing was under way."""
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        with clone(production, folder / "other") as second:
            assert second.log.identity == production.log.identity
            if place.kind == "directory":
                keep(second, place)
                assert_told(second, "is in use")
                let_go(second)
            acked.put(production, *range(10, 20))
            if place.kind == "directory":
                let_go(production)
            keep(second, place)
            second_told(second)
            let_go(second)
            if place.kind == "directory":
                keep(production, place)
            acked.put(production, *range(20, 30))
            second.rotate()
            second.rotate()
            if place.kind == "directory":
                let_go(production)
            keep(second, place, rotate=False)
            second_told(second)


def second_told(second: PersistentDict) -> None:
    assert_told(second, "has what 1.1-[0-9a-f]* hasn't written, up to .*: two processes", opening=None)


def a_cloned_machine_that_takes_over(folder: Path, place: Place, acked: Acknowledged) -> None:
    """The one that has nothing to say meanwhile is the one that is told."""
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        if place.kind == "directory":
            let_go(production)
        with clone(production, folder / "other") as second:
            keep(second, place, rotate=False)
            acked.put(second, *range(10, 20))
            if place.kind == "directory":
                let_go(second)
                keep(production, place, rotate=False)
            with contextlib.suppress(NotReplicated, Superseded):
                production["too"] = "late"
            assert_told(production, "two processes|another process writes there")
            if place.kind == "directory":
                let_go(production)
                keep(second, place, rotate=False)
            acked.put(second, *range(20, 30))


def a_cloned_machine_that_was_started_again(folder: Path, place: Place, acked: Acknowledged) -> None:
    """It has more than the copy, of the same opening, but not the same."""
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        with clone(production, folder / "other") as second:
            for key in range(100):
                second[key] = ["another", "y" * 50]
        acked.put(production, *range(10, 20))
        with opened(folder / "other") as second:
            assert second.log.lineage.openings[-1].word == production.log.identity.word
            if place.kind == "directory":
                let_go(production)
            keep(second, place, rotate=False)
            assert_told(second, "has what this log lacks", opening=production.log.identity)
            let_go(second)
            if place.kind == "directory":
                keep(production, place)
            acked.put(production, *range(20, 30))


@contextlib.contextmanager
def clone(things: PersistentDict, path: Path) -> Iterator[PersistentDict]:
    """The same process again: a copy of its files, its state and its identity."""
    copied(Path(things.log.path), path)
    second = PersistentDict(str(path), rotate_bytes=1 << 30)
    second.log._next_lineage = lambda found: things.log.lineage
    with contextlib.closing(second.open()):
        for place, sent in things.log.transfers._all:
            vars(second.log.transfers.new(place)).update(copy.deepcopy(vars(sent)))
        yield second


def a_log_that_was_cut(folder: Path, place: Place, acked: Acknowledged) -> None:
    """As by a power loss, under sync="os": what only the copy has is not thrown away."""
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        before = {path.name: path.stat().st_size for path in (folder / "log").glob("*.log")}
        acked.put(production, *range(10, 20))
        first = production.log.identity
    for name, size in before.items():
        with open(folder / "log" / name, "r+b") as file:
            file.truncate(size)
    with opened(folder / "log") as production:
        assert len(production) == 10
        keep(production, place)
        assert_told(production, "has what this log lacks", opening=first)
        assert acked.items() <= place.found().items()
    with opened(folder / "log", promote=True) as production:  # or the copy would be, which has more
        keep(production, place)
        for key in range(10, 20):
            del acked[key]
        acked.put(production, *range(20, 30))


def a_promotion_that_broke_off_before_the_copy_was_whole(folder: Path, place: Place, acked: Acknowledged) -> None:
    """The copy is still the old primary's then, and takes nothing from it any more."""
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
        backup = copied(folder / "log", folder / "backup")
        Acknowledged().put(production, *range(10, 20))
    for promote in (True, False):
        with opened(backup, promote=promote) as second:
            target = make_target(
                place.where, second.log, synced=True, storage_options=place.options.get("storage_options")
            )
            for _ in range(2):
                target.connect()
                target.close()
            assert place.found().keys() == set(range(20))
            if not promote:
                keep(second, place)
                acked.put(second, *range(20, 30))
    with opened(folder / "log") as production:
        keep(production, place)
        assert_told(production, r"epoch 1\.2 is over")


def two_copies_that_were_promoted(folder: Path, place: Place, acked: Acknowledged) -> None:
    with opened(folder / "log") as production:
        keep(production, place)
        acked.put(production, *range(10))
    others = [copied(folder / "log", folder / name) for name in ("one", "two")]
    with opened(others[0], promote=True) as one:
        keep(one, place)
        acked.put(one, *range(10, 20))
        with opened(others[1], promote=True) as two:
            assert_refused(two, one, place, r"another primary of epoch 2\.1")
        with opened(others[1]) as two:
            assert_refused(two, one, place, "isn't in this log's history")
        acked.put(one, *range(20, 30))


WAYS = [
    a_directory_copied_while_it_was_in_use,
    a_directory_copied_when_nothing_came_after,
    a_backup_with_fewer_runs,
    a_backup_with_the_same_run,
    a_backup_with_more_runs,
    a_backup_opened_once_while_production_is_stopped,
    a_backup_that_somebody_promoted,
    a_copy_that_was_promoted_and_the_old_primary_comes_back,
    a_cloned_machine,
    a_cloned_machine_that_takes_over,
    a_cloned_machine_that_was_started_again,
    a_log_that_was_cut,
    a_promotion_that_broke_off_before_the_copy_was_whole,
    two_copies_that_were_promoted,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_of_two_primaries_one_is_told_and_nothing_that_was_acknowledged_is_missing(tmp_path, place, way):
    acked = Acknowledged()
    way(tmp_path, place, acked)
    found = place.found()
    assert {key: found.get(key) for key in acked} == acked
