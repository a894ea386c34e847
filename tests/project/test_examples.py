"""The examples do what they say. The one on Spark is in tests/spark, those of one face with their face's tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def run(name: str) -> list[str]:
    """What an example prints."""
    command = [sys.executable, "-m", f"examples.{name}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_dict_survives_the_program_that_sells_from_it():
    lines = run("durable_dict")
    assert lines[0] == "the shop opens: {'chips': 1000000, 'dip': 120}"
    sold = int(re.fullmatch(r"kill -9, when it had said that ([\d,]+) are sold", lines[1])[1].replace(",", ""))
    assert sold >= 2000
    assert lines[2] == "the shop opens again: 0 sales are lost, and the dip is still there: 120"
    assert lines[3].endswith("begins with all 2 things that there are")
    assert int(re.search(r"(\d+) bytes", lines[4])[1]) < 1000


def test_work_is_tried_again_until_it_is_done_or_given_up():
    lines = run("retries")
    assert lines[:3] == [
        "mail: done: sent an invoice at the third try",
        "divide: given up: ZeroDivisionError: division by zero",
        "report: done: the second one to get it was quicker",
    ]
    assert lines[3].startswith("2 completed, 4 failures, ")


def test_an_audit_log_tells_what_was_at_any_time_and_what_is_damaged():
    lines = run("audit")
    assert lines[:9] == [
        "08:00  the vault opens for nobody",
        "12:00  the vault opens for ada and bob",
        "15:00  the vault opens for ada",
        "18:00  the vault opens for ada and eve",
        "since noon:",
        "  12:15  doors/cellar/bob  grant by ada",
        "  14:00  doors/vault/bob  revoke by the board",
        "  16:45  doors/vault/eve  grant by ada",
        "5 messages were checked, and 0 problems found",
    ]
    assert re.search(r"damage \(crc\), 46 bytes", lines[-1])


def test_a_workq_server_is_moved_over_with_its_jobs_and_could_go_back():
    lines = run("move_workq")
    assert lines[1:] == [
        "  forelog: cmdlog: 6 commands replayed, 5 jobs",
        "  mail: 2 ready, 0 scheduled",
        "  report: 1 ready, 1 scheduled",
        "  resize: 0 ready, 0 scheduled",
        "  the worker's result is taken: 640x480",
        "  a job is done, and a new one added",
        "and if it should be the old one again:",
        lines[-2],
        "  commands: 5 add, 2 complete, 1 schedule, 2 start-attempt",
    ]
    assert re.fullmatch(r"  \d+ bytes of the old server's are unchanged, \d+ came after them", lines[-2])


def test_every_example_is_listed_and_run_by_a_test():
    listed = (EXAMPLES / "README.md").read_text()
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for path in EXAMPLES.glob("[a-z]*.py"):
        assert f"examples.{path.stem}`" in listed, path.name
        assert f"examples.{path.stem}" in tests or f'run("{path.stem}")' in tests, path.name
