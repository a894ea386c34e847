"""The declarative pipeline of examples/, run as anybody would run it: by Spark's own command."""

from __future__ import annotations

from pathlib import Path

import pytest

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
for needed in ("yaml", "grpc", "pandas"):
    pytest.importorskip(needed, reason="pyspark[pipelines] is not installed")

from examples.command_pipeline import run as example  # noqa: E402
from examples.command_pipeline.make_log import append_jobs  # noqa: E402

from forelog.spark.pipeline.input import JOB_COLUMNS, read_log  # noqa: E402
from forelog.spark.pipeline.jobs import jobs, queue_stats  # noqa: E402

BRONZE, SILVER, GOLD = (f"spark-warehouse/{name}" for name in ("bronze", "silver", "gold"))

pytestmark = pytest.mark.filterwarnings("ignore")


def test_each_run_takes_what_is_new_and_gold_is_what_the_pipeline_says(spark, tmp_path, monkeypatch, request):
    """With `--long` there is a second run, on a server that knows of the first only what is on disk."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")  # starts faster
    log, folder = tmp_path / "commands.log", tmp_path / "pipeline"
    written = 0
    before: set[Path] = set()
    for seed in range(2 if request.config.getoption("--long") else 1):
        more = append_jobs(str(log), 80, seed=seed)
        written += more
        assert example.run(log, folder)[-1].endswith("Run is COMPLETED.")
        assert before <= files(folder)
        assert sum(map(rows, files(folder) - before)) == more
        assert rows(folder / BRONZE) == rows(folder / SILVER) == written
        before = files(folder)
        commands = read_log(spark, str(log), JOB_COLUMNS, codec="commands")
        expected = [row.asDict() for row in queue_stats(jobs(commands)).collect()]
        assert by_queue(pq.read_table(folder / GOLD).to_pylist()) == by_queue(expected)


def rows(path) -> int:
    return pq.read_table(path, columns=["offset"]).num_rows


def files(folder):
    return set((folder / BRONZE).glob("*.parquet"))


def by_queue(rows):
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize(
    ("code", "told", "completed"),
    [
        (0, "Run is COMPLETED.", True),
        (1, "Run is COMPLETED.\n[UNKNOWN_RESPONSE] observed(__python_accumulator__=[", True),
        (1, "Run is COMPLETED.\nno space left on device", False),
        (1, "Run is FAILED.\n[UNKNOWN_RESPONSE] observed(__python_accumulator__=[", False),
        (0, "", False),
    ],
)
def test_only_the_one_harmless_end_is_taken_for_success(code, told, completed):
    assert example.completed(code, told) is completed
