"""A Spark stream of a log, into a sink that notes the rows of each micro-batch, in a process of its own.

python -m tests.readers.spark_stream LOG FOLDER
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from forelog import Position
from forelog.spark import session
from tests.readers.ledger import Noted
from tests.readers.pair import LogPair
from tests.readers.records import Notes, Seen, last_seen, read_seen

TRIGGER = "1500 milliseconds"


class SparkStream(LogPair):
    """A stream beside a writer. The JVM has much to do of its own: only Python's CPU time is counted."""

    reader = "spark"
    module = "tests.readers.spark_stream"
    resting = ("java",)

    def has(self, noted: Noted) -> bool:
        return last_seen(self.folder) >= max(noted.acked, default=0)

    def seen(self) -> list[Seen]:
        return read_seen(self.folder)


class Sink:
    """Notes each micro-batch once, in the log's order."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._last = -1

    def __call__(self, frame: Any, batch: int) -> None:
        if batch <= self._last:
            return  # Spark may run a micro-batch again: a sink that wants each row once goes by its number
        self._last = batch
        columns = frame.select("segment", "offset", "payload").toArrow()
        rows = zip(*(columns[name].to_pylist() for name in ("segment", "offset", "payload")), strict=True)
        position = None
        for segment, offset, data in sorted(rows, key=lambda row: row[:2]):
            position = Position(segment, offset)
            self._notes.add(data, position)
        if position is not None:
            self._notes.end()
            self._notes.reach(position)


def cause_of(text: str) -> str:
    """The line of Spark's message that says what was wrong: that of our error, if there is one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("forelog.") and ": " in line]
    return (ours or lines[:1] or ["Spark doesn't say why"])[0]


def main() -> None:
    log, folder = sys.argv[1], Path(sys.argv[2])
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    spark = session("local[2]")
    query = (
        spark.readStream.format("forelog")
        .load(log)
        .writeStream.foreachBatch(Sink(Notes(folder)))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=TRIGGER)
        .start()
    )
    query.processAllAvailable()
    print("ready", flush=True)
    while not ended.wait(0.1):
        if (error := query.exception()) is not None:
            raise SystemExit(cause_of(str(error)))
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
