"""Commands on a log that another process is appending to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forelog import Stream

from .conftest import Run, Start, end

WRITER = """
import sys, threading
from forelog import Stream
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
count = 0
with Stream(sys.argv[1]).appender(segment_bytes=100_000) as log:
    while not done.is_set():
        for _ in range(20):
            log.append(b"record %d" % count)
            count += 1
        if count == 2000:
            print("running", flush=True)
print(count)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that appends to tmp_path/live, in small segments, until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "live")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"running\n"
    yield process
    end(process)


def finish(process: subprocess.Popen[bytes]) -> int:
    out, _ = process.communicate()
    return int(out)


def test_verify_finds_no_damage_in_a_log_that_grows(
    writer: subprocess.Popen[bytes], run: Run, tmp_path: Path
) -> None:
    reports: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60  # the writer may be held up, by a slow disk or a busy machine
    while len(reports) < 8 or reports[-1]["records"] == reports[0]["records"]:
        assert time.monotonic() < deadline, "the log doesn't grow"
        result = run("verify", tmp_path / "live", "--json")
        assert result.code == 0, result.out
        reports.append(json.loads(result.out))
    assert all(report["live"] for report in reports)
    count = finish(writer)
    report = json.loads(run("verify", tmp_path / "live", "--json").out)
    assert (report["records"], report["live"], report["problems"]) == (count, False, [])


def test_repair_finds_nothing_to_do_in_a_log_that_grows(
    writer: subprocess.Popen[bytes], run: Run, tmp_path: Path
) -> None:
    for _ in range(4):
        result = run("repair", tmp_path / "live", "--json")
        assert result.code == 0
        # The index of a segment that was finished this moment may not be there yet.
        assert not [repair for repair in json.loads(result.out)["repairs"] if repair["damage"]]
    assert run("repair", tmp_path / "live", "--apply", "--timeout", "0").code == 5
    finish(writer)
    assert run("repair", tmp_path / "live", "--apply").code == 0


def test_stats_and_clean_work_on_a_log_that_grows(
    writer: subprocess.Popen[bytes], run: Run, tmp_path: Path
) -> None:
    assert run("stats", tmp_path / "live").code == 0
    assert run("clean", tmp_path / "live", "--keep-segments", 2).code == 0
    finish(writer)
    assert run("verify", tmp_path / "live").code == 0


def test_following_shows_every_record_of_a_log_that_grows(
    writer: subprocess.Popen[bytes], start: Start, tmp_path: Path
) -> None:
    follower = start("dump", tmp_path / "live", "--follow", "--raw", "--limit", 10_000)
    out, err = follower.communicate()
    assert err == b""
    assert out.splitlines() == [b"record %d" % i for i in range(10_000)]
    finish(writer)


def test_following_shows_a_record_when_it_is_appended_until_interrupted(log: Path, start: Start) -> None:
    follower = start("dump", log, "--follow", "--raw", "--from", "000000003:37")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"order 3.1\n"
    with Stream.open(log).appender() as appender:
        for i in range(3):
            appender.append(b"new %d" % i)
            assert follower.stdout.readline() == b"new %d\n" % i
            appender.roll()
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate()
    assert (follower.returncode, err) == (130, b"")


def test_following_does_not_keep_cleaning_waiting(log: Path, start: Start, run: Run) -> None:
    follower = start("dump", log, "--follow", "--raw")
    assert follower.stdout is not None
    assert [follower.stdout.readline() for _ in range(6)][-1] == b"order 3.1\n"
    assert run("clean", log, "--keep-segments", 1, "--timeout", 20).code == 0
    with Stream.open(log).appender() as appender:
        appender.append(b"after cleaning")
    assert follower.stdout.readline() == b"after cleaning\n"
