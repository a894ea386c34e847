"""Spark over the four logs: ingested, made into tables, written as Parquet and Delta, and drawn."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo.clients import Subscriber
from examples.demo.ledger import Ledger
from examples.demo.page import page
from examples.demo.proof import Held
from examples.demo.screen import Screen
from forelog.state import PersistentDict, restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def analyze(
    screen: Screen, folder: Path, starting: Starting, ledger: Ledger, held: list[Held], subscriber: Subscriber
) -> None:
    screen.heading("4  Tables and plots", "the logs as they lie there, on Spark")
    with screen.busy("Spark was started meanwhile; waited for it"):
        spark = starting.session()
    ingest_all(screen, spark, folder)
    found = compute(screen, spark, folder, ledger.killed_ns)
    show_queues(screen, found["queues"].to_pylist())
    agree(screen, folder, ledger, found["stock_at_the_kill"].to_pylist())
    (folder / "report.html").write_text(page(found, ledger, held, subscriber), encoding="utf-8")


class Starting:
    """A Spark session that is started in the background, since that takes a while, and leaves nothing behind."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="forelog-demo-")
        self._spark: SparkSession | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._start, daemon=True)

    def __enter__(self) -> Starting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self._spark is not None:
            self._spark.stop()
        self._scratch.cleanup()

    def session(self) -> SparkSession:
        """The session, as soon as it is there."""
        self._thread.join()
        if self._spark is None:
            raise SystemExit(f"Spark doesn't start: {self._error}")
        return self._spark

    def _start(self) -> None:
        from forelog import spark as forelog_spark

        scratch = self._scratch.name
        try:
            with _stderr_to(f"{scratch}/said"):  # Java greets with a warning, which would be in the way
                self._spark = forelog_spark.session(
                    spark_local_dir=scratch,
                    spark_sql_warehouse_dir=f"{scratch}/warehouse",
                    spark_sql_shuffle_partitions=2,
                )
        except Exception as error:
            self._error = error


@contextmanager
def _stderr_to(path: str) -> Iterator[None]:
    """Send what is written to stderr to a file; what is started meanwhile goes on writing there."""
    saved = os.dup(2)
    try:
        with open(path, "wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def ingest_all(screen: Screen, spark: SparkSession, folder: Path) -> None:
    """Each log to a table that the next ingest would go on with."""
    from examples.demo.tables import LOGS
    from forelog.spark.pipeline.ingest import ingest

    kind = "delta" if importlib.util.find_spec("deltalake") is not None else "parquet"
    with screen.busy(f"four logs ingested to {kind.capitalize()} tables, each row exactly once"):
        rows = {}
        for name, (path, codec) in LOGS.items():
            report = ingest(spark, folder / "logs" / path, folder / "tables" / name, codec=codec, table=kind)
            rows[name] = report.rows
    screen.say("  " + ", ".join(f"{name}: {count:,} rows" for name, count in rows.items()))


def compute(screen: Screen, spark: SparkSession, folder: Path, killed_ns: int) -> dict[str, Any]:
    """Every table as Arrow, written on the way."""
    import pyarrow.parquet as pq

    from examples.demo.tables import tables

    results = folder / "results"
    results.mkdir()
    found = {}
    for name, table in tables(spark, folder / "logs", killed_ns).items():
        with screen.busy(f"table {name.replace('_', ' ')}"):
            found[name] = table.toArrow()
        pq.write_table(found[name], results / f"{name}.parquet")
    try:
        from deltalake import write_deltalake
    except ImportError:
        screen.say(r"no results as Delta: pip install 'forelog\[delta]'")
        return found
    for name, table in found.items():
        write_deltalake(str(results / "delta" / name), table)
    return found


def show_queues(screen: Screen, queues: list[dict[str, Any]]) -> None:
    names = {"jobs": "jobs", "completed": "done", "failed": "failed", "attempts": "attempts"}
    times = {
        "waiting_ms_p50": "waits ms p50",
        "waiting_ms_p99": "p99",
        "running_ms_p50": "runs ms p50",
        "running_ms_p99": "p99",
    }
    rows = [
        [row["name"], *(row[name] for name in names), *(f"{row[name]:,.1f}" for name in times)] for row in queues
    ]
    screen.table(["queue", *(f">{name}" for name in (*names.values(), *times.values()))], rows)


def agree(screen: Screen, folder: Path, ledger: Ledger, by_spark: list[dict[str, Any]]) -> None:
    """The stock at the moment of the kill, found in two ways that know nothing of each other."""
    place = folder / "restored"
    restore(folder / "logs" / "stock", place, ledger.killed_ns)
    with PersistentDict[str, list[int]](str(place)) as stock:
        restored = dict(stock)
    same = restored == {row["item"]: [row["count"], row["number"]] for row in by_spark}
    told = ", ".join(f"{value[0]} {item}" for item, value in sorted(restored.items()))
    screen.say(f"in store when the kill came: {told}")
    if not same:
        raise SystemExit("Spark and a restored state log don't agree on the stock: that must never be")
    screen.say("[green]Spark's replay and a restored state log agree on it[/]")
