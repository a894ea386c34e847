"""The engine alone: `python -m examples.recovery`.

A log is written, its writer killed, the log torn, recovered, replayed, cleaned and verified. Many producers
write datapoints to a commit log while it rotates. A job server is killed in the middle of a thousand jobs.

Everything is real: a separate process appends orders from four threads, each waiting for its sync, and kill -9
ends it. Whatever it had acknowledged by then must be there afterwards.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from examples import jobs
from forelog import KeepLatest, Position, Stream
from forelog.commitlog import CommitLog, scan_datapoints
from forelog.formats.m3 import Datapoint, Series
from forelog.log.verify import verify

FOLDER = Path("demo/recovery/orders.log")
METRICS = Path("demo/recovery/metrics")
COMMANDS = Path("demo/recovery/jobs.log")
CUSTOMERS = ["ada", "grace", "edsger", "barbara", "donald", "radia", "leslie", "margaret"]
WRITER_SECONDS = 2.5
WATCHED = sys.stdout.isatty()


def main() -> int:
    logging.basicConfig(format="    forelog says: %(message)s", level=logging.WARNING, stream=sys.stdout)
    shutil.rmtree(FOLDER, ignore_errors=True)
    shutil.rmtree(METRICS, ignore_errors=True)
    shutil.rmtree(COMMANDS, ignore_errors=True)
    acknowledged = write_and_kill()
    tear()
    recover(acknowledged)
    middle = replay(acknowledged)
    clean(middle)
    check()
    produce()
    work()
    heading("That was it")
    say(f"The logs are in {FOLDER}, {METRICS} and {COMMANDS}. Look at them:")
    for command in ("stats", "dump --limit 5", "verify"):
        say(f"    .venv/bin/forelog {command} {FOLDER}")
    say(f"    .venv/bin/forelog dump --limit 5 {METRICS}")
    say(f"    .venv/bin/forelog jobs serve -cmdlog-path {COMMANDS}")
    say("The README goes on from here.")
    return 0


# -- the writer, a process of its own


def write_orders(path: str) -> None:
    """Append orders from four threads, each acknowledging on standard output what append returned for."""
    with Stream(path).appender(sync="always", segment_bytes=64 << 10) as log:

        def work(number: int) -> None:
            rng = random.Random(number)
            for serial in range(10**9):
                order = {"customer": rng.choice(CUSTOMERS), "cents": rng.randrange(100, 99_999), "n": serial}
                position = log.append(f"{order['customer']}={json.dumps(order)}".encode())
                sys.stdout.write(f"{position}\n")
                sys.stdout.flush()

        for number in range(4):
            threading.Thread(target=work, args=(number,), daemon=True).start()
        threading.Event().wait()


def write_and_kill() -> list[Position]:
    heading("1  Write ahead", "four threads append orders; each append returns when its record is synced")
    writer = subprocess.Popen(
        [sys.executable, "-m", "examples.recovery", str(FOLDER)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    acknowledged: list[Position] = []
    start = shown = time.monotonic()
    for line in writer.stdout:
        if line.endswith("\n"):
            acknowledged.append(Position.parse(line))
        now = time.monotonic()
        if WATCHED and now - shown > 0.05:
            shown = now
            progress(
                (now - start) / WRITER_SECONDS, f"{len(acknowledged):,} acknowledged, now at {acknowledged[-1]}"
            )
        if now - start > WRITER_SECONDS and writer.poll() is None:
            writer.kill()
    writer.wait()
    end_progress()
    say(f"{len(acknowledged):,} orders were acknowledged when the writer got {red('kill -9')}")
    return acknowledged


# -- what happens to its log


def tear() -> None:
    heading("2  Make it worse", "half a record at the end, as a power failure in the middle of a write leaves it")
    last = sorted(FOLDER.glob("*.log"))[-1]
    record = Stream(FOLDER).format.encode(
        b"an order that was being written when the lights went out", time.time_ns()
    )
    with open(last, "ab") as file:
        file.write(record[: len(record) // 2])
    say(f"{last} now ends in {len(record) // 2} bytes of a record of {len(record)}")


def recover(acknowledged: list[Position]) -> None:
    heading("3  Recover", "opening the log to append scans its last segment and cuts what isn't whole")
    stream = Stream(FOLDER)
    with stream.appender(sync="always") as log:
        position = log.append(b"ada=back in business")
    with stream.cursor() as cursor:
        there = {record.position for record in cursor}
    lost = sum(found not in there for found in acknowledged)
    assert lost == 0, f"{lost} acknowledged orders are lost"
    say(f"{len(there):,} orders found; of the {len(acknowledged):,} acknowledged ones {green('0 are lost')}")
    say(f"appending goes on at {position}, in a new segment: no position is ever used twice")


def replay(acknowledged: list[Position]) -> Position:
    heading("4  Replay", "from the start, from a position, since a time, backward, and as Arrow columns")
    stream = Stream(FOLDER)
    middle = sorted(acknowledged)[len(acknowledged) // 2]
    with stream.cursor(start=middle) as cursor:
        record = next(cursor)
    say(f"the order in the middle   {record.position}  {record.time:%H:%M:%S.%f}  {record.payload[:40].decode()}…")
    with stream.cursor(since=record.time_ns) as cursor:
        say(f"orders since then         {sum(1 for _ in cursor):,}")
    with stream.cursor(reverse=True) as cursor:
        say(f"the last order            {next(cursor).payload.decode()}")
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(stream.scan(["payload"]))
    names = pc.list_element(pc.split_pattern(table["payload"].cast(pa.string()), "=", max_splits=1), 0)
    counts = pc.value_counts(names.combine_chunks()).to_pylist()
    for entry in sorted(counts, key=lambda e: -e["counts"])[:4]:
        bar = blue("▇" * (entry["counts"] * 60 // table.num_rows))
        say(f"    {entry['values']:<10} {entry['counts']:>7,} {bar}")
    return middle


def clean(middle: Position) -> None:
    heading("5  Forget", "keep only the latest order of each customer, in every segment but the last")
    stream = Stream(FOLDER)
    before = folder_bytes()
    with stream.cleaner() as cleaner:
        report = cleaner.clean(KeepLatest(until=b"="))
    say(f"{report.records_dropped:,} orders dropped, {before:,} bytes became {folder_bytes():,}")
    with stream.cursor(start=middle) as cursor:
        record = next(cursor)
    say(f"the position {middle} still works: it now leads to {record.position}")


def check() -> None:
    heading("6  Verify", "every byte of every segment against its checksum")
    report = verify(Stream(FOLDER))
    verdict = green("all right") if report.ok else red("damaged")
    say(f"{report.records:,} records, {report.byte_count:,} bytes: {verdict}")
    assert report.ok


def produce() -> None:
    heading("7  Many producers", "sixteen threads write datapoints in M3's format while files are rotated")
    producers, writes = 16, 5_000
    with CommitLog(METRICS, format="m3", strategy="behind") as log:

        def work(number: int) -> None:
            series = Series(b"cpu", shard=number, tags={b"host": CUSTOMERS[number % 8].encode()})
            for second in range(writes):
                log.write(series, Datapoint(second * 10**9, float(number)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            say(f"rotated to {log.rotate_logs()}, {log.queue_length():,} writes queued")
            time.sleep(0.15)
        log.flush()
        seconds = time.monotonic() - start
        snapshot = log.snapshot()
    rate = producers * writes / seconds
    say(f"{producers * writes:,} datapoints in {seconds:.1f} s, {rate:,.0f} a second, {snapshot['syncs']} syncs")
    swap = snapshot["timings"]["roll"]["seconds_max"] * 1e6
    say(f"the longest swap of files held the writer up for {swap:.0f} microseconds")
    rows = sum(batch.num_rows for batch in scan_datapoints(Stream.open(METRICS), ["value"]))
    assert rows == producers * writes, f"{rows} of {producers * writes} datapoints are there"
    say(f"read back as Arrow columns: {rows:,} datapoints, {green('all there')}")


def folder_bytes() -> int:
    return sum(file.stat().st_size for file in FOLDER.glob("*.log"))


# -- how it looks


def work() -> None:
    heading("A job server, killed in the middle of a thousand jobs")
    jobs.main(str(COMMANDS))


def heading(title: str, subtitle: str = "") -> None:
    print(f"\n{paint('1;36', title)}" + (f"  {paint('2', subtitle)}" if subtitle else ""), flush=True)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def progress(share: float, text: str) -> None:
    width = 28
    done = min(int(share * width), width)
    print(f"\r   {blue('━' * done)}{paint('2', '━' * (width - done))} {text}\033[K", end="", flush=True)


def end_progress() -> None:
    if WATCHED:
        print("\r\033[K", end="")


def paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if WATCHED and "NO_COLOR" not in os.environ else text


def red(text: str) -> str:
    return paint("1;31", text)


def green(text: str) -> str:
    return paint("1;32", text)


def blue(text: str) -> str:
    return paint("34", text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_orders(sys.argv[1])
    else:
        sys.exit(main())
