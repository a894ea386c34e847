"""`make demo`, shortened: what it promises on its way, what it leaves behind, and what it doesn't."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "examples.demo", "--seconds", "4"]
TABLES = {"messages": "messages", "jobs": "commands", "stock": "stock changes", "meters": "datapoints"}
RESULTS = {
    "activity", "jobs", "queues", "poisoned", "messages_per_topic", "stock_changes", "stock_at_the_kill", "power",
}  # fmt: skip


def pids(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r" pid (\d+)", output)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Parts(HTMLParser):
    """Which tags there are, and whether anything comes from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_demo_loses_nothing_and_leaves_tables_and_a_page(tmp_path, request):
    if not request.config.getoption("--long"):
        pytest.skip("it takes a minute: --long runs it, and so does make demo")
    pytest.importorskip("pyspark")
    deltalake = pytest.importorskip("deltalake")
    folder = tmp_path / "demo"
    result = subprocess.run(
        [*DEMO, "--folder", str(folder)], capture_output=True, text=True, cwd=ROOT, timeout=500
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Nothing that was acknowledged is lost." in result.stdout
    assert "Spark's replay and a restored state log agree" in result.stdout
    assert "\033" not in result.stdout, "no colours when nobody watches"
    assert len(pids(result.stdout)) == 4
    assert not any(map(is_alive, pids(result.stdout)))

    assert {path.stem for path in (folder / "results").glob("*.parquet")} == RESULTS
    for name in RESULTS:
        rows = pq.read_table(folder / "results" / f"{name}.parquet").num_rows
        assert deltalake.DeltaTable(str(folder / "results" / "delta" / name)).to_pyarrow_table().num_rows == rows
    written = {row["kind"]: 0 for row in pq.read_table(folder / "results" / "activity.parquet").to_pylist()}
    for row in pq.read_table(folder / "results" / "activity.parquet").to_pylist():
        written[row["kind"]] += row["count"]
    for table, kind in TABLES.items():
        found = deltalake.DeltaTable(str(folder / "tables" / table)).to_pyarrow_table().num_rows
        assert found >= written[kind] > 0, (
            "an ingested log has every record; a state log also has marks of its own"
        )

    page = (folder / "report.html").read_text()
    parts = Parts()
    parts.feed(page)
    assert parts.tags.count("svg") == 6
    assert "script" not in parts.tags
    assert not parts.addresses
    assert "://" not in page


def test_without_spark_the_demo_says_so_and_ends_well(tmp_path):
    hide = (
        "import sys, runpy, importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *rest: None if name == 'pyspark' else find(name, *rest); "
        "runpy.run_module('examples.demo', run_name='__main__', alter_sys=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", hide, "--seconds", "3", "--folder", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Nothing that was acknowledged is lost." in result.stdout
    assert "pip install 'forelog[spark]', or '.[spark]' in forelog's folder" in result.stdout
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["logs"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_demo_ends_what_it_started(tmp_path, number, request):
    if number == signal.SIGTERM and not request.config.getoption("--long"):
        pytest.skip("it goes the same way as SIGINT: --long tries it")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
    command = [*DEMO[:-1], "600", "--folder", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as demo:
        try:
            said = ""
            assert demo.stdout is not None
            for line in demo.stdout:
                said += line
                if "clients are connected" in line:
                    break
            started = pids(said)
            assert len(started) == 4, said
            assert all(map(is_alive, started))
            demo.send_signal(number)
            rest = demo.stdout.read()
            assert demo.wait(120) == 130, said + rest
            assert "interrupted" in rest
            assert "has ended" in rest
        finally:
            demo.kill()
    assert not any(map(is_alive, started))
    assert not list(scratch.glob("forelog-demo-*"))


def test_the_example_of_recovery_runs():
    result = subprocess.run(
        [sys.executable, "-m", "examples.recovery"], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert "0 are lost" in result.stdout
    assert "all right" in result.stdout
    assert "all there" in result.stdout
    assert "1000 results, all of them right" in result.stdout
    assert "\033" not in result.stdout, "no colours when nobody watches"
