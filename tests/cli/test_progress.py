"""Progress on stderr: a bar in a terminal, lines elsewhere, nothing for short work."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forelog import Stream
from forelog.cli.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_short_work_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("reading") as show:
        for done in range(10):
            clock[0] += 0.9
            show(done, 10)
    assert capsys.readouterr() == ("", "")


def test_long_work_says_how_far_it_is_every_ten_seconds(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("reading x") as show:
        for done in range(100):
            clock[0] += 0.25
            show(done << 20, 100 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "forelog: reading x: 39% (39.0 MiB of 100.0 MiB)",
        "forelog: reading x: 79% (79.0 MiB of 100.0 MiB)",
    ]


def test_things_are_counted_where_they_are_no_bytes(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("cleaning", unit="") as show:
        clock[0] += 11
        show(1, 4)
    assert capsys.readouterr().err == "forelog: cleaning: 25% (1 of 4)\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_without_rich_gets_lines(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with Progress("reading") as show:
        clock[0] += 1
        show(1, 2)
    assert terminal.getvalue() == "forelog: reading: 50% (1 B of 2 B)\n"


def test_a_terminal_gets_a_bar_that_goes_away(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    with Stream(tmp_path / "log").appender() as log:
        log.append_many([b"x"] * 100)
        log.roll()
        log.append(b"y")
    code = (
        "import sys; from forelog.cli import main, progress; progress.BAR_AFTER_SECONDS = 0; "
        f"sys.exit(main(['verify', {str(tmp_path / 'log')!r}]))"
    )
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        )
        shown = os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert done.stdout.endswith(b"no damage\n")
    assert b"verifying" in shown
    assert b"\x1b[" in shown
