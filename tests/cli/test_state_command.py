"""`forelog state`: what a log says without its program, states at a time, and that docs/cli.md has all of it."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from forelog import Position, Stream
from forelog.cli import state
from forelog.errors import RestoreFailed
from forelog.files import write_all
from forelog.log.directory import segment
from forelog.state import PersistentDict, StateLog
from forelog.state.reader import open_source
from forelog.state.restoration import restore

from .conftest import Run, damage
from .test_docs import COMMON, section


class Account(msgspec.Struct):
    id: int
    cents: int


@dataclass
class Closed:
    id: int


class Bank:
    def __init__(self, path: Path) -> None:
        self.accounts: dict[int, Account] = {}
        self.log = StateLog(str(path), replay=self.do, enumerate=self.enumerate, types=[Account, Closed])

    def do(self, event: Account | Closed) -> None:
        if isinstance(event, Account):
            self.accounts[event.id] = event
        else:
            self.accounts.pop(event.id, None)

    def put(self, event: Account | Closed) -> Position:
        position = self.log.update(event)
        self.do(event)
        return position

    def enumerate(self, log) -> None:
        for account in self.accounts.values():
            log.update(account)


@pytest.fixture
def bank(tmp_path: Path) -> tuple[Path, list[Position]]:
    """A bank in its second generation: two accounts in the snapshot, then three changes, at these positions."""
    path = tmp_path / "bank"
    bank = Bank(path)
    with bank.log:
        bank.put(Account(1, 100))
        bank.put(Account(2, 200))
        bank.log.rotate()
        changes = [bank.put(Account(1, 150)), bank.put(Closed(2)), bank.put(Account(3, 300))]
    return path, changes


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "prices"
    with PersistentDict(str(path)) as prices:
        prices["chips"] = 250
        prices["dip"] = 120
        prices.rotate()
        del prices["dip"]
        prices["chips"] = 260
        prices[("a", 1)] = b"\xff"
    return path


def accounts(path: Path) -> dict[int, int]:
    found = Bank(path)
    with found.log:
        return {number: account.cents for number, account in found.accounts.items()}


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix != ".lock"}


# -- inspect


def test_inspect_tells_generations_and_events_without_the_programs_types(run: Run, bank) -> None:
    result = run("state", "inspect", bank[0], "--json")
    assert (result.code, result.err) == (0, "")
    told = json.loads(result.out)
    assert (told["generation"], told["whole"], told["events"]) == (2, True, 5)
    assert told["types"] == {"Account": 4, "Closed": 1}
    assert told["events_since_snapshot"] == 3
    assert told["bytes_since_snapshot"] > 60
    plain = run("state", "inspect", bank[0]).out
    assert plain.startswith(f"{bank[0]}: generation 2, whole since 20")
    assert re.search(r"^  Account +4 ", plain, re.MULTILINE)


def test_events_are_lines_of_json(run: Run, bank) -> None:
    path, changes = bank
    lines = [json.loads(line) for line in run("state", "inspect", path, "--events").out.splitlines()]
    assert [line["type"] for line in lines] == ["Account", "Account", "Account", "Closed", "Account"]
    assert lines[2]["event"] == {"id": 1, "cents": 150}
    assert [line["position"] for line in lines[2:]] == list(map(str, changes))
    assert len(run("state", "inspect", path, "--events", "--limit", 2).out.splitlines()) == 2


def test_what_another_codec_wrote_is_shown_as_base64(run: Run, tmp_path: Path) -> None:
    class Text:
        def encode(self, event: str) -> bytes:
            return event.encode()

        def decode(self, data: bytes) -> str:
            return data.decode()

    path = tmp_path / "texts"
    with StateLog(str(path), replay=print, enumerate=lambda log: None, codec=Text()) as log:
        log.update("hello")
    (line,) = map(json.loads, run("state", "inspect", path, "--events").out.splitlines())
    assert (line["type"], base64.b64decode(line["event_base64"])) == (None, b"hello")


@pytest.mark.parametrize(
    "data", [b"\x00" + b"\x91" * 500 + b"\x01", b"\x00\xc1", b"\x04User", b"", b"\x01\xff\x01"]
)
def test_hostile_events_are_shown_as_base64(run: Run, bank, data: bytes) -> None:
    with Stream.open(bank[0]).appender() as appender:
        appender.append(b"\x01" + data)
    line = json.loads(run("state", "inspect", bank[0], "--events").out.splitlines()[-1])
    assert base64.b64decode(line["event_base64"]) == data
    assert run("state", "inspect", bank[0]).code == 0
    assert run("state", "diff", bank[0], bank[0]).code == 0


def test_a_record_that_is_no_event_is_told(run: Run, bank) -> None:
    with Stream.open(bank[0]).appender() as appender:
        position = appender.append(b"\x07what")
    result = run("state", "inspect", bank[0])
    assert result.code == 6
    assert f"the record at {position} of {bank[0]} begins with b'\\x07what'" in result.err


def test_values_differ_as_they_were_written(run: Run, tmp_path: Path) -> None:
    for name, values in (("a", (True, {"x": 1, "y": [2]})), ("b", (1, {"y": [2], "x": 1}))):
        with PersistentDict(str(tmp_path / name)) as one:
            one["number"], one["dict"] = values
            one["nan"] = float("nan")
    assert run("state", "diff", tmp_path / "a", tmp_path / "b").out == '~ "number": true -> 1\n1 difference\n'


def test_a_dict_is_shown_as_it_was(run: Run, prices: Path) -> None:
    told = json.loads(run("state", "inspect", prices, "--as-of", "2100-01-01", "--json").out)
    assert (told["keys"], told["items"]) == (2, [["chips", 260], [["a", 1], {"base64": "/w=="}]])
    gone = json.loads(run("state", "inspect", prices, "--events").out.splitlines()[2])
    assert gone["event"] == ["dip"]
    before = run("state", "inspect", prices, "--as-of", gone["position"]).out
    assert before.endswith('2 keys\n  "chips": 250\n  "dip": 120\n')
    at_its_time = json.loads(run("state", "inspect", prices, "--as-of", gone["time"], "--json").out)
    assert at_its_time["items"] == [["chips", 250]], "with what was written at that time"


def test_a_generation_that_is_not_whole_is_told(run: Run, bank) -> None:
    path, _ = bank
    broken = Bank(path)
    with broken.log:
        broken.enumerate = None
        broken.log._enumerate = lambda log: 1 / 0
        with pytest.raises(ZeroDivisionError):
            broken.log.rotate()
        broken.put(Account(4, 400))
    told = json.loads(run("state", "inspect", path, "--json").out)
    assert (told["generation"], told["whole"], told["events"]) == (3, False, 6)
    assert "generation 3, not whole yet; the one before it is, since" in run("state", "inspect", path).out


@pytest.mark.parametrize("when", ["000000001:8", "2001-01-01"])
def test_a_time_before_what_the_log_has_is_told(run: Run, bank, when: str) -> None:
    result = run("state", "inspect", bank[0], "--as-of", when)
    assert (result.code, result.out) == (2, "")
    assert "its oldest whole generation is 2, committed at 000000002:" in result.err


def test_a_position_inside_of_a_record_counts_what_begins_before_it(run: Run, bank) -> None:
    path, changes = bank
    inside = Position(changes[0].segment, changes[0].offset + 3)
    assert json.loads(run("state", "inspect", path, "--as-of", inside, "--json").out)["events"] == 3


@pytest.mark.parametrize("words", [("inspect", "LOG"), ("diff", "LOG"), ("restore", "LOG", "new")])
def test_a_position_past_the_end_is_told(run: Run, bank, tmp_path: Path, words) -> None:
    path = bank[0]
    named = {"LOG": path, "new": tmp_path / "new"}
    words = [named.get(word, word) for word in words]
    for when in ("000000099:8", f"{bank[1][-1].segment:09}:99999"):
        result = run("state", *words, "--as-of", when)
        assert (result.code, result.out) == (2, "")
        assert f"there is no state as of {when}" in result.err
    end = open_source(str(path)).end()
    assert json.loads(run("state", "inspect", path, "--as-of", end, "--json").out)["events"] == 5


def test_numbers_that_json_has_not_are_texts(run: Run, tmp_path: Path) -> None:
    with PersistentDict(str(tmp_path / "odd")) as odd:
        begun = odd.log.stream.end()
        odd["values"] = [math.nan, math.inf, {"low": -math.inf}]

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    def found(*words: object) -> dict:
        return json.loads(run("state", *words, "--json").out, parse_constant=refuse)

    texts = ["NaN", "Infinity", {"low": "-Infinity"}]
    assert found("inspect", tmp_path / "odd", "--as-of", "-0s")["items"] == [["values", texts]]
    assert found("inspect", tmp_path / "odd", "--events")["event"] == ["values", texts]
    assert found("diff", tmp_path / "odd", "--as-of", begun)["to"] == texts


def test_other_logs_are_no_state(run: Run, log: Path, tmp_path: Path) -> None:
    assert run("state", "inspect", log).code == 3
    assert run("state", "restore", log, tmp_path / "new").code == 3
    assert run("state", "inspect", tmp_path / "nothing").code == 3


def test_damage_ends_it(run: Run, bank, tmp_path: Path) -> None:
    damage(bank[0] / "000000002.log", 50)
    for words in (["inspect", bank[0]], ["restore", bank[0], tmp_path / "new"], ["diff", bank[0], bank[0]]):
        assert run("state", *words).code == 4
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.part").exists()


# -- restore


def test_a_restore_has_the_state_of_each_moment(run: Run, bank, tmp_path: Path) -> None:
    path, changes = bank
    before = contents(path)
    end = Stream.open(path).end()
    expected = [{1: 100, 2: 200}, {1: 150, 2: 200}, {1: 150}, {1: 150, 3: 300}]
    for number, (position, wanted) in enumerate(zip([*changes, end], expected, strict=True)):
        target = tmp_path / f"restored {number}"
        result = run("state", "restore", path, target, "--as-of", position, "--json")
        assert result.code == 0, result.err
        assert json.loads(result.out)["events"] == 2 + number
        assert run("verify", target).code == 0
        assert accounts(target) == wanted
    assert contents(path) == before, "the source stays as it is"


def test_a_restored_log_has_the_same_positions_and_times(run: Run, bank, tmp_path: Path) -> None:
    path, _ = bank
    assert run("state", "restore", path, tmp_path / "new").out.startswith(
        f"{tmp_path / 'new'}: 5 events in 1 segment"
    )
    events = run("state", "inspect", path, "--events").out
    assert run("state", "inspect", tmp_path / "new", "--events").out == events


def test_a_log_of_many_segments_is_restored_while_it_is_used(run: Run, tmp_path: Path) -> None:
    with PersistentDict(str(tmp_path / "live"), segment_bytes=2000) as live:
        for number in range(1000):
            live[number % 70] = number
        live.rotate()
        for number in range(1000):
            live[number % 80] = -number
        result = run("state", "restore", tmp_path / "live", tmp_path / "new", "--json")
        assert json.loads(result.out)["segments"] > 5
        live["more"] = 1
        live.rotate()
        expected = dict(live)
    with PersistentDict(str(tmp_path / "new")) as restored:
        assert {**restored, "more": 1} == expected


def test_a_restore_makes_a_new_log_only(run: Run, bank, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("state", "restore", bank[0], tmp_path / "empty").code == 0
    result = run("state", "restore", bank[0], tmp_path / "empty")
    assert (result.code, result.out) == (2, "")
    assert "is there already and not empty" in result.err
    with pytest.raises(RestoreFailed, match="not empty"):
        restore(bank[0], bank[0])
    (tmp_path / "new.part").mkdir()
    assert "an interrupted restore left it" in run("state", "restore", bank[0], tmp_path / "new").err


def test_a_restore_that_fails_leaves_nothing(bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "write_all", lambda file, data: write_all(file, data[:-1]))
    with pytest.raises(RestoreFailed, match="the disk does not have what was written"):
        restore(bank[0], tmp_path / "new")
    assert os.listdir(tmp_path) == ["bank"]


# -- diff


def test_what_differs_between_two_times_of_a_dict(run: Run, prices: Path) -> None:
    gone = json.loads(run("state", "inspect", prices, "--events").out.splitlines()[2])["position"]
    result = run("state", "diff", prices, "--as-of", gone)
    assert (result.code, result.err) == (1, "")
    assert result.out.splitlines() == [
        '~ "chips": 250 -> 260',
        '- "dip": 120',
        '+ ["a", 1]: {"base64": "/w=="}',
        "3 differences",
    ]
    same = run("state", "diff", prices, "--as-of", gone, "--and", gone)
    assert (same.code, same.out) == (0, "no difference\n")


def test_what_differs_between_two_logs(run: Run, bank, tmp_path: Path) -> None:
    path, changes = bank
    assert run("state", "restore", path, tmp_path / "old", "--as-of", changes[0]).code == 0
    lines = [json.loads(line) for line in run("state", "diff", tmp_path / "old", path, "--json").out.splitlines()]
    assert lines == [
        {
            "change": "changed",
            "key": 1,
            "type": "Account",
            "from": {"id": 1, "cents": 100},
            "to": {"id": 1, "cents": 150},
        },
        {"change": "added", "key": 2, "type": "Closed", "to": {"id": 2}},
        {"change": "added", "key": 3, "type": "Account", "to": {"id": 3, "cents": 300}},
    ]
    assert '+ Closed 2: {"id": 2}' in run("state", "diff", tmp_path / "old", path).out
    assert run("state", "diff", path, path).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["nothing"],
        ["diff", "LOG"],
        ["inspect"],
        ["inspect", "LOG", "--as-of", "yesterday"],
        ["inspect", "LOG", "--limit", "-1"],
        ["restore", "LOG"],
    ],
)
def test_wrong_usage(run: Run, bank, words: list[str]) -> None:
    result = run("state", *(bank[0] if word == "LOG" else word for word in words))
    assert (result.code, result.out) == (2, "")
    assert result.err


# -- documentation


def described() -> dict[str, set[str]]:
    """What docs/cli.md says that each subcommand takes."""
    table = section("forelog state").partition("| argument or option | of | |")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {name: set() for name in state.SUBCOMMANDS}
    for option, of in re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", table, re.MULTILINE):
        for name in state.SUBCOMMANDS if of == "all" else re.findall(r"`(\w+)`", of):
            found[name].add(option.split()[0])
    return found


@pytest.mark.parametrize("name", state.SUBCOMMANDS)
def test_every_option_of_a_subcommand_is_described_and_has_help(name: str) -> None:
    takes: set[str] = set()
    for action in state.subparser(name)._actions:
        assert action.help
        takes |= set(action.option_strings) or {str(action.metavar)}
    assert described()[name] == takes - COMMON


def test_every_subcommand_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ", section("forelog state").partition("| subcommand | |")[2], re.MULTILINE)
    assert rows[: len(state.SUBCOMMANDS)] == list(state.SUBCOMMANDS)
