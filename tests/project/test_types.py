"""What a type checker tells users: misspelt options and choices are errors, and what is right passes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from decimal import Decimal
from pathlib import Path

from forelog import Stream
from forelog.commitlog import CommitLog
from forelog.formats.m3 import Datapoint, Series
from forelog.messages import MessageLogWriter

stream = Stream(Path("log"), format="captain")
log = stream.appender(sync="always", sync_interval_ms=5, visible="synced")
queue = CommitLog(Path("data"), format="m3", strategy="behind", on_failure="ignore")
queue.write(Series(b"cpu"), Datapoint(1, 0.5), annotation=b"x")
CommitLog("log").write(b"payload")
CommitLog("log", format="messages").write("topic", b"payload", {"unit": "C"})
CommitLog.open("log", strategy="wait", flush_bytes=1)
MessageLogWriter(Path("bus"), sync="interval")
for block in stream.blocks(on_corruption="skip"):
    print(block.frame_bytes(0))
with stream.reading() as walk:
    print(walk.position.segment)
"""
WRONG = [
    'stream.appender(sycn="always")',
    'stream.appender(sync="alwasy")',
    'stream.appender(visible="read")',
    'stream.cursor(on_corruption="ignore")',
    "Stream(1)",
    'Stream("log", format="capitan")',
    'CommitLog("log", strategy="wiat")',
    'CommitLog("log", on_failure="stopp")',
    'CommitLog.open("log", stratgy="wait")',
    'CommitLog("log").write(5)',
    'queue.write(Series(b"cpu"), b"no datapoint")',
    'MessageLogWriter("bus", sync="sometimes")',
]


def checked(path) -> list[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(path.parent / "cache"), str(path)]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.slow
def test_options_and_choices_are_checked(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert checked(program) == ["Success: no issues found in 1 source file"]
    program.write_text(PROGRAM + "".join(f"{line}\n" for line in WRONG))
    first = PROGRAM.count("\n") + 1
    errors = {int(line.split(":")[1]) for line in checked(program) if ": error:" in line}
    assert errors == set(range(first, first + len(WRONG)))
