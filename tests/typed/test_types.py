"""Programs as users write them, under `mypy --strict`: what is right passes, and each marked line is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for path in Path(__file__).parent.glob("[a-z]*.py") if not path.name.startswith("test_"))


def refused(program: Path, cache: Path) -> dict[int, str]:
    """The lines of a program that mypy refuses, and why."""
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty",
         "--cache-dir", cache, "--config-file", ROOT / "pyproject.toml", program],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert not result.stderr, result.stderr
    found: dict[int, str] = {}
    for line in result.stdout.splitlines():
        match = re.fullmatch(rf"\S*{program.name}:(\d+): error: (.*)", line)
        if match:
            found.setdefault(int(match[1]), match[2])
        else:
            assert f"{program.name}:" in line, line
            assert ": note: " in line, line
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_type_checker_refuses_the_marked_lines_and_no_others(program: Path, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "mypy"
    lines = program.read_text().splitlines()
    wanted = {
        number: match[1] for number, line in enumerate(lines, 1) if (match := re.search("# error: (.*)", line))
    }
    found = refused(program, cache)
    assert found.keys() == wanted.keys(), found
    for number, message in wanted.items():
        assert message in found[number], f"{program.name}:{number}: {found[number]}"
