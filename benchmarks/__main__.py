"""python -m benchmarks: measure, print, and write the documentation's table, picture and JSON."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Settings
from benchmarks.plot import svg
from benchmarks.report import Report, markdown, summary, terminal, write_between_markers
from benchmarks.suite import BENCHMARKS, GROUPS, chosen, run

ROOT = Path(__file__).parents[1]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=[*GROUPS, *BENCHMARKS],
        help="; ".join(f"{group}: {', '.join(figures)}" for group, figures in GROUPS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the work in 3 rounds: rough")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where to write logs; default: the system's temp")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write benchmarks.json, .svg and, into an existing page, .md, beside what other figures "
        "were found on the same machine; docs writes the README's table as well; default: nowhere",
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="measure nothing: the docs anew from their benchmarks.json"
    )
    return parser.parse_args(arguments)


def write(report: Report, out: Path) -> None:
    """The three files; of the page only what is between its markers."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "benchmarks.json").write_text(report.to_json(), encoding="utf-8")
    (out / "benchmarks.svg").write_text(svg(report), encoding="utf-8")
    page = out / "benchmarks.md"
    if page.exists():
        write_between_markers(page, markdown(report))
    if out.resolve() == ROOT / "docs":
        write_between_markers(ROOT / "README.md", summary(report))


def read(out: Path) -> Report:
    """What was written there."""
    return Report.from_json((out / "benchmarks.json").read_text(encoding="utf-8"))


def keep(report: Report, out: Path | None) -> None:
    """Write what has been measured, so that who interrupts the rest has that."""
    if out is not None:
        if (out / "benchmarks.json").exists():
            report = report.beside(read(out), list(BENCHMARKS))
        write(report, out)


def show_progress(line: str) -> None:
    """One line that replaces the one before, on a terminal; elsewhere only the finished ones."""
    finished = line.endswith("\n")
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{line[:110].rstrip()}" + ("\n" if finished else ""))
    elif finished:
        sys.stderr.write(line)
    sys.stderr.flush()


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 whether or not goals were reached, for they depend on the machine."""
    options = parse(arguments)
    out: Path | None = options.out
    if options.write_docs:
        out = out or ROOT / "docs"
        write(read(out), out)
        return 0
    with tempfile.TemporaryDirectory(prefix="forelog-bench-", dir=options.dir) as directory:
        settings = Settings(
            Path(directory),
            rounds=3 if options.quick else 11,
            scale=0.1 if options.quick else 1.0,
            tell=show_progress,
        )
        report = run(settings, chosen(options.only or []), lambda report: keep(report, out))
    sys.stdout.write(report.to_json() if options.json else terminal(report))
    return 0 if report.figures else 2


if __name__ == "__main__":
    sys.exit(main())
