"""A table that an ingest keeps up with a log, in a process of its own.

    python -m tests.readers.table LOG FOLDER

It is brought up to date, as `forelog pipeline ingest` does. If that has brought rows it is kept up for a while,
as `forelog pipeline ingest --follow` does; and so on, until SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq

from forelog import Position
from forelog.spark.pipeline.ingest import Ingest
from forelog.spark.pipeline.ingest_plan import Plan
from forelog.spark.pipeline.ingest_run import run_here
from forelog.spark.tables.commits import load_state
from forelog.spark.tables.storage import storage_of
from tests.readers.ledger import Noted
from tests.readers.pair import LogPair
from tests.readers.records import Notes, Seen, as_seen

TARGET = "table"
LOG_NAME = "log"
FOLLOW_SECONDS = 1.5
EVERY_SECONDS = 0.5
REST_SECONDS = 4.0
SLICE_BYTES = 1 << 20


class IngestedTable(LogPair):
    """An ingest beside a writer."""

    reader = "ingest"
    module = "tests.readers.table"

    def has(self, noted: Noted) -> bool:
        places = [position for position in noted.acked.values() if position is not None]
        return table_end(self.folder / TARGET) > max(places, default=Position(0, 0))

    def progress(self) -> object:
        return table_end(self.folder / TARGET)

    def seen(self) -> list[Seen]:
        """A table has no order: its rows are sorted by position."""
        target, rows = self.folder / TARGET, []
        for name in load_state(storage_of(str(target))).files:
            columns = pq.ParquetFile(target / name).read(columns=["segment", "offset", "payload"])
            places = zip(columns["segment"].to_pylist(), columns["offset"].to_pylist(), strict=True)
            positions = [Position(*place) for place in places]
            rows += as_seen(zip(columns["payload"].to_pylist(), positions, strict=True))
        return sorted(rows, key=lambda row: row.position)


def table_end(target: Path) -> Position:
    """How far a table goes in its log."""
    return load_state(storage_of(str(target))).positions.get(LOG_NAME, Position(0, 0))


def main() -> None:
    log, folder = sys.argv[1], Path(sys.argv[2])
    target, notes = folder / TARGET, Notes(folder)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    def reached(step: str) -> None:
        if step == "announced":
            notes.reach(table_end(target))

    def ingest() -> Ingest:
        plan = Plan(slice_bytes=SLICE_BYTES, commit_bytes=4 * SLICE_BYTES)
        return Ingest(log, str(target), run_here, plan, reached=reached)

    ingest().once()
    print("ready", flush=True)
    while not ended.is_set():
        if ingest().once().rows:
            _follow(ingest(), ended)
        else:
            ended.wait(REST_SECONDS)


def _follow(work: Ingest, ended: threading.Event) -> None:
    """For a while, or until the end."""
    stop = threading.Event()
    deadline = time.monotonic() + FOLLOW_SECONDS

    def watch() -> None:
        while not ended.wait(0.05) and time.monotonic() < deadline:
            pass
        stop.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work.follow(EVERY_SECONDS, stop)
    finally:
        stop.set()
        deadline = 0.0
        watcher.join()


if __name__ == "__main__":
    main()
