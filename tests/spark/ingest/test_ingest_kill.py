"""An ingest that is killed with -9, at every step of a commit and at random, beside a writer: each row once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

from forelog import Stream
from forelog.spark.tables.commits import load_state
from forelog.spark.tables.formats import format_of
from forelog.spark.tables.storage import storage_of
from forelog.spark.tables.table import Table
from tests.children import child
from tests.spark.ingest.test_ingest import Clock, append, committed, numbers, visible

STEPS = ["written", "prepared", "committed", "moved one", "moved", "announced", "emptied", "merged", "removed one"]


def ingester(log, target, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.ingest.ingester", str(log), str(target), *options],
        stdout=subprocess.PIPE,
        text=True,
    )


def killed(log, target, *options: str) -> bool:
    """Run it to its end; whether that was a kill."""
    with ingester(log, target, *options) as process:
        process.communicate(timeout=120)
    assert process.returncode in (0, -9)
    return process.returncode == -9


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_after_any_step_loses_nothing_and_doubles_nothing(step, tmp_path):
    log, target = Stream(str(tmp_path / "log"), clock=Clock(minutes=4)), tmp_path / "t"
    deaths = 0
    for n in range(2):
        times = 1 if step == "merged" else n + 1  # small files are merged once in a run
        append(log, 450 * n, 450 * n + 450, segment_bytes=1500)
        deaths += killed(log.path, target, "--die-at", step, "--times", str(times))
        before = numbers(visible(target))
        assert len(before) == len(set(before)), "a plain reader sees a row twice"
        assert set(before) <= set(numbers(placed(target))), "a plain reader sees a row that isn't committed"
    assert deaths == 2, "the step is never reached"
    assert not killed(log.path, target)
    assert numbers(visible(target)) == list(range(900))
    assert visible(target) == committed(target)
    assert not list((target / "_forelog" / "staging").iterdir())
    assert load_state(storage_of(str(target))).positions == {"log": log.end()}


def placed(target) -> list[Path]:
    """The files of all commits, after what a killed run had decided is carried out."""
    with Table(str(target), format_of("parquet")).writing():
        return committed(target)


def seen(target: Path, table: str) -> list[int]:
    """The rows that readers of the table's format see now."""
    if table == "parquet":
        return numbers(visible(target))
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    try:
        with SqlCatalog("default", uri=f"sqlite:///{target.parent}/iceberg.db") as catalog:
            found = catalog.load_table("default.t")
    except NoSuchTableError:
        return []
    return sorted(int(payload.split(b":")[0]) for payload in found.scan().to_arrow()["payload"].to_pylist())


@pytest.mark.parametrize(("where", "table"), [("here", "parquet"), ("here", "iceberg"), ("on_spark", "parquet")])
def test_kills_at_random_beside_a_writer_that_rolls_and_cleans(where, table, tmp_path, request):
    """With `--kill-rounds 700` it is killed twenty times, and also on Spark, which takes minutes."""
    rounds = max(request.config.getoption("--kill-rounds") // 35, 3)
    if where == "on_spark" and rounds < 20:
        pytest.skip("only with --kill-rounds 700")
    if table == "iceberg":
        pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
    options, seconds_max = (["--spark"], 6.0) if where == "on_spark" else ([], 0.4)
    options += ["--table", table]
    log, target = tmp_path / "log", tmp_path / "t"
    rng = random.Random(4)
    with child(
        [sys.executable, "-m", "tests.spark.ingest.writer", str(log), str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout.readline() == "open\n"
        for n in range(rounds):
            with ingester(log, target, "--follow", *options) as process:
                assert process.stdout.readline() == "started\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0, seconds_max * (3 if table == "iceberg" else 1)))
                if n == rounds - 1:
                    assert writer.stdout.readline() == "cleaned\n"  # by now, or soon
                process.kill()
            found = seen(target, table) if target.exists() else []
            assert len(found) == len(set(found))
        written, cleaned = (int(word) for word in writer.communicate("\n", timeout=60)[0].split())
    assert not killed(log, target, *options)
    assert seen(target, table) == list(range(written))
    assert table != "parquet" or visible(target) == committed(target)
    assert written > 100 * rounds
    assert cleaned > 0
