"""What all tests share."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from forelog.testing import CrashState

VECTORS = Path(__file__).parent / "vectors"
_seen: set[str] = set()
_checked = 0


@pytest.fixture(scope="session")
def crash_count() -> Callable[[CrashState], None]:
    """Counts the crash states that were checked, and how many of them differ."""

    def count(state: CrashState) -> None:
        global _checked
        _checked += 1
        _seen.add(f"{state.disk.origin}")

    return count


@pytest.fixture
def vector(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a folder of files that the original programs wrote."""

    def copy(name: str) -> Path:
        target = tmp_path / name.replace("/", "-")
        shutil.copytree(VECTORS / name, target)
        return target

    return copy


def pytest_configure() -> None:
    settings.register_profile("forelog", deadline=None)  # speed is measured by benchmarks, not by a busy machine
    settings.load_profile("forelog")
    # A job in the background starts with interrupts ignored, and so would the processes that tests interrupt.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cluster", action="store_true", help="start a Spark cluster for the tests that need one")
    parser.addoption("--dist-folder", help="where `make dist` put the wheel and the source distribution")
    parser.addoption(
        "--long",
        action="store_true",
        help="run what takes minutes: the demo, more crash states, the pipeline twice",
    )
    parser.addoption("--kill-rounds", type=int, default=100, help="how often test_kill.py kills a writer")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _checked:
        terminalreporter.write_line(f"crash states: {_checked} checked, {len(_seen)} of them distinct")
