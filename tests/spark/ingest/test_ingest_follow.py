"""`forelog pipeline ingest --follow`: appends while it runs, signals that end it, and starting it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

from forelog import Stream
from forelog.cli import main
from forelog.spark.pipeline.ingest import read_table
from forelog.spark.tables.commits import load_state
from forelog.spark.tables.storage import storage_of
from tests.children import child
from tests.spark.ingest.test_ingest import append, numbers, visible


def wait_for(target: Path, rows: int, goes_on: Callable[[], bool]) -> None:
    """Until the table has so many, for as long as whoever writes it goes on."""
    while sum(file.rows for file in load_state(storage_of(str(target))).files.values()) < rows:
        assert goes_on(), f"{target} never had {rows} rows"
        time.sleep(0.02)


def command(log: Stream, target: Path, table: str) -> list[str]:
    words = ["ingest", str(log.path), str(target), "--table", table, "--follow", "--every", "0.1", "--json"]
    return ["pipeline", *words]


@pytest.mark.parametrize("table", ["parquet", "delta", "iceberg"])
def test_a_table_follows_its_log_until_a_signal_and_goes_on_after_it(table, spark, tmp_path, capfd):
    pytest.importorskip({"parquet": "pyarrow", "delta": "deltalake", "iceberg": "pyiceberg.catalog.sql"}[table])
    log, target = Stream(str(tmp_path / "log")), tmp_path / "t"
    append(log, 0, 20)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    failed: list[BaseException] = []
    ended = threading.Event()

    def beside(first: int, number: signal.Signals) -> None:
        try:
            wait_for(target, first, lambda: not ended.is_set())
            append(log, first, first + 30)
            wait_for(target, first + 30, lambda: not ended.is_set())
        except BaseException as error:
            failed.append(error)
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), number)

    for first, number in ((20, signal.SIGTERM), (50, signal.SIGINT)):
        ended.clear()
        thread = threading.Thread(target=beside, args=(first, number))
        thread.start()
        capfd.readouterr()
        try:
            assert main(command(log, target, table)) == 0
        finally:
            ended.set()
            thread.join()
        assert not failed
        told = json.loads(capfd.readouterr().out)
        assert told["rows"] == (50 if first == 20 else 30)
        assert told["positions"] == {"log": str(log.end())}
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    payloads = [bytes(row.payload) for row in read_table(spark, target).select("payload").collect()]
    assert sorted(int(payload.split(b":")[0]) for payload in payloads) == list(range(80))


@pytest.mark.slow
def test_a_process_that_is_terminated_ends_with_a_summary(tmp_path):
    log, target = Stream(str(tmp_path / "log")), tmp_path / "t"
    append(log, 0, 20)
    words = [*command(log, target, "parquet")[:-1], "--master", "local[1]"]
    forelog = [sys.executable, "-m", "forelog", *words]
    with child(forelog, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(target, 20, lambda: process.poll() is None)
        append(log, 20, 50)
        wait_for(target, 50, lambda: process.poll() is None)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    said = [line for line in err.splitlines() if "% (" not in line]  # progress, if it took more than ten seconds
    assert (process.returncode, said) == (0, [])
    assert out.startswith(f"{target}: 50 rows in ")
    assert numbers(visible(target)) == list(range(50))
