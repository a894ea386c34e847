"""A log that is appended to at 100,000 records a second, read by a Spark stream: `make soak-spark`.

A process of its own appends, and forgets all but the last gigabyte. A streaming query takes what comes in, a
micro-batch a second. Every minute a line says how far the query was behind at worst, how long its batches took,
and how much memory is in use. At the end: did the lag stay bounded, was every record read once, and has the
driver's memory stopped growing? If not, the command ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forelog import KeepLast, Stream
from forelog.spark import session

RECORD_BYTES = 100
APPENDS_PER_SECOND = 50
KEPT_BYTES = 1 << 30
SEGMENT_BYTES = 64 << 20
BATCH_RECORDS_MAX = 1_000_000
LAG_SECONDS_MAX = 15.0
WARM_SHARE = 0.3  # of the time: until then a JVM compiles, and its heap finds its size
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """What was seen in a minute, or in a tenth of a shorter run."""

    seconds: float
    """Since the start, at its end."""
    written: int
    read: int
    lag_records: int
    lag_seconds: float
    """At worst, both."""
    batches_ms: tuple[int, ...]
    driver_bytes: int
    """Python's, with the process in which Spark keeps the stream's reader."""
    heap_bytes: int
    """The JVM's, after a collection."""
    jvm_bytes: int
    """All that the JVM has."""

    def line(self) -> str:
        batches = self.batches_ms or (0,)
        middle, longest = statistics.median(batches), max(batches)
        return (
            f"{self.seconds:7.0f} s {self.written:12,} {self.read:12,} {self.lag_records:9,} "
            f"{self.lag_seconds:5.1f} s {len(self.batches_ms):4} {middle:6,.0f} {longest:6,} "
            f"{self.driver_bytes / MIB:8.0f} {self.heap_bytes / MIB:8.0f} {self.jvm_bytes / MIB:8.0f}"
        )


HEAD = "     time      written         read   lag at worst  batches  p50 ms  max   MiB: driver, heap, JVM"


def verdict(windows: list[Window], expected: int) -> list[str]:
    """What is wrong with a run, one line each; nothing if it is as it should be."""
    warm = windows[int(len(windows) * WARM_SHARE) :]
    written, read = windows[-1].written, windows[-1].read
    wrong = []
    if written < 0.98 * expected:
        wrong.append(f"{written:,} records were written of {expected:,}: this machine is too busy")
    if written != read:
        wrong.append(f"{written:,} records were written and {read:,} read")
    worst = max(window.lag_seconds for window in warm)
    if worst > LAG_SECONDS_MAX:
        wrong.append(f"the stream was {worst:.1f} s behind: more than {LAG_SECONDS_MAX:.0f}")
    for name, noise in (("driver_bytes", 16 * MIB), ("heap_bytes", 16 * MIB), ("jvm_bytes", 64 * MIB)):
        sizes = [getattr(window, name) for window in warm]
        third = max(len(sizes) // 3, 1)
        before, after = statistics.median(sizes[:third]), statistics.median(sizes[-third:])
        if after > 1.1 * before + noise:
            wrong.append(f"{name} grew from {before / MIB:.0f} to {after / MIB:.0f} MiB")
    return wrong


# -- the writer, a process of its own


def write(path: str, seconds: float, rate: int) -> None:
    """Append at a rate, and say how many there are and when; ended by time, or by the end of who started it."""
    stream = Stream(path)
    done = threading.Event()
    forgetter = threading.Thread(target=_forget, args=(stream, done))
    forgetter.start()
    size = rate // APPENDS_PER_SECOND
    filler = b"x" * (RECORD_BYTES - 12)
    start, written = time.monotonic(), 0
    try:
        with stream.appender(segment_bytes=SEGMENT_BYTES) as log:
            while (now := time.monotonic() - start) < seconds:
                while written < now * rate:
                    log.append_many([b"%012d" % n + filler for n in range(written, written + size)])
                    written += size
                print(time.monotonic(), written, flush=True)
                time.sleep(max(written / rate - (time.monotonic() - start), 0))
    finally:
        done.set()
        forgetter.join()


def _forget(stream: Stream, done: threading.Event) -> None:
    while not done.wait(20):
        with stream.cleaner() as cleaner:
            cleaner.clean(KeepLast(byte_count=KEPT_BYTES))


class Writer:
    """The writer as the other process sees it: how much there was, and when."""

    def __init__(self, path: Path, seconds: float, rate: int) -> None:
        words = [sys.executable, "-m", "benchmarks.soak_spark", "--write", str(path), str(seconds), str(rate)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._times: deque[float] = deque(maxlen=APPENDS_PER_SECOND * 300)
        self._counts: deque[int] = deque(maxlen=APPENDS_PER_SECOND * 300)
        self._lock = threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at, count = line.split()
            with self._lock:
                self._times.append(float(at))
                self._counts.append(int(count))

    @property
    def written(self) -> int:
        with self._lock:
            return self._counts[-1] if self._counts else 0

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None and not self._listener.is_alive()

    def lag(self, read: int) -> tuple[int, float]:
        """How far behind one is who has read so many: records, and seconds since the first one missing."""
        with self._lock:
            if not self._counts or read >= self._counts[-1]:
                return 0, 0.0
            place = bisect_left(self._counts, read + 1)
            return self._counts[-1] - read, time.monotonic() - self._times[place]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


# -- the reader


class Reader:
    """A streaming query, and what it has told of its batches."""

    def __init__(self, spark: Any, path: Path, folder: Path) -> None:
        stream = spark.readStream.format("forelog").option("maxRecordsPerBatch", BATCH_RECORDS_MAX).load(str(path))
        self.query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="1 second")
            .start()
        )
        self.read = 0
        self._last = -1

    def look(self) -> list[int]:
        """How long the batches took that have ended since one looked last."""
        if self.query.exception() is not None:
            raise self.query.exception()
        took = []
        for progress in self.query.recentProgress:
            if progress["batchId"] > self._last and progress["numInputRows"]:
                self._last = progress["batchId"]
                self.read += progress["numInputRows"]
                took.append(progress["durationMs"]["triggerExecution"])
        return took


class Memory:
    """What the driver uses: this process, the JVM, and the Python process that plans the stream's batches."""

    def __init__(self, spark: Any) -> None:
        self._java = spark.sparkContext._jvm.java.lang
        self._jvm_pid = int(self._java.ProcessHandle.current().pid())

    def sizes(self) -> tuple[int, int, int]:
        self._java.System.gc()
        runtime = self._java.Runtime.getRuntime()
        planners = [pid for pid in _children(self._jvm_pid) if "daemon" not in _command(pid)]
        python = _rss(os.getpid()) + sum(map(_rss, planners))
        return python, runtime.totalMemory() - runtime.freeMemory(), _rss(self._jvm_pid)


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# -- all of it


def soak(folder: Path, seconds: float, rate: int) -> Iterator[Window]:
    """Run, and tell of each window; the last one is when all that was written has been read."""
    spark = session("local[2]", spark_sql_streaming_numRecentProgressUpdates=20)
    path = folder / "log"
    with Stream(path).appender() as log:
        log.append(b"first")
    memory, reader = Memory(spark), Reader(spark, path, folder)
    while not reader.read:  # Spark starts its workers for the first batch: that is no lag
        reader.look()
        time.sleep(0.2)
    reader.read = 0
    writer = Writer(path, seconds, rate)
    width = max(min(60.0, seconds / 10), 3.0)
    start = time.monotonic()
    try:
        while not (writer.ended and reader.read >= writer.written):
            until = time.monotonic() + width
            batches: list[int] = []
            lags = [(0, 0.0)]
            while time.monotonic() < until and not (writer.ended and reader.read >= writer.written):
                lags.append(writer.lag(reader.read))
                batches += reader.look()
                time.sleep(0.2)
                if time.monotonic() - start > seconds + 120:
                    return
            behind = max(lags)[0], max(lag for _, lag in lags)
            now = time.monotonic() - start
            yield Window(now, writer.written, reader.read, *behind, tuple(batches), *memory.sizes())
    finally:
        reader.query.stop()
        writer.close()
        spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=int, default=100_000, help="records a second")
    parser.add_argument("--json", help="a file for the numbers")
    parser.add_argument("--write", nargs=3, metavar=("PATH", "SECONDS", "RATE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        write(asked.write[0], float(asked.write[1]), int(asked.write[2]))
        return 0
    folder = Path(tempfile.mkdtemp(prefix="forelog-soak-"))
    windows = []
    try:
        print(f"{asked.rate:,} records/s of {RECORD_BYTES} B for {asked.seconds:.0f} s\n{HEAD}", flush=True)
        for window in soak(folder, asked.seconds, asked.rate):
            windows.append(window)
            print(window.line(), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        rows = [{name: getattr(window, name) for name in Window.__slots__} for window in windows]
        Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")
    wrong = verdict(windows, int(asked.rate * asked.seconds))
    print(
        *(wrong or ["steady: the lag stayed bounded, every record was read once, memory has stopped growing"]),
        sep="\n",
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
