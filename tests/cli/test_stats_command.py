"""forelog stats: numbers and pictures."""

from __future__ import annotations

import json
from array import array
from itertools import accumulate
from pathlib import Path

import pytest

from forelog import Stream
from forelog.cli import draw
from forelog.cli.log.histogram import Histogram

from .conftest import SECOND, Run, damage


def test_the_log_its_segments_and_its_rates_are_shown(run: Run, log: Path) -> None:
    result = run("stats", log, "--width", 80)
    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert lines[0] == f"{log}: captain, magic 0x6370746e, version 1, 3 segments, 6 records, 198 B"
    assert lines[1] == "payloads: 54 B, 9.0 bytes on average; the log adds 266.7%"
    assert lines[4].split()[:4] == ["000000001", "2", "66", "B"]
    assert any(line.startswith("records per second: 1.2 on average") for line in lines)
    assert any(line.startswith("bytes per second: 35 B on average") for line in lines)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_it_is_as_wide_as_the_terminal(run: Run, log: Path, width: int) -> None:
    lines = run("stats", log, "--width", width).out.splitlines()[3:]
    assert max(map(len, lines)) <= max(width, 60)
    if width > 60:
        assert max(map(len, lines)) >= width - 10


def test_a_long_log_is_cut_short_unless_all_is_asked_for(run: Run, tmp_path: Path) -> None:
    with Stream(tmp_path / "log").appender() as appender:
        for _ in range(30):
            appender.append(b"x")
            appender.roll()
    short, full = run("stats", tmp_path / "log").out, run("stats", tmp_path / "log", "--all").out
    assert "15 segments more" in short
    assert "000000010" not in short
    assert "000000010" in full


def test_quick_reads_no_records(run: Run, log: Path) -> None:
    damage(log / "000000001.log")
    result = run("stats", log, "--quick")
    assert result.code == 0
    assert "per second" not in result.out
    assert "damage" not in result.out
    assert result.out.splitlines()[-1].split()[:2] == ["000000003", "?"]


def test_damage_is_mentioned(run: Run, log: Path) -> None:
    damage(log / "000000001.log")
    result = run("stats", log)
    assert result.code == 0
    assert "damage: 1 place, 29 B: see forelog verify" in result.out


def test_an_empty_log_has_no_picture(run: Run, tmp_path: Path) -> None:
    Stream(tmp_path / "log").appender().close()
    result = run("stats", tmp_path / "log")
    assert result.code == 0
    assert "0 records" in result.out


def test_json(run: Run, log: Path) -> None:
    stats = json.loads(run("stats", log, "--json").out)
    assert (stats["records"], stats["bytes"], stats["payload_bytes"], stats["magic"]) == (6, 198, 54, 0x6370746E)
    assert [segment["records"] for segment in stats["segments"]] == [2, 2, 2]
    over_time = stats["over_time"]
    assert (sum(over_time["records"]), sum(over_time["bytes"])) == (6, 6 * 29)
    assert over_time["end_ns"] - over_time["start_ns"] == 5 * SECOND


def test_a_terminal_without_unicode_gets_plain_signs(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "can_draw", lambda: False)
    out = run("stats", log).out
    assert out.isascii()
    assert "#####" in out


def test_every_record_and_byte_is_in_one_bin() -> None:
    histogram = Histogram(bins=16)
    times = array("q", accumulate((i * i * 1000 for i in range(3000)), initial=10**15))
    offsets = array("q", range(0, 10 * len(times), 10))
    for start in range(0, len(times), 700):
        stop = min(start + 700, len(times))
        histogram.add(times[start:stop], offsets[start:stop], 10 * stop)
    assert sum(histogram.records) == len(times)
    assert sum(histogram.bytes) == 10 * len(times)
    width, begin = histogram.width_ns, times[0]
    expected = [sum(1 for t in times if (t - begin) // width == i) for i in range(16)]
    # Widening merges whole bins, so that what was counted early is where it would be counted now.
    assert histogram.records == expected


def test_times_that_go_back_are_counted_too() -> None:
    histogram = Histogram(bins=4)
    histogram.add(array("q", [5 * SECOND, 2 * SECOND, 9 * SECOND, 1 * SECOND]), array("q", [0, 10, 20, 30]), 40)
    assert sum(histogram.records) == 4
    assert sum(histogram.bytes) == 40


def test_resampling_keeps_the_sums() -> None:
    histogram = Histogram()
    times = array("q", range(0, 100 * SECOND, SECOND))
    histogram.add(times, array("q", range(0, 2000, 20)), 2000)
    records, sizes = histogram.resampled(10)
    assert (len(records), sum(records), sum(sizes)) == (10, 100, 2000)
