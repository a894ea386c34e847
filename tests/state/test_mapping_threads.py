"""A dict that many threads use: each call is one step to the others."""

from __future__ import annotations

import sys
import threading

import pytest

from forelog.state import PersistentDict
from tests.state.test_state_log import restored


@pytest.fixture
def impatient():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(count: int, what) -> list:
    """What several threads get that do a thing at the same time; an error is what it gets too."""
    got, barrier = [], threading.Barrier(count)

    def go() -> None:
        barrier.wait()
        try:
            got.append(what())
        except Exception as error:
            got.append(error)

    threads = [threading.Thread(target=go) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_threads_that_set_a_default_get_the_same(tmp_path, impatient):
    with PersistentDict(str(tmp_path / "state")) as data:
        for key in range(300):
            got = at_once(3, lambda: data.setdefault(key, threading.get_ident()))  # noqa: B023
            assert set(got) == {data[key]}


def test_a_key_is_popped_by_one_thread_only(tmp_path, impatient):
    with PersistentDict(str(tmp_path / "state")) as data:
        for key in range(300):
            data[key] = "here"
            assert sorted(at_once(3, lambda: data.pop(key, "gone"))) == ["gone", "gone", "here"]  # noqa: B023


def test_threads_that_pop_items_and_clear_get_each_once(tmp_path, impatient):
    def a_third() -> list:
        return [data.popitem() for _ in range(500)]

    with PersistentDict(str(tmp_path / "state")) as data:
        data.update({number: number for number in range(1500)})
        items = [item for drained in at_once(3, a_third) for item in drained]
        assert sorted(items) == [(number, number) for number in range(1500)]
        for _ in range(50):
            data.update(dict.fromkeys("abcdef", 1), g=2)
            assert at_once(3, data.clear) == [None] * 3
            assert not data
        data.update([("x", 1)])
    assert restored(str(tmp_path / "state")) == {"x": 1}


def test_an_update_of_several_keys_is_not_mixed_with_another(tmp_path, impatient):
    with PersistentDict(str(tmp_path / "state")) as data:
        for _ in range(100):
            at_once(3, lambda: data.update(dict.fromkeys(range(20), threading.get_ident())))
            assert len(set(data.values())) == 1


def test_what_a_dict_has_not_is_told_as_a_dict_does(tmp_path):
    with PersistentDict(str(tmp_path / "state")) as data:
        for what in (lambda: data.pop("a"), data.popitem):
            with pytest.raises(KeyError):
                what()
        assert data.pop("a", None) is None
        assert data.setdefault("a") is None
        assert data.pop("a", 1) is None
        with pytest.raises(TypeError):
            data.update([(1, 1), ([], 2)])
        assert not data, "all of it or nothing"


@pytest.mark.parametrize("way", ["a key", "a transaction"])
def test_a_key_that_is_set_while_a_rotation_begins_is_in_the_next_generation(tmp_path, monkeypatch, way):
    """The log has the key, the table doesn't yet: the rotation waits for it."""
    path = str(tmp_path / "state")
    with PersistentDict(path) as data:
        data["before"] = 1
        rotation = threading.Thread(target=data.rotate)
        change = data._table.change

        def rotate_and_change(events) -> None:
            if not rotation.ident:
                rotation.start()
                rotation.join(0.3)  # it would be through by then
            change(events)

        monkeypatch.setattr(data._table, "change", rotate_and_change)
        if way == "a key":
            data["new"] = 2
        else:
            with data.transaction():
                data["new"] = 2
                data["before"] = 3
        rotation.join()
    assert restored(path)["new"] == 2


def test_threads_that_set_new_keys_beside_rotations_lose_none(tmp_path):
    path = str(tmp_path / "state")
    with PersistentDict(path, rotate_bytes=2000) as data:

        def fill() -> None:
            for number in range(1500):
                data[f"{threading.get_ident()}/{number}"] = number

        assert at_once(4, fill) == [None] * 4
        kept = dict(data)
        assert data.stats().rotations
    assert len(kept) == 6000
    assert restored(path) == kept
