"""The state as of any position or time.

For a command log, these are the jobs that its server would have, computed by its own state machine. Jobs don't
depend on each other, so they are replayed in parallel, each with all of its commands. For a log of keyed records,
it is the latest record of each key.

As of a *position* means what came before it. As of a *time* means what was written up to and with that time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from forelog.log.position import Position
from forelog.spark.pipeline.input import REPLAY_COLUMNS, log_columns, need_columns
from forelog.times import TimeLike, parse_time, to_datetime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_JOB = (
    "segment int, offset bigint, name string, state string, attempts int, fails int, result binary, "
    "created_ns bigint, scheduled_ns bigint, leased_ns bigint, ttr_ms bigint, ttl_ms bigint, priority int, "
    "max_attempts int, max_fails int, job_payload binary"
)


def replay(
    commands: DataFrame,
    as_of: Position | TimeLike | None = None,
    *,
    now: TimeLike | None = None,
    fails_are_final: bool = False,
) -> DataFrame:
    """The jobs of a command log as of a position or a time, a row each; `segment` and `offset` are of their adds.

    Jobs whose ttl is over by `now` are left out, as a server does it that starts then. That is by default the time
    asked for; for a position, the time of the record before it; for the whole log, now.
    """
    need_columns(commands, REPLAY_COLUMNS, "replay")
    keys = [*log_columns(commands), "id"]
    past = until(commands, as_of).where("id is not null")
    now_ns = _now(past, as_of, now)
    place = F.struct("segment", "offset", "time_ns", "payload")
    lives = past.groupBy(*keys).agg(F.array_sort(F.collect_list(place)).alias("commands"))
    kind = f"array<struct<{_types(_JOB)}>>"
    fold = F.udf(lambda rows: _fold(rows, now_ns, fails_are_final), kind, useArrow=False)  # that would need pandas
    # A list of one job or none, taken apart: a filter on a job would run the function twice.
    found = lives.select(*keys, F.explode(fold("commands")).alias("job")).select(*keys, "job.*")
    times = {name: _timestamp(f"{name}_ns") for name in ("created", "scheduled", "leased")}
    expires = F.expr("timestamp_micros(div(coalesce(scheduled_ns, created_ns), 1000) + ttl_ms * 1000)")
    return found.withColumns({**times, "expires": expires})


def latest(
    records: DataFrame,
    as_of: Position | TimeLike | None = None,
    *,
    key: slice | None = None,
    until_byte: bytes | None = None,
) -> DataFrame:
    """The latest record of each key as of a position or a time.

    The key is as of `forelog.KeepLatest`: a part of the payload, or what comes before the first byte `until_byte`,
    or both: what comes before that byte within the part.
    """
    need_columns(records, ["segment", "offset", "payload"], "latest")
    rest = [name for name in records.columns if name not in ("log", "segment", "offset")]
    keyed = until(records, as_of).withColumn("key", key_of(key, until_byte))
    newest = keyed.groupBy(*log_columns(records), "key").agg(
        F.max(F.struct("segment", "offset", *rest)).alias("record")
    )
    return newest.select(*log_columns(records), "key", "record.*")


def key_of(key: slice | None, until_byte: bytes | None) -> Column:
    """The key of a record, as a column of bytes."""
    if key is None and until_byte is None:
        raise ValueError("a key is a part of the payload, or what comes before a byte: give one of them, or both")
    found = F.col("payload")
    if key is not None:
        start = key.start or 0
        length = F.lit(2**31 - 1) if key.stop is None else F.lit(max(key.stop - start, 0))
        found = F.substring(found, F.lit(start + 1), length)
    if until_byte is not None:
        # Latin-1 has a character for each byte, so that texts can be cut as bytes are.
        text = F.substring_index(F.decode(found, "ISO-8859-1"), until_byte.decode("latin-1"), 1)
        found = F.encode(text, "ISO-8859-1")
    return found


def until(table: DataFrame, as_of: Position | TimeLike | None) -> DataFrame:
    """The rows that there were as of a position or a time."""
    if as_of is None:
        return table
    if isinstance(as_of, Position):
        segment, offset = F.col("segment"), F.col("offset")
        return table.where((segment < as_of.segment) | ((segment == as_of.segment) & (offset < as_of.offset)))
    time_ns = parse_time(as_of)
    if "time_ns" in table.columns:
        return table.where(F.col("time_ns") <= time_ns)
    return table.where(F.col("time") <= to_datetime(time_ns))


def _now(past: DataFrame, as_of: Position | TimeLike | None, now: TimeLike | None) -> int:
    if now is not None:
        return parse_time(now)
    if isinstance(as_of, Position):
        row = past.agg(F.max("time_ns")).first()
        return 0 if row is None or row[0] is None else int(row[0])
    return time.time_ns() if as_of is None else parse_time(as_of)


def _fold(rows: Sequence[Any], now_ns: int, fails_are_final: bool) -> list[tuple[Any, ...]]:
    """The job that is left of one id's commands, in a list, or none."""
    from forelog.errors import BadCommand
    from forelog.formats.commands.commands import decode
    from forelog.jobs.log.replay import Replay

    logging.getLogger("forelog").setLevel(logging.ERROR)  # contradictions would be told once per task
    state = Replay(now_ns, fails_are_final=fails_are_final)
    added = (0, 0)
    for row in rows:
        try:
            command = decode(bytes(row.payload))
        except BadCommand:
            continue
        known = bool(state.jobs)
        state.apply(command, row.time_ns)
        if state.jobs and not known:
            added = (row.segment, row.offset)
    return [
        (
            *added, job.name, job.state.name.lower(), job.attempts, job.fails, job.result, job.created_ns,
            job.scheduled_ns, job.leased_ns, job.ttr_ms, job.ttl_ms, job.priority, job.max_attempts, job.max_fails,
            job.payload,
        )
        for job in state.jobs.values()
    ]  # fmt: skip


def _types(columns: str) -> str:
    """Columns as the fields of a struct."""
    return ", ".join(f"{name}: {kind}" for name, kind in (column.split() for column in columns.split(", ")))


def _timestamp(name: str) -> Column:
    return F.timestamp_micros(F.expr(f"div({name}, 1000)"))
