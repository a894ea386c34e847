"""What the commands make of a log of messages."""

from __future__ import annotations

import json

import pytest

from forelog import Position
from forelog.broker import MessageLogWriter

from .conftest import Run


@pytest.fixture
def log(tmp_path):
    with MessageLogWriter(tmp_path / "log", file_bytes=400, buffer_bytes=1, flush_interval_ms=None) as writer:
        for i in range(12):
            writer.write(f"plant/{i}", b"value %d" % i, {"n": i} if i % 2 else None)
    return str(tmp_path / "log")


def test_dump_shows_topics_payloads_and_properties(run: Run, log):
    lines = run("dump", log).out.splitlines()
    assert len(lines) == 12
    position, _, topic, payload = lines[0].split("\t")
    assert (topic, payload) == ("plant/0", "value 0")
    assert lines[1].split("\t")[2:] == ["plant/1", "value 1", '{"n":1}']
    assert run("dump", log, "--from", position, "--limit", "1").out.splitlines() == lines[:1]
    middle = lines[7].split("\t")
    assert run("dump", log, "--since", middle[1]).out.splitlines() == lines[7:]
    assert run("dump", log, "--until", middle[0]).out.splitlines() == lines[:7]
    assert run("dump", log, "--reverse").out.splitlines() == lines[::-1]
    assert run("dump", log, "--since", "0001-01-01", "--until", "2300-01-01").out.splitlines() == lines
    assert run("dump", log, "--since", "2300-01-01").out == run("dump", log, "--until", "0001-01-01").out == ""
    assert run("dump", log, "--raw", "--limit", "1").out == "value 0\n"
    assert "76616c75652030" in run("dump", log, "--hex", "--limit", "1").out


def test_dump_as_json(run: Run, log):
    told = [json.loads(line) for line in run("dump", log, "--json").out.splitlines()]
    assert [one["topic"] for one in told] == [f"plant/{i}" for i in range(12)]
    assert told[3]["properties"] == {"n": 3}
    assert Position.parse(told[0]["position"]) == Position(told[0]["time_ns"], 0)


def test_verify_repair_and_stats_know_it(run: Run, log, tmp_path):
    assert run("verify", log).code == 0
    assert json.loads(run("stats", log, "--json").out)["records"] == 12
    assert "messages" in run("stats", log).out
    path = sorted((tmp_path / "log").glob("*.dat"))[0]
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    assert run("verify", log).code == 1
    assert run("repair", log, "--apply").code == 0
    assert run("verify", log).code == 0
    assert len(run("dump", log).out.splitlines()) == 11


def test_what_has_no_place_elsewhere_is_not_converted(run: Run, log, tmp_path):
    result = run("convert", log, str(tmp_path / "other"), "--to", "captain")
    assert result.code == 2
    assert "log of messages" in result.err
