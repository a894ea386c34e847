"""forelog verify and forelog repair, as seen from a shell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from forelog import Stream

from .conftest import Run, damage, payloads


def test_a_sound_log_is_one_line(run: Run, log: Path) -> None:
    assert run("verify", log) == (0, f"{log}: 3 segments, 6 records, 198 B: no damage\n", "")


def test_damage_is_code_1_with_its_place_and_what_to_do(run: Run, log: Path) -> None:
    damage(log / "000000002.log")
    result = run("verify", log)
    assert result.code == 1
    assert result.out.splitlines() == [
        f"{log}: 3 segments, 5 records, 198 B: 1 problem",
        f"  damage: 000000002:8 damage (crc), 29 bytes in {log}/000000002.log",
    ]
    assert result.err == f"forelog: `forelog repair {log}` shows what can be done\n"


def test_every_segment_is_shown_on_request(run: Run, log: Path) -> None:
    (log / "000000003.log").write_bytes(b"")
    lines = run("verify", log, "--segments").out.splitlines()
    assert lines[1].split() == ["segment", "records", "bytes", "first", "time", "last", "time", "index", "state"]
    assert lines[2].split() == ["1", "2", "66", "1970-01-01T00:16:40Z", "1970-01-01T00:16:41Z", "fits", "fine"]
    assert lines[4].split() == ["3", "0", "0", "-", "-", "none", "unfinished"]


def test_what_is_no_damage_is_noted(run: Run, log: Path) -> None:
    (log / "000000001.log.rw").write_bytes(b"x")
    result = run("verify", log)
    assert result.code == 0
    assert "  note: 000000001.log.rw is left by an interrupted rewrite\n" in result.out


def test_several_logs_are_all_checked_and_the_worst_counts(run: Run, log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(log, bad)
    damage(bad / "000000001.log")
    result = run("verify", bad, log)
    assert result.code == 1
    assert "1 problem" in result.out
    assert "no damage" in result.out
    result = run("verify", tmp_path / "nowhere", bad, log)
    assert result.code == 3
    assert "there is no log" in result.err
    assert len([line for line in result.out.splitlines() if "segments" in line]) == 2


def test_json_has_everything(run: Run, log: Path) -> None:
    damage(log / "000000002.log")
    result = run("verify", log, "--json")
    report = json.loads(result.out)
    assert result.code == 1
    assert (report["ok"], report["records"], report["bytes"], report["live"]) == (False, 5, 198, False)
    (defect,) = report["segments"][1]["defects"]
    assert (defect["position"], defect["reason"], defect["byte_count"]) == ("000000002:8", "crc", 29)
    assert report["segments"][0]["index"] == "fits"


def test_a_repair_is_only_shown(run: Run, log: Path) -> None:
    damage(log / "000000001.log")
    before = (log / "000000001.log").read_bytes()
    result = run("repair", log)
    assert result.code == 1
    assert result.out.splitlines() == [
        f"{log}: 1 repair to do",
        f"  {log}/000000001.log",
        "    wrong: one damaged place of 29 bytes, from 000000001:8 on (crc)",
        "    do: rewrite it with its one whole record, and keep the original as NAME.broken",
    ]
    assert "nothing was changed" in result.err
    assert (log / "000000001.log").read_bytes() == before


def test_a_repair_is_done_on_request(run: Run, log: Path) -> None:
    damage(log / "000000001.log")
    result = run("repair", log, "--apply")
    assert result.code == 0
    assert "1 repair done" in result.out
    assert "kept: 000000001.broken" in result.out
    assert payloads(log) == [b"order 1.1", b"order 2.0", b"order 2.1", b"order 3.0", b"order 3.1"]
    assert run("repair", log, "--apply").out == f"{log}: nothing to repair\n"
    assert run("verify", log).code == 0


def test_untidiness_is_no_damage(run: Run, log: Path) -> None:
    next(log.glob("000000001.*.idx")).unlink()
    result = run("repair", log)
    assert result.code == 0
    assert "build it anew" in result.out


def test_what_cannot_be_mended_stays_a_problem(run: Run, log: Path) -> None:
    damage(log / "000000002.log", 0)
    for words in ((), ("--apply",)):
        result = run("repair", log, *words)
        assert result.code == 1
        assert "not repaired: left as it is" in result.out


def test_repairs_as_json(run: Run, log: Path) -> None:
    damage(log / "000000001.log")
    shown = json.loads(run("repair", log, "--json").out)
    done = json.loads(run("repair", log, "--json", "--apply").out)
    assert (shown["applied"], done["applied"]) == (False, True)
    assert shown["repairs"][0]["kind"] == done["repairs"][0]["kind"] == "records"
    assert (shown["repairs"][0]["copies"], done["repairs"][0]["copies"]) == ([], ["000000001.broken"])


@pytest.mark.parametrize("lock", ["appender", "cursor"])
def test_a_log_in_use_is_not_repaired(run: Run, log: Path, lock: str) -> None:
    damage(log / "000000001.log")
    with getattr(Stream.open(log), lock)():
        assert run("repair", log, "--apply", "--timeout", "0").code == 5
    assert not (log / "000000001.broken").exists()
