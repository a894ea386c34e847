"""forelog dump: records, one a line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from forelog import Stream

from .conftest import SECOND, Run, damage


def column(text: str, number: int = 2) -> list[str]:
    return [line.split("\t")[number] for line in text.splitlines()]


def test_a_line_has_position_time_and_payload(run: Run, log: Path) -> None:
    result = run("dump", log)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[:2] == [
        "000000001:8\t1970-01-01T00:16:40.000000000Z\torder 1.0",
        "000000001:37\t1970-01-01T00:16:41.000000000Z\torder 1.1",
    ]
    assert column(result.out) == [f"order {s}.{r}" for s in (1, 2, 3) for r in (0, 1)]


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        ("größer ✓".encode(), "größer ✓"),
        (b"two\nlines\tand a tab", r"two\nlines\tand a tab"),
        (b"\xff\x00'\"\\", r"""\xff\x00'"\\"""),
        (b"back\\slash", r"back\\slash"),
        (b"\\n is no newline", r"\\n is no newline"),
        ("next\x85line".encode(), r"next\u0085line"),
        (b"\x85", r"\x85"),
        ("\U000e0001".encode(), r"\U000e0001"),
        (b"", ""),
        (b"\x1b[31mred", r"\x1b[31mred"),
        ("replaced � already".encode(), "replaced � already"),
    ],
)
def test_a_payload_never_breaks_its_line(run: Run, tmp_path: Path, payload: bytes, shown: str) -> None:
    with Stream(tmp_path / "log").appender() as appender:
        appender.append(payload)
    assert run("dump", tmp_path / "log").out.rstrip("\n").split("\t", 2)[2] == shown


def test_json_has_every_field(run: Run, log: Path) -> None:
    lines = [json.loads(line) for line in run("dump", log, "--json").out.splitlines()]
    assert len(lines) == 6
    assert lines[2] == {
        "position": "000000002:8",
        "segment": 2,
        "offset": 8,
        "time": "1970-01-01T00:16:42Z",
        "time_ns": 1002 * SECOND,
        "payload": "order 2.0",
    }


def test_json_has_bytes_that_are_no_text_in_base64(run: Run, tmp_path: Path) -> None:
    with Stream(tmp_path / "log").appender() as appender:
        appender.append_many([b"\xff\x00", b"text\x00"])
    first, second = (json.loads(line) for line in run("dump", tmp_path / "log", "--json").out.splitlines())
    assert base64.b64decode(first["payload_base64"]) == b"\xff\x00"
    assert "payload" not in first
    assert second["payload"] == "text\0"


def test_hex(run: Run, log: Path) -> None:
    assert column(run("dump", log, "--hex", "--limit", 1).out) == [b"order 1.0".hex()]


def test_raw_is_what_append_takes(run: Run, log: Path) -> None:
    assert run("dump", log, "--raw", "--limit", 2).out == "order 1.0\norder 1.1\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--since", "1970-01-01T00:16:43Z"], ["2.1", "3.0", "3.1"]),
        (["--since", "000000003:8"], ["3.0", "3.1"]),
        (["--until", "1970-01-01T00:16:42Z"], ["1.0", "1.1"]),
        (["--until", "000000002:8"], ["1.0", "1.1"]),
        (["--from", "000000002:37"], ["2.1", "3.0", "3.1"]),
        (["--from", "000000001:37", "--since", "1970-01-01T00:16:40Z", "--limit", "1"], ["1.1"]),
        (["--from", "000000003:8", "--since", "000000002:8"], ["3.0", "3.1"]),
        (["--reverse"], ["3.1", "3.0", "2.1", "2.0", "1.1", "1.0"]),
        (["--reverse", "--limit", "2"], ["3.1", "3.0"]),
        (["--reverse", "--until", "000000002:8"], ["1.1", "1.0"]),
        (["--limit", "0"], []),
        (["--since", "-15m"], []),
        (["--until", "-15m", "--limit", "1"], ["1.0"]),
    ],
)
def test_a_part_of_the_log(run: Run, log: Path, words: list[str], expected: list[str]) -> None:
    result = run("dump", log, *words)
    assert result.code == 0
    assert column(result.out) == [f"order {name}" for name in expected]


@pytest.mark.parametrize(
    "words",
    [
        ["--since", "yesterday"],
        ["--since", "2026-11-15T18:00:00"],
        ["--from", "12"],
        ["--limit", "-1"],
        ["--reverse", "--follow"],
        ["--json", "--raw"],
        ["--hex", "--raw"],
        ["--on-corruption", "ignore"],
    ],
)
def test_wrong_usage(run: Run, log: Path, words: list[str]) -> None:
    result = run("dump", log, *words)
    assert (result.code, result.out) == (2, "")
    assert result.err


def test_a_position_past_the_end_is_told(run: Run, log: Path) -> None:
    result = run("dump", log, "--from", "000000003:9999")
    assert result.code == 2
    assert "past the end of the log" in result.err


def test_damage_ends_it_after_what_came_before(run: Run, log: Path) -> None:
    damage(log / "000000002.log")
    result = run("dump", log)
    assert result.code == 4
    assert column(result.out) == ["order 1.0", "order 1.1"]


def test_damage_can_be_an_end(run: Run, log: Path) -> None:
    damage(log / "000000002.log")
    result = run("dump", log, "--on-corruption", "stop")
    assert result.code == 0
    assert column(result.out) == ["order 1.0", "order 1.1"]
    assert "stopped at damage (crc) at 000000002:8" in result.err


def test_damage_can_be_passed_over_and_is_told(run: Run, log: Path) -> None:
    damage(log / "000000002.log")
    result = run("dump", log, "--on-corruption", "skip")
    assert result.code == 0
    assert column(result.out) == ["order 1.0", "order 1.1", "order 2.1", "order 3.0", "order 3.1"]
    assert "skipped 000000002:8 damage (crc)" in result.err


def test_a_torn_tail_is_the_end(run: Run, log: Path) -> None:
    with (log / "000000003.log").open("ab") as file:
        file.write(b"\x01torn")
    result = run("dump", log)
    assert result.code == 0
    assert len(result.out.splitlines()) == 6


def test_following_ends_at_its_limit(run: Run, log: Path) -> None:
    assert len(run("dump", log, "--follow", "--limit", 6).out.splitlines()) == 6


def test_a_cleaner_keeps_it_waiting(run: Run, log: Path) -> None:
    with Stream.open(log).cleaner():
        assert run("dump", log, "--timeout", "0").code == 5


@pytest.mark.parametrize("since", ["0001-01-01", "-1000000d", "1600-01-01T00:00:00Z"])
@pytest.mark.parametrize("until", ["2300-01-01", "9999-12-31"])
def test_bounds_may_be_of_any_year(run: Run, log: Path, since: str, until: str) -> None:
    everything = run("dump", log).out
    assert run("dump", log, f"--since={since}", "--until", until).out == everything
    assert run("dump", log, "--since", until).out == run("dump", log, "--until", "0001-01-01").out == ""


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_a_time_longer_ago_than_anything_is_refused(run: Run, log: Path, option: str) -> None:
    result = run("dump", log, f"{option}=-{'9' * 400}d")
    assert result.code == 2
    assert "longer than anything in a log" in result.err
