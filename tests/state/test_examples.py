"""The sample program does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_resources_survive_a_program_that_is_killed():
    command = [sys.executable, "-m", "examples.resources"]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "made 100 resources, deleted one: 99 are there"
    assert int(lines[1].removeprefix("kill -9, in turn ")) >= 50  # how far it gets until it is killed varies
    assert lines[-1] == "99 resources are there, 0 are not as they were"
