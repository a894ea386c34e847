"""Copies as objects: every failure of the store, damage, hostile manifests, two primaries, and restoring."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

from forelog import kernel
from forelog.copies.addresses import source_directory
from forelog.copies.shipping import Target, ship
from forelog.copies.store import merge as merging
from forelog.copies.store.bucket import Bucket, shown
from forelog.copies.store.fetch import fetch
from forelog.copies.store.manifest import decode
from forelog.copies.store.target import StoreTarget
from forelog.errors import BadFrame, MissingExtra, ReplicaError, Superseded
from forelog.log.position import Position
from forelog.state import PersistentDict

from . import faulty
from .faulty import REFUSED, TORN, UNHEARD, faults

WHERE = "faulty://bank/prices"
FOLDER = "/bank/prices"


@pytest.fixture(autouse=True)
def _empty_store():
    faulty.empty()
    yield
    faulty.empty()


def send(data: Any, target: Target, *steps: Callable[[], object]) -> Position:
    """Connect, send everything, and again after each step; what was acknowledged last."""
    stopped, acknowledged, left = threading.Event(), [], list(steps)

    def rest() -> None:
        if left:
            left.pop(0)()
        else:
            stopped.set()

    try:
        ship(
            data.log,
            target,
            woken=threading.Event(),
            stopped=stopped.is_set,
            acknowledged=acknowledged.append,
            rest=rest,
        )
    finally:
        target.close()
    return acknowledged[-1]


def fetched(path: Path, where: str = WHERE) -> dict:
    fetch(where, path)
    with PersistentDict(str(path)) as data:
        return dict(data)


def manifests() -> list[str]:
    return sorted(name for name in faulty.objects() if name.endswith(".json"))


def openings() -> set[str]:
    return {name for name in faulty.objects() if name.startswith("opening-")}


def newest() -> dict:
    found = [json.loads(faulty.objects()[name]) for name in manifests()]
    return max(found, key=lambda body: (body["term"], body["run"], body["number"]))


def named(*names: str) -> set[str]:
    """Manifests, and the parts that they name."""
    found = set(names)
    for name in names:
        found |= {part.name for part in decode(name, faulty.objects()[name]).parts}
    return found


def segments(path: Path, *, of: set[str] | None = None) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*.log") if of is None or file.name in of}


# -- keeping it up, and restoring


def test_a_copy_restores_to_the_same_bytes_and_goes_on(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        target = StoreTarget(WHERE, data.log)
        data["a"] = 1
        end = send(data, target, lambda: data.__setitem__("b", 2), data.rotate, lambda: data.__setitem__("c", 3))
        seen = []
        found = fetch(WHERE, tmp_path / "again", progress=lambda done, total: seen.append((done, total)))
        assert found.position == end
        assert found.identity == data.log.identity
        assert seen[-1] == (found.byte_count, found.byte_count)
        again = segments(tmp_path / "again")
        assert again
        assert again == segments(tmp_path / "log", of=set(again))
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("log", "again")] == []
    with PersistentDict(str(tmp_path / "again"), promote=True) as data:
        assert dict(data) == {"a": 1, "b": 2, "c": 3}
        assert data.log.identity.term == 2
        data["d"] = 4
        send(data, StoreTarget(WHERE, data.log))
        assert fetched(tmp_path / "third") == {"a": 1, "b": 2, "c": 3, "d": 4}


def test_a_log_that_is_opened_again_goes_on_with_its_copy(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        data["a"] = "x" * 5000
        send(data, StoreTarget(WHERE, data.log))
    faults.clear()
    with PersistentDict(str(tmp_path / "log")) as data:
        data["b"] = 2
        send(data, StoreTarget(WHERE, data.log))
        sizes = [len(faulty.objects()[name]) for name in faults.names("pipe") if name.endswith(".part")]
        assert sum(sizes) < 1000, "only what is new is uploaded"
        assert fetched(tmp_path / "again") == dict(data)


def test_when_nothing_is_new_nothing_is_asked_of_the_store(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        data["a"] = 1
        send(data, StoreTarget(WHERE, data.log), faults.clear, lambda: None, lambda: None)
        assert faults.done == []


def test_what_is_collected_is_uploaded_in_parts_of_a_limited_size(tmp_path):
    with PersistentDict(str(tmp_path / "log"), segment_bytes=3 << 20, rotate_bytes=1 << 30) as data:
        for number in range(5000):
            data[number] = "x" * 1500
        send(data, StoreTarget(WHERE, data.log, part_bytes=2 << 20))
        lengths = [part["length"] for part in newest()["parts"]]
        assert len(lengths) > 5
        assert max(lengths) <= 2 << 20
        assert fetched(tmp_path / "again") == dict(data)


def test_small_parts_are_merged_and_the_merged_ones_removed(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        steps = [lambda number=number: data.__setitem__(number, number) for number in range(200)]
        send(data, StoreTarget(WHERE, data.log), *steps)
        assert len(newest()["parts"]) <= merging.MERGE_PARTS + 1
        assert named(*manifests()[-2:]) == set(faulty.objects()) - openings(), "nothing else is left there"
        assert openings() == {f"opening-{data.log.identity.opening}"}
        assert len(manifests()) == 2
        assert fetched(tmp_path / "again") == dict(data)


def test_parts_of_a_segment_that_the_log_has_no_more_are_left_as_they_are(tmp_path, monkeypatch):
    with PersistentDict(str(tmp_path / "log")) as data:

        def lose():
            for file in (tmp_path / "log").glob("*.log"):
                lost = bytearray(file.read_bytes())
                lost[-1] ^= 1
                wrong.append(bytes(lost))

        wrong: list[bytes] = []
        monkeypatch.setattr(
            merging, "read_exactly", lambda file, count, offset: wrong[-1][offset : offset + count]
        )
        steps = [lambda number=number: data.__setitem__(number, number) for number in range(30)]
        send(data, StoreTarget(WHERE, data.log), *[step for one in steps for step in (one, lose)])
        assert fetched(tmp_path / "again") == dict(data)


def test_a_copy_that_is_made_anew_replaces_the_old_one_only_when_it_is_whole(tmp_path):
    with PersistentDict(str(tmp_path / "log"), segment_bytes=1000, rotate_bytes=1 << 30) as data:
        data["a"] = 1
        send(data, StoreTarget(WHERE, data.log))
        for number in range(100):
            data[number] = "x" * 100
        data.rotate()  # and the copy has missed what was before: it begins again
        target = StoreTarget(WHERE, data.log, part_bytes=1000)
        faults.plan(17, REFUSED)
        with pytest.raises(ReplicaError, match="didn't answer"):
            send(data, target)
        uploaded = [name for name in faults.names("pipe") if name.endswith(".part")][:-1]
        assert len(uploaded) > 1
        assert fetched(tmp_path / "old") == {"a": 1}
        faults.plan(-1, REFUSED)
        send(data, target)
        assert not set(uploaded) & set(faults.names("pipe"))
        assert set(uploaded) <= named(manifests()[-1]), "what was uploaded before it failed is part of it"
        assert fetched(tmp_path / "new") == dict(data)


# -- every failure


def life(folder: Path, check: Callable[[dict | None], None], states: list[dict]) -> None:
    """A log's life in two openings, with its copy; whatever fails is tried again."""
    for opening in ("first", "second"):
        with PersistentDict(str(folder / "log"), segment_bytes=200, rotate_bytes=1 << 30) as data:
            target = StoreTarget(WHERE, data.log, part_bytes=150)

            def change(key, value, data=data):
                data[key] = value
                states.append(dict(data))

            changes = [partial(change, n % 3, f"{n} in the {opening}") for n in range(6)]
            steps: list[Callable[[], object]] = [*changes[:3], data.rotate, *changes[3:]]
            left = iter(steps)
            while not copied(data, target, left):
                check(None)
            check(dict(data))


def copied(data: PersistentDict, target: StoreTarget, steps: Iterator[Callable[[], object]]) -> bool:
    """Whether it was sent, with all steps that are left, and nothing failed."""
    try:
        send(data, target, *[lambda: next(steps, lambda: None)()] * 7)
    except Superseded:
        raise
    except ReplicaError:
        return False
    return True


def restored_or_none(path: Path) -> dict | None:
    try:
        return fetched(path)
    except ReplicaError as error:
        if "no whole copy" not in str(error):
            raise
        return None


@pytest.mark.parametrize(("mode", "count"), [(REFUSED, 1), (REFUSED, 3), (UNHEARD, 1), (TORN, 1)])
def test_after_every_failure_there_is_a_whole_copy_and_in_the_end_it_is_exact(tmp_path, monkeypatch, mode, count):
    monkeypatch.setattr(merging, "MERGE_PARTS", 3)
    for name in ("fsync", "fdatasync"):  # what fails here is the store: syncs of this disk would only take time
        monkeypatch.setattr(os, name, lambda fd: None)
    numbers = itertools.count()

    def run(fail_at: int) -> list[tuple[str, str]]:
        faulty.empty()
        faults.plan(fail_at, mode, count)
        folder = tmp_path / str(next(numbers))
        states: list[dict] = [{}]
        seen = [-1]

        def check(exactly: dict | None) -> None:
            fail, done = faults.fail_at, list(faults.done)
            faults.fail_at = -1
            found = restored_or_none(folder / f"copy-{next(numbers)}")
            if found is None:
                assert seen[0] < 0, "there was a copy before"
                assert exactly is None
            else:
                assert found in states
                index = max(number for number, state in enumerate(states) if state == found)
                assert index >= seen[0], "the copy went back in time"
                seen[0] = index
                assert exactly in (None, found)
            faults.fail_at, faults.done = fail, done

        life(folder, check, states)
        done = list(faults.done)
        faults.fail_at = -1
        with PersistentDict(str(folder / "log"), rotate_bytes=1 << 30) as data:
            send(data, StoreTarget(WHERE, data.log), *[lambda n=n: data.update(end=n) for n in range(3)])
            assert named(*manifests()) == set(faulty.objects()) - openings(), "what nobody needs has been removed"
            assert openings() == {f"opening-{data.log.identity.opening}"}
            assert len(manifests()) == 2
            fetch(WHERE, folder / "end")
            again = segments(folder / "end")
            assert again == segments(folder / "log", of=set(again))
            with PersistentDict(str(folder / "end")) as found:
                assert dict(found) == dict(data)
        shutil.rmtree(folder)
        return done

    operations = run(-1)
    assert len(operations) > 80
    for fail_at, (operation, _) in enumerate(operations):
        if mode == REFUSED or operation == "pipe" or (mode == UNHEARD and operation == "rm"):
            run(fail_at)


# -- damage, and what somebody else puts there


def copy_of_two_rounds(tmp_path: Path) -> None:
    with PersistentDict(str(tmp_path / "log")) as data:
        data["a"] = 1
        send(data, StoreTarget(WHERE, data.log), lambda: data.__setitem__("b", 2))


def rewritten(change: Callable[[dict], object], *, name: str | None = None) -> str:
    """The newest manifest, changed, with a checksum that is right."""
    body = newest()
    old = manifests()[-1]
    del body["sha256"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    body["sha256"] = hashlib.sha256(text).hexdigest()
    faulty.drop(old)
    faulty.put(f"{FOLDER}/{name or old}", json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    return old


HOSTILE = {
    "another version": lambda body: body.update(version=9),
    "another kind": lambda body: body.update(forelog="cat"),
    "other segments": lambda body: body.update(header="00"),
    "no parts": lambda body: body.update(parts=[]),
    "parts are no list": lambda body: body.update(parts=5),
    "a part is no part": lambda body: body.update(parts=[7]),
    "a gap": lambda body: body["parts"].pop(0),
    "the last is missing": lambda body: body["parts"].pop(),
    "twice the same": lambda body: body["parts"].append(body["parts"][-1]),
    "a negative length": lambda body: body["parts"][0].update(length=-5),
    "a length of nothing": lambda body: body["parts"][-1].update(length=0),
    "a huge length": lambda body: body["parts"][-1].update(length=2**62),
    "a number too large": lambda body: body["parts"][-1].update(length=2**80),
    "a true for a number": lambda body: body["parts"][0].update(offset=True),
    "a float for a number": lambda body: body["parts"][0].update(offset=8.0),
    "a segment of none": lambda body: body["parts"][0].update(segment=0),
    "a path for a word": lambda body: body["parts"][0].update(word="../../../../etc"),
    "a checksum too large": lambda body: body["parts"][0].update(crc32c=2**32),
    "a part that isn't there": lambda body: body["parts"][0].update(word="0" * 16),
    "no id": lambda body: body.pop("id"),
    "a short id": lambda body: body.update(id="00"),
    "another number": lambda body: body.update(number=body["number"] + 1),
    "another epoch": lambda body: body.update(term=9),
    "a snapshot that ends later": lambda body: body.update(end="000000001:999999"),
    "a snapshot that begins later": lambda body: body.update(begin=body["end"]),
    "a snapshot that is none": lambda body: body.update(begin=None),
    "another position": lambda body: body.update(position="000000009:8"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_cannot_be_right_is_passed_over_for_the_one_before(tmp_path, caplog, change):
    copy_of_two_rounds(tmp_path)
    name = rewritten(change)
    with caplog.at_level(logging.WARNING, "forelog"):
        assert fetched(tmp_path / "again") == {"a": 1}
    assert "is ignored" in caplog.text
    assert name in caplog.text


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"sha256":' + b"1" * 5000 + b"}"]
)
def test_what_is_no_manifest_at_all_is_passed_over(tmp_path, data):
    copy_of_two_rounds(tmp_path)
    faulty.put(f"{FOLDER}/{manifests()[-1]}", data)
    assert fetched(tmp_path / "again") == {"a": 1}


def test_a_manifest_with_any_byte_changed_or_cut_anywhere_is_passed_over(tmp_path):
    copy_of_two_rounds(tmp_path)
    name = manifests()[-1]
    right = faulty.objects()[name]
    chosen = random.Random(5)
    for _ in range(300):
        wrong = bytearray(right)
        at = chosen.randrange(len(wrong))
        wrong[at] ^= 1 << chosen.randrange(8)
        for hostile in (bytes(wrong), right[:at]):
            with pytest.raises(BadFrame):
                decode(name, hostile)


def test_a_copy_without_a_manifest_that_counts_is_refused_and_leaves_nothing(tmp_path):
    copy_of_two_rounds(tmp_path)
    for name in manifests():
        faulty.put(f"{FOLDER}/{name}", b"{}")
    with pytest.raises(ReplicaError, match="none of its 2 manifests is valid"):
        fetch(WHERE, tmp_path / "again")
    with pytest.raises(ReplicaError, match="there is no manifest"):
        fetch("faulty://bank/nothing", tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"log"}


def test_a_damaged_part_is_refused_with_its_name_and_leaves_nothing(tmp_path):
    copy_of_two_rounds(tmp_path)
    name = next(name for name in faulty.objects() if name.endswith(".part"))
    wrong = bytearray(faulty.objects()[name])
    wrong[len(wrong) // 2] ^= 4
    faulty.put(f"{FOLDER}/segments/{name}", bytes(wrong))
    with pytest.raises(BadFrame, match=f"{name} is damaged: its CRC-32C is"):
        fetch(WHERE, tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"log"}


def test_a_part_that_is_gone_or_cut_makes_its_manifest_one_that_does_not_count(tmp_path, caplog):
    copy_of_two_rounds(tmp_path)
    last = decode(manifests()[-1], faulty.objects()[manifests()[-1]]).parts[-1]
    faulty.put(f"{FOLDER}/{last.path}", faulty.objects()[last.name][:-1])
    assert fetched(tmp_path / "cut") == {"a": 1}
    faulty.drop(last.name)
    assert fetched(tmp_path / "gone") == {"a": 1}
    assert f"{last.name}, which is missing" in caplog.text


def test_bytes_that_are_no_records_are_refused_also_with_the_right_checksum(tmp_path):
    copy_of_two_rounds(tmp_path)
    last = decode(manifests()[-1], faulty.objects()[manifests()[-1]]).parts[-1]
    faulty.put(f"{FOLDER}/{last.path}", bytes(last.length))
    rewritten(lambda body: body["parts"][-1].update(crc32c=kernel.crc32c(bytes(last.length))))
    with pytest.raises(BadFrame, match="are not valid at byte"):
        fetch(WHERE, tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"log"}


def test_a_damaged_copy_is_made_right_by_its_log(tmp_path):
    copy_of_two_rounds(tmp_path)
    for name in faulty.objects():
        if name.endswith(".part"):
            faulty.drop(name)
    with PersistentDict(str(tmp_path / "log")) as data:
        send(data, StoreTarget(WHERE, data.log))
        assert fetched(tmp_path / "again") == {"a": 1, "b": 2}


def test_fetching_makes_no_log_where_something_is(tmp_path):
    copy_of_two_rounds(tmp_path)
    with pytest.raises(ReplicaError, match="there already and not empty"):
        fetch(WHERE, tmp_path / "log")
    (tmp_path / "empty").mkdir()
    assert fetched(tmp_path / "empty") == {"a": 1, "b": 2}


# -- who reads while it is written


def test_who_reads_a_copy_is_not_cut_off_by_the_next_round_and_begins_again_after_more(tmp_path):
    with PersistentDict(str(tmp_path / "log"), segment_bytes=300) as data:
        target = StoreTarget(WHERE, data.log)
        for number in range(100):
            data[number] = number
        send(data, target)

        def meanwhile(rounds: int) -> Callable[[int, int], None]:
            left = [1]

            def progress(done: int, total: int) -> None:
                if left:
                    left.pop()
                    for number in range(rounds):
                        data["new"] = number
                        data.rotate()
                        send(data, target)

            return progress

        before = dict(data)
        fetch(WHERE, tmp_path / "one", progress=meanwhile(1))
        fetch(WHERE, tmp_path / "more", progress=meanwhile(4))
        with PersistentDict(str(tmp_path / "one")) as found:
            assert dict(found) == before
        with PersistentDict(str(tmp_path / "more")) as found:
            assert dict(found) == dict(data)


# -- two primaries


def test_a_place_that_has_another_logs_copy_is_refused(tmp_path):
    copy_of_two_rounds(tmp_path)
    before = faulty.objects()
    with PersistentDict(str(tmp_path / "other")) as data, pytest.raises(ReplicaError, match="is a copy of log"):
        send(data, StoreTarget(WHERE, data.log))
    assert faulty.objects() == before


def test_an_old_primary_is_refused_when_it_connects_and_when_it_flushes(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as old:
        old["a"] = 1
        target = StoreTarget(WHERE, old.log)

        def promote() -> None:
            fetch(WHERE, tmp_path / "new")
            with PersistentDict(str(tmp_path / "new"), promote=True) as new:
                new["a"] = 2
                send(new, StoreTarget(WHERE, new.log))
            old["a"] = 3
            there.extend(manifests())

        there: list[str] = []
        with pytest.raises(Superseded, match=r"epoch 1\.1 is over: 2\.1 has written"):
            send(old, target, promote)
        assert manifests() == there, "it has written none"
        assert fetched(tmp_path / "found") == {"a": 2}
        with pytest.raises(Superseded, match=r"epoch 1\.1 is over"):
            send(old, StoreTarget(WHERE, old.log))
        assert fetched(tmp_path / "again") == {"a": 2}


@pytest.mark.parametrize("rounds", [1, 3])
def test_an_old_primary_at_work_until_a_younger_one_is_there_takes_nothing_from_it(tmp_path, rounds):
    with PersistentDict(str(tmp_path / "log")) as old:
        old["a"] = 1
        zombie = StoreTarget(WHERE, old.log)
        send(old, zombie)
        fetch(WHERE, tmp_path / "new")
        with PersistentDict(str(tmp_path / "new"), promote=True) as new:
            new["a"] = 2
            young = StoreTarget(WHERE, new.log)

            def meanwhile(operation: str, name: str) -> None:
                if operation == "pipe" and name.startswith("opening-2.1-"):
                    faults.before = None
                    for _ in range(rounds):  # three are enough to remove what the younger one has seen
                        old["late"] = True
                        if rounds > 1:
                            old.rotate()
                        send(old, zombie)

            faults.before = meanwhile
            send(new, young)
            assert fetched(tmp_path / "between") == {"a": 2}
            old["late"] = False
            with pytest.raises(Superseded):
                send(old, zombie)
            assert fetched(tmp_path / "found") == {"a": 2}


def test_an_old_primary_is_shut_out_as_soon_as_a_younger_one_has_connected(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as old:
        old["a"] = 1
        zombie = StoreTarget(WHERE, old.log)
        send(old, zombie)
        fetch(WHERE, tmp_path / "new")
        with PersistentDict(str(tmp_path / "new"), promote=True) as new:
            young = StoreTarget(WHERE, new.log)
            young.connect()
            young.close()
            old["late"] = True
            with pytest.raises(Superseded, match=r"epoch 1\.1 is over: 2\.1-[0-9a-f]{16} was promoted"):
                send(old, zombie)
            assert fetched(tmp_path / "found") == {"a": 1}


def test_what_an_old_primary_writes_after_its_last_look_is_not_read(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as old:
        old["a"] = 1
        zombie = StoreTarget(WHERE, old.log)
        send(old, zombie)
        fetch(WHERE, tmp_path / "new")
        with PersistentDict(str(tmp_path / "new"), promote=True) as new:
            new["a"] = 2

            def meanwhile(operation: str, name: str) -> None:
                if operation == "pipe" and name.startswith("manifest") and "-1.1-" in name:
                    faults.before = None
                    send(new, StoreTarget(WHERE, new.log))

            faults.before = meanwhile
            old["late"] = 1
            with pytest.raises(Superseded):
                send(old, zombie)
            late = [decode(name, faulty.objects()[name]) for name in manifests() if "-1.1-" in name][-1]
            assert late.number > 1, "it was written all the same"
            assert fetched(tmp_path / "found") == {"a": 2}
            young = [decode(name, faulty.objects()[name]) for name in manifests() if "-2.1-" in name][-1]
            late = young._replace(number=99, identity=old.log.identity, parts=young.parts[:-1])
            faulty.put(f"{FOLDER}/{late.name}", late.encode(0))
            assert fetched(tmp_path / "found-too") == {"a": 2}, "numbers count within an epoch only"
            new["b"] = 3
            send(new, StoreTarget(WHERE, new.log))
            assert fetched(tmp_path / "again") == {"a": 2, "b": 3}


def test_a_primary_takes_no_notice_of_what_an_older_one_writes_late(tmp_path, caplog):
    with PersistentDict(str(tmp_path / "log")) as old:
        old["a"] = 1
        zombie = StoreTarget(WHERE, old.log)
        send(old, zombie)
        fetch(WHERE, tmp_path / "new")
        with PersistentDict(str(tmp_path / "new"), promote=True) as new:
            young = StoreTarget(WHERE, new.log)

            def stop_the_old_one_here(operation: str, name: str) -> None:
                if operation == "pipe" and name.startswith("manifest") and "-1.1-" in name:
                    faults.before = lambda operation, name: None
                    young.connect()
                    young.close()

            faults.before = stop_the_old_one_here
            old["late"] = 1
            with pytest.raises(Superseded):
                send(old, zombie)
            faults.before = None
            new["a"] = 2
            send(new, young)
            assert "an older primary still writes there: manifest-" in caplog.text
            assert fetched(tmp_path / "found") == {"a": 2}
            send(new, young, *[lambda n=n: new.update(end=n) for n in range(3)])
            assert "late" not in fetched(tmp_path / "again")


def test_a_log_that_was_copied_and_opened_twice_is_told_so(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as one:
        one["a"] = 1

        def other() -> None:
            one["b"] = 2
            send(one, StoreTarget(WHERE, one.log))

        with pytest.raises(Superseded, match="copied and opened twice"):
            send(one, StoreTarget(WHERE, one.log), other, lambda: one.__setitem__("c", 3))


# -- what a user sees


def test_a_missing_driver_is_told_with_what_to_install(monkeypatch):
    import fsspec

    def missing(scheme: str) -> None:
        raise ImportError("Install something")

    with pytest.raises(ValueError, match="knows no nonsense://"):
        Bucket("nonsense://bank")
    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(MissingExtra, match=r"no driver for s3:// here: pip install s3fs"):
        Bucket("s3://bank")
    with pytest.raises(MissingExtra, match="paramiko"):
        Bucket("sftp://host/bank")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtra, match=r"needs it: pip install 'forelog\[remote\]'"):
        Bucket("s3://bank")


def test_no_password_is_shown(tmp_path):
    assert shown("sftp://ada:secret@host:22/bank") == "sftp://ada@host:22/bank"
    assert shown("s3://bank/prices") == "s3://bank/prices"
    with PersistentDict(str(tmp_path / "log")) as data:
        assert data.log.add_destination("faulty://ada:secret@bank/prices") == "faulty://ada@bank/prices"
        assert "secret" not in repr(data.log.health())


def test_a_destination_is_unhealthy_while_its_store_fails_and_recovers(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        data["a"] = 1
        faults.plan(0, REFUSED, count=10**9)
        name = data.log.add_destination(WHERE, interval=0.01)
        wait_for(lambda: data.log.health().destinations[name].state == "unhealthy")
        assert f"{WHERE}: listing it failed: TimeoutError" in str(data.log.health().destinations[name].error)
        data["b"] = 2
        faults.plan(-1, REFUSED)
        wait_for(lambda: data.log.health().destinations[name].lag_bytes == 0)
        assert data.log.health().healthy
        data["c"] = 3
    assert fetched(tmp_path / "again") == {"a": 1, "b": 2, "c": 3}


def test_who_asks_for_acknowledgements_gets_them_from_a_whole_copy(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        data.log.add_destination(WHERE, interval=0, ack="synced", ack_timeout=60)
        for number in range(20):
            data[number] = number
            assert fetched(tmp_path / f"copy-{number}") == dict(data)


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it is so; the deadline is only there to end a test that has failed."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- sources


def test_a_source_may_be_a_log_a_directory_with_copies_or_a_url(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as data:
        data["a"] = 1
        data.log.add_destination(str(tmp_path / "copies"))
        send(data, StoreTarget(WHERE, data.log))
        wait_for(lambda: data.log.health().destinations[str(tmp_path / "copies")].lag_bytes == 0)
    for source in (tmp_path / "log", tmp_path / "copies", f"file://{tmp_path}/copies", WHERE):
        with source_directory(source, beside=tmp_path / "new") as folder, PersistentDict(folder) as found:
            assert dict(found) == {"a": 1}
    assert not list(tmp_path.glob("forelog-fetched-*"))


def test_a_source_that_has_no_whole_copy_is_refused(tmp_path):
    (tmp_path / "copies" / "a").mkdir(parents=True)
    (tmp_path / "copies" / "b").mkdir()
    with pytest.raises(ReplicaError, match="no whole copy"), source_directory(tmp_path / "copies"):
        pass
    with pytest.raises(ValueError, match="can't be restored from"), source_directory("replica://host/log"):
        pass
    with pytest.raises(ValueError, match="storage_options"), source_directory(tmp_path, {"key": "x"}):
        pass
    with pytest.raises(ReplicaError, match="no manifest"), source_directory(WHERE, beside=tmp_path / "new"):
        pass
    assert not list(tmp_path.glob("forelog-fetched-*"))
