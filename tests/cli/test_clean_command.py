"""forelog clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forelog import Stream
from forelog.jobs import Client, LocalServer
from forelog.state import PersistentDict

from .conftest import Run, damage, payloads


def test_old_records_are_dropped(run: Run, log: Path) -> None:
    result = run("clean", log, "--older-than", "1h")
    assert result == (
        0,
        f"{log}: 4 records dropped, 132 B freed\n  of 2 finished segments, 0 rewritten and 2 removed\n",
        "",
    )
    assert payloads(log) == [b"order 3.0", b"order 3.1"]


def test_a_dry_run_only_says_so(run: Run, log: Path) -> None:
    result = run("clean", log, "--older-than", "1h", "--dry-run")
    assert "4 records would be dropped, 132 B would be freed" in result.out
    assert len(payloads(log)) == 6


@pytest.mark.parametrize(("words", "left"), [(["--keep-segments", "2"], 4), (["--keep-bytes", "0.1KiB"], 4)])
def test_the_oldest_segments_are_dropped(run: Run, log: Path, words: list[str], left: int) -> None:
    assert run("clean", log, *words).code == 0
    assert len(payloads(log)) == left


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--latest-until", "="], [b"b=2", b"a=3", b"c=4"]),
        (["--latest-key", "0:1"], [b"b=2", b"a=3", b"c=4"]),
        (["--latest-key", "1:2"], [b"c=4"]),
        (["--latest-key", "0:3", "--latest-until", "="], [b"b=2", b"a=3", b"c=4"]),
        (["--latest-until", r"\x3d"], [b"b=2", b"a=3", b"c=4"]),
    ],
)
def test_only_the_latest_of_each_key_is_kept(
    run: Run, tmp_path: Path, words: list[str], expected: list[bytes]
) -> None:
    with Stream(tmp_path / "settings").appender() as appender:
        appender.append_many([b"a=1", b"b=2", b"a=3"])
        appender.roll()
        appender.append(b"c=4")
    assert run("clean", tmp_path / "settings", *words).code == 0
    assert payloads(tmp_path / "settings") == expected


def test_json(run: Run, log: Path) -> None:
    report = json.loads(run("clean", log, "--older-than", "1h", "--json").out)
    assert (report["records_dropped"], report["segments_removed"], report["dry_run"]) == (4, 2, False)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--older-than", "1h", "--keep-segments", "1"],
        ["--older-than", "soon"],
        ["--latest-key", "3"],
        ["--latest-key", "5:2"],
        ["--latest-until", "ab"],
        ["--keep-bytes", "much"],
    ],
)
def test_one_rule_that_can_be_understood_is_needed(run: Run, log: Path, words: list[str]) -> None:
    assert run("clean", log, *words).code == 2
    assert len(payloads(log)) == 6


def test_damage_stops_it_unless_damaged_segments_are_left(run: Run, log: Path) -> None:
    damage(log / "000000001.log")
    before = (log / "000000001.log").read_bytes()
    words = ("clean", log, "--latest-until", "=")
    assert run(*words).code == 4
    result = run(*words, "--on-corruption", "skip")
    assert result.code == 0
    assert f"left unchanged: {log}/000000001.log" in result.out
    assert (log / "000000001.log").read_bytes() == before


def test_a_reader_keeps_it_waiting(run: Run, log: Path) -> None:
    with Stream.open(log).cursor():
        assert run("clean", log, "--keep-segments", 1, "--timeout", "10ms").code == 5


@pytest.mark.parametrize(
    "words",
    [
        ["--older-than", "9" * 400 + "d"],
        ["--keep-segments", "9" * 30],
        ["--keep-bytes", "9" * 400],
        ["--latest-key", "0:" + "9" * 30],
    ],
)
def test_what_is_larger_than_anything_is_refused(run: Run, log: Path, words: list[str]) -> None:
    result = run("clean", log, *words)
    assert (result.code, result.out) == (2, "")
    assert f"argument {words[0]}" in result.err


def test_an_age_before_all_times_drops_nothing(run: Run, log: Path) -> None:
    before = payloads(log)
    assert run("clean", log, "--older-than", "99999999d").code == 0
    assert payloads(log) == before


def test_a_state_log_is_refused_unless_its_magic_number_is_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "prices"
    with PersistentDict(path) as prices:
        prices["chips"] = 250
    result = run("clean", path, "--older-than", "0s", "--roll")
    assert result.code == 2
    assert "is a state log: it shortens itself" in result.err
    assert "add --magic 0x63707374" in result.err
    with PersistentDict(path) as prices:
        assert dict(prices) == {"chips": 250}
    assert run("clean", path, "--older-than", "0s", "--magic", "0x63707374").code == 0


def test_a_command_log_is_refused(run: Run, tmp_path: Path) -> None:
    with LocalServer(tmp_path / "jobs") as server, Client(server.address) as client:
        job = client.add("mail", b"to: you")
    result = run("clean", tmp_path / "jobs", "--older-than", "0s", "--roll")
    assert result.code == 2
    assert "is the command log of a job server: its server drops what no job needs" in result.err
    with LocalServer(tmp_path / "jobs") as server, Client(server.address) as client:
        assert client.lease("mail").id == job


def test_a_dry_run_says_that_the_last_segment_is_not_counted(run: Run, log: Path) -> None:
    result = run("clean", log, "--older-than", "1h", "--dry-run", "--roll")
    assert "the last segment isn't counted: --roll finishes it only in a real run" in result.out
