"""forelog append: lines and frames from standard input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from forelog import Position, Stream
from forelog.cli.log import append as command

from .conftest import Run, Start, payloads


def framed(*records: bytes) -> bytes:
    return b"".join(len(record).to_bytes(4, "big") + record for record in records)


def test_each_line_is_a_record_without_its_newline(run: Run, tmp_path: Path) -> None:
    result = run("append", tmp_path / "log", stdin=b"one\n\nthree \r\nlast")
    assert result == (0, "4 records appended, from 000000001:8 to 000000001:78\n", "")
    assert payloads(tmp_path / "log") == [b"one", b"", b"three \r", b"last"]


def test_no_input_makes_an_empty_log(run: Run, tmp_path: Path) -> None:
    assert run("append", tmp_path / "log").out == "0 records appended\n"
    assert payloads(tmp_path / "log") == []


def test_one_record_is_told_in_the_singular(run: Run, tmp_path: Path) -> None:
    assert run("append", tmp_path / "log", stdin=b"x\n").out == "1 record appended at 000000001:8\n"


def test_frames_may_hold_any_bytes(run: Run, tmp_path: Path) -> None:
    records = [b"two\nlines", b"", bytes(range(256)), b"x" * 3_000_000]
    assert run("append", tmp_path / "log", "--framed", stdin=framed(*records)).code == 0
    assert payloads(tmp_path / "log") == records


@pytest.mark.parametrize(
    ("cut", "found"), [(2, "2 of the 4 bytes of a length"), (7, "3 of the 5 bytes of a record")]
)
def test_a_frame_that_is_cut_is_an_error_that_says_so(run: Run, tmp_path: Path, cut: int, found: str) -> None:
    result = run("append", tmp_path / "log", "--framed", stdin=framed(b"whole") + framed(b"torn!")[:cut])
    assert result.code == 6
    assert f"stdin ends in the middle of a record, after {found}" in result.err
    assert "1 record appended at 000000001:8" in result.err
    assert payloads(tmp_path / "log") == [b"whole"]


def test_text_taken_for_frames_is_told(run: Run, tmp_path: Path) -> None:
    result = run("append", tmp_path / "log", "--framed", stdin=b"hello, this is no frame")
    assert result.code == 2
    assert "Is the input framed?" in result.err


def test_json_tells_the_same_for_programs(run: Run, tmp_path: Path) -> None:
    result = run("append", tmp_path / "log", "--json", stdin=b"one\ntwo\n")
    assert json.loads(result.out) == {
        "records": 2,
        "first": "000000001:8",
        "last": "000000001:31",
        "end": "000000001:54",
    }


def test_positions_are_printed_one_a_line(run: Run, tmp_path: Path) -> None:
    result = run("append", tmp_path / "log", "--positions", stdin=b"one\ntwo\n")
    assert result.out.splitlines() == ["000000001:8", "000000001:31"]
    assert "2 records appended" in result.err


def test_positions_as_json(run: Run, tmp_path: Path) -> None:
    lines = run("append", tmp_path / "log", "--positions", "--json", stdin=b"one\n").out.splitlines()
    assert json.loads(lines[0]) == {"position": "000000001:8"}
    assert json.loads(lines[1])["records"] == 1


def test_segments_are_finished_at_their_size(run: Run, tmp_path: Path) -> None:
    lines = b"".join(b"%060d\n" % i for i in range(2000))
    assert run("append", tmp_path / "log", "--segment-bytes", "4KiB", stdin=lines).code == 0
    sizes = [info.byte_count for info in Stream.open(tmp_path / "log").segments()]
    assert len(sizes) > 35
    assert max(sizes) < 4096 + 80
    assert payloads(tmp_path / "log") == lines.split()


def test_a_new_log_gets_its_magic_and_version(run: Run, tmp_path: Path) -> None:
    run("append", tmp_path / "log", "--magic", "ABCD", "--version-number", "7", stdin=b"x\n")
    assert (tmp_path / "log" / "000000001.log").read_bytes()[:8] == b"ABCD\0\0\0\7"


def test_an_existing_logs_magic_is_found_out(run: Run, tmp_path: Path) -> None:
    with Stream(tmp_path / "log", magic=0x12345678, version=3).appender() as log:
        log.append(b"old")
    assert run("append", tmp_path / "log", stdin=b"new\n").code == 0
    assert payloads(tmp_path / "log") == [b"old", b"new"]


def test_another_magic_than_the_logs_is_refused(run: Run, log: Path) -> None:
    result = run("append", log, "--magic", "0x1", stdin=b"x\n")
    assert result.code == 4
    assert "refusing to append" in result.err


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_every_sync_policy_appends(run: Run, tmp_path: Path, sync: str) -> None:
    assert run("append", tmp_path / "log", "--sync", sync, stdin=b"one\ntwo\n").code == 0
    assert payloads(tmp_path / "log") == [b"one", b"two"]


def test_lines_that_come_together_are_written_together(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    add = command._Feed.add

    def count(feed: command._Feed, records: list[bytes]) -> None:
        batches.append(len(records))
        add(feed, records)

    monkeypatch.setattr(command._Feed, "add", count)
    run("append", tmp_path / "log", stdin=b"line\n" * 50_000)
    assert batches == [50_000]


def test_a_line_is_appended_when_it_arrives_and_an_interrupt_keeps_it(tmp_path: Path, start: Start) -> None:
    process = start("append", tmp_path / "log", "--positions", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"000000001:8\n"  # while stdin is still open
    process.stdin.write(b"two\nunfini")
    process.stdin.flush()
    assert process.stdout.readline() == b"000000001:31\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"interrupted: 6 bytes of an unfinished record not appended" in err
    assert b"2 records appended" in err
    assert b"Traceback" not in err
    assert payloads(tmp_path / "log") == [b"one", b"two"]


def test_every_line_is_appended_also_when_nobody_reads_the_positions(tmp_path: Path, start: Start) -> None:
    process = start("append", tmp_path / "log", "--positions", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"000000001:8\n"
    process.stdout.close()
    for _ in range(3):
        process.stdin.write(b"more\n" * 10_000)
        process.stdin.flush()
    process.stdin.close()
    assert process.stderr is not None
    assert b"30,001 records appended" in process.stderr.read()
    assert process.wait() == 0
    assert len(payloads(tmp_path / "log")) == 30_001


def test_a_closed_stdin_is_told(tmp_path: Path, start: Start) -> None:
    process = start("append", tmp_path / "log", preexec_fn=lambda: os.close(0))
    _, err = process.communicate()
    assert process.returncode == 6
    assert b"stdin is closed" in err


def test_a_second_appender_goes_on_where_the_first_ended(run: Run, tmp_path: Path) -> None:
    run("append", tmp_path / "log", stdin=b"one\n")
    assert run("append", tmp_path / "log", "--json", stdin=b"two\n").out.count("000000001:31") == 2
    with Stream.open(tmp_path / "log").cursor(start=Position(1, 31)) as cursor:
        assert next(cursor).payload == b"two"


@pytest.mark.parametrize("size", ["0", "big", "-1", "10QB"])
def test_a_size_that_is_none_is_wrong_usage(run: Run, tmp_path: Path, size: str) -> None:
    assert run("append", tmp_path / "log", f"--segment-bytes={size}").code == 2
    assert not (tmp_path / "log").exists()
