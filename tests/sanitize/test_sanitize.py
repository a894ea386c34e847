"""A little of what `make sanitize` does at length: all targets, with the ordinary kernel, and past findings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.sanitize import build
from tests.sanitize import search as search_module
from tests.sanitize.mutations import Mutator
from tests.sanitize.search import LARGE_BYTES, Search
from tests.sanitize.target import TARGETS, Finding, Target, load_targets

FOUND = sorted((Path(__file__).parent / "findings").iterdir())
STEPS, STEPS_OF_LOGS = 250, 20
load_targets()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_what_broke_a_target_once_does_so_no_more(path):
    target = TARGETS[path.name.partition("-")[0]]
    try:
        target.run(path.read_bytes())
    except target.refusals:
        pass


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_nobody_would_write_are_read_or_refused(name):
    search = Search(TARGETS[name], seed=1)
    search.begin([])
    for _ in range(STEPS_OF_LOGS if name.startswith("log_") else STEPS):
        search.step()
    assert not search.broken, next(iter(search.broken.values())).what


def broken_by(data: bytes) -> None:
    if data.count(b"ab") > 2:
        raise Finding("three times ab")
    if len(data) > 60 and data[0] == 0:
        raise ZeroDivisionError
    if b"!" in data:
        raise ValueError("refused")


def test_a_search_tells_of_each_way_to_break_a_target_once_with_a_short_input():
    target = Target("some", broken_by, lambda: [b"ab" * 10, bytes(90)], (ValueError,), False, (), 100, None)
    search = Search(target, seed=1)
    search.begin([])
    found = {broken.what.splitlines()[-1].strip(): broken.data for broken in search.broken.values()}
    assert found == {"three times ab": b"ababab", "ZeroDivisionError": bytes(61)}


@pytest.mark.parametrize(("power", "told"), [(1, []), (2, ["slow"])])
def test_a_search_tells_of_what_grows_with_the_square_of_its_input(monkeypatch, power, told):
    monkeypatch.setattr(search_module, "_seconds", lambda _, data: (len(data) / LARGE_BYTES) ** power)
    target = Target("slow", len, lambda: [b"abc"], (), False, (), 100, len)
    search = Search(target, seed=1)
    search.begin([])
    search.grow(60)
    assert list(search.broken) == told


def test_the_same_seed_makes_the_same_inputs():
    compared = [(0x12345678, 0xCAFEBABE, 4)]
    made = []
    for _ in range(2):
        mutator = Mutator(7, [b"token"])
        made.append([mutator.changed(b"\x12\x34\x56\x78 and more", [b"other"], compared) for _ in range(200)])
    assert made[0] == made[1]
    assert any(b"\xca\xfe\xba\xbe" in data for data in made[0]), "what was compared with the input is tried in it"
    assert any(b"token" in data for data in made[0])


def test_without_a_compiler_it_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(build.Missing, match="no-such-compiler isn't installed"):
        build.find_compiler()


def test_all_that_setup_compiles_is_compiled_with_sanitizers_too():
    text = (build.ROOT / "setup.py").read_text()
    pattern = re.search(r'glob\("src/forelog/(jobs/.*\.pxd)"', text)[1]
    listed = sorted(build.SOURCE.glob(pattern))
    named = [".".join(types.relative_to(build.SOURCE).with_suffix("").parts) for types in listed]
    assert [one.module for one in build.libraries()] == ["kernel._kernel", *named]
