"""`make coverage`: which lines and branches of forelog the tests run, in Python and in compiled modules.

It builds the package a second time, in build/coverage, with the compiler's counters. coverage.py measures the
Python, also in processes that tests start. gcov measures the compiled modules; its lines of C are reported as the
lines of Cython that they were made from. Arguments go to pytest: `python -m tests.coverage tests/log`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "coverage"
LIBRARY = FOLDER / "lib"
TESTS = (
    "tests",
    "--ignore=tests/spark",
    "--ignore=tests/sanitize",
    "--ignore=tests/project",
    "--ignore=tests/benchmarks",
)
MARK = re.compile(r'/\* "(?:src/)?(forelog/[^"]+)":(\d+)$')
"""What Cython writes into its C above the code of a line."""


def main(words: list[str]) -> int:
    if shutil.which("gcov") is None:
        print(
            "gcov isn't installed, which counts the lines of compiled modules: it comes with gcc", file=sys.stderr
        )
        return 2
    build()
    code = run(words or list(TESTS))
    python_report()
    compiled_report()
    return code


def build() -> None:
    """The package with counters in all that is compiled."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    environment = {**os.environ, "CFLAGS": "--coverage -Wno-coverage-mismatch", "LDFLAGS": "--coverage"}
    where = ["--build-lib", str(LIBRARY), "--build-temp", str(FOLDER / "temp")]
    command = [sys.executable, "setup.py", "--quiet", "build", *where]
    with (FOLDER / "build.txt").open("w") as said:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=said, stderr=said, check=True)
    (FOLDER / "coveragerc").write_text(
        f"[run]\nbranch = true\nparallel = true\nsource = {LIBRARY}/forelog\npatch = subprocess\n"
        f"data_file = {FOLDER}/data\n"
        "[report]\nskip_covered = true\nexclude_also =\n    if TYPE_CHECKING:\n    \\.\\.\\.$\n"
    )


def run(tests: list[str]) -> int:
    """The tests, on that package."""
    environment = {**os.environ, "PYTHONPATH": str(LIBRARY), "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["-m", "coverage", "run", "--rcfile", str(FOLDER / "coveragerc"), "-m", "pytest", *tests]
    return subprocess.call([sys.executable, *words], cwd=ROOT, env=environment)


def python_report() -> None:
    """Lines and branches of the Python, file by file, worst last."""
    rc = ["--rcfile", str(FOLDER / "coveragerc")]
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "combine", "--quiet", *rc], cwd=ROOT, check=True)
    subprocess.run([*coverage, "report", "--sort=-cover", *rc], cwd=ROOT, check=False)


def compiled_report() -> None:
    """Lines and branches of the compiled modules, source by source."""
    lines: dict[str, dict[int, bool]] = defaultdict(dict)
    branches: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for counted in sorted((FOLDER / "temp").rglob("*.gcda")):
        _read(counted, lines, branches)
    print(f"\n{'compiled':<44} {'lines':>7} {'run':>7} {'branches':>9} {'taken':>7}")
    total = [0, 0, 0, 0]
    for name in sorted(lines):
        row = [len(lines[name]), sum(lines[name].values()), *branches[name]]
        total = [a + b for a, b in zip(total, row, strict=True)]
        print(_row(name, row))
    print(_row("all that is compiled", total))


def _row(name: str, row: list[int]) -> str:
    count, reached, ways, taken = row
    return f"{name:<44} {count:>7} {reached / max(count, 1):>7.1%} {ways:>9} {taken / max(ways, 1):>7.1%}"


def _read(counted: Path, lines: dict[str, dict[int, bool]], branches: dict[str, list[int]]) -> None:
    words = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(counted)]
    said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in json.loads(said)["files"]:
        source = ROOT / file["file"]
        if source.suffix != ".c":
            continue
        origins = _origins(source)
        for line in file["lines"]:
            origin = origins.get(line["line_number"])
            if origin is None:
                continue
            name, number = origin
            lines[name][number] = lines[name].get(number, False) or line["count"] > 0
            ways = [way for way in line["branches"] if not way["throw"]]
            branches[name][0] += len(ways)
            branches[name][1] += sum(way["count"] > 0 for way in ways)


def _origins(source: Path) -> dict[int, tuple[str, int]]:
    """For each line of C, the line that it was made of."""
    found: dict[int, tuple[str, int]] = {}
    origin: tuple[str, int] | None = None
    for number, text in enumerate(source.read_text().splitlines(), 1):
        mark = MARK.search(text.rstrip())
        if mark:
            origin = mark[1], int(mark[2])
        elif text == "}":
            origin = None
        elif origin is not None and "__PYX_ERR" not in text and "__Pyx_RefNanny" not in text:
            found[number] = origin
    return found


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
