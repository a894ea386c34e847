"""An ingest in a process of its own, to kill: `python -m tests.spark.ingest.ingester LOG TARGET [options]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

from forelog.spark.pipeline.ingest import Ingest
from forelog.spark.pipeline.ingest_plan import Plan
from forelog.spark.pipeline.ingest_run import run_here, run_on
from forelog.spark.remote import is_remote
from forelog.spark.session import session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("target")
    parser.add_argument("--table", default="parquet")
    parser.add_argument("--catalog", help="that of an Iceberg table")
    parser.add_argument("--die-at", help="the step after which to be killed")
    parser.add_argument("--times", type=int, default=1, help="at which time that it comes there")
    parser.add_argument("--follow", action="store_true")
    parser.add_argument("--spark", action="store_true", help="run tasks on Spark, not here")
    chosen = parser.parse_args()
    seen = 0

    def reached(step: str) -> None:
        nonlocal seen
        seen += step == chosen.die_at
        if seen >= chosen.times and step == chosen.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    # Starting Spark takes long, and so do Iceberg's commits and those to a bucket: much is written meanwhile.
    slow = chosen.table == "iceberg" or is_remote(chosen.target)
    much = 100 if chosen.spark or (slow and not chosen.die_at) else 1
    plan = Plan(
        table=chosen.table,
        catalog=chosen.catalog,
        partition_by="date",
        compact_below=1 << 20,
        slice_bytes=2000 * much,
        commit_bytes=20_000 * much,
    )
    work = Ingest(
        chosen.log,
        chosen.target,
        run_on(session("local[2,2]")) if chosen.spark else run_here,
        plan,
        reached=reached,
    )
    sys.stdout.write("started\n")
    sys.stdout.flush()
    if chosen.follow:
        work.follow(0.02, threading.Event())
    else:
        work.once()


if __name__ == "__main__":
    main()
