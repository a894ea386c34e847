"""The life of every job, from the commands of a job server's log.

    jobs(commands)        a row for each job
    named(commands)       the commands, each with the name of its job's queue
    queue_stats(jobs)     a row for each queue: counts, percentiles, rates
    queue_rates(jobs)     a row for each queue and minute
    stuck(jobs, now)      jobs that wait or run for too long
    poisoned(jobs)        jobs that fail again and again

An id may be used again when its job is gone: each use is a *life*. A life ends with a delete or an expire, or with
its ttl if an add of the same id follows, because a restarted server drops expired jobs without a record. A `run`
has no add in the log: its life starts with its first attempt, and its queue is unknown.

A life's `outcome` is the result of the work. It stays when the job is removed:

==========  =========================================================================================
outcome
==========  =========================================================================================
completed   a complete came first
failed      a fail that was the last one allowed (the first, without max_fails), or a timeout of the last
            attempt
deleted     deleted before it was either
expired     expired before it was either
leased      its last attempt has not ended in the log
waiting     it waits for its first or next attempt, or for its time
==========  =========================================================================================

Times are those of the records. Waiting is the time from when a job is due (scheduled or added) to its first
attempt. Running is the time from the start of the last attempt to its result. All of it takes one shuffle by id.
Payloads and results are only measured, not moved.

If a table has a column `log`, jobs of different logs are kept apart. `by_log` tells whether it has one, because a
declarative pipeline must not analyze a table while it is being defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from forelog.jobs.machine.limits import ATTEMPTS_MAX
from forelog.spark.pipeline.input import log_columns, need_columns
from forelog.times import TimeLike, parse_duration, parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PATIENCE = "10m"
ATTEMPTS_POISONED = 3
OUTCOMES = ("completed", "failed", "deleted", "expired", "leased", "waiting")

_NEEDED = ("segment", "offset", "time", "command", "id", "name", "ttr_ms", "ttl_ms", "max_attempts", "max_fails")
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def jobs(commands: DataFrame, *, by_log: bool | None = None) -> DataFrame:
    """A row for each life of each job of a command log. Invalid records are left out."""
    if by_log is None:
        need_columns(commands, _NEEDED, "jobs")
    keys = [*_log(commands, by_log), "id"]
    lives = lives_of(commands, by_log=by_log).groupBy(*keys, "life").agg(*_facts())
    return lives.select(*keys, "life", *_columns())


def named(commands: DataFrame, *, by_log: bool | None = None) -> DataFrame:
    """The commands, with the queue's name in every row of a job, not only in that of its add.

    It stays null if the log doesn't have the add, as for a job of `run`, or one whose add was cleaned away.
    """
    if by_log is None:
        need_columns(commands, ("segment", "offset", "command", "id", "name"), "named")
    keys = [*_log(commands, by_log), "id"]
    before = Window.partitionBy(*keys).orderBy("segment", "offset").rowsBetween(Window.unboundedPreceding, -1)
    uses = F.coalesce(F.count_if(F.col("command").isin("delete", "expire")).over(before), F.lit(0))
    so_far = Window.partitionBy(*keys, "uses").orderBy("segment", "offset").rowsBetween(*_UP_TO_NOW)
    name = F.when(F.col("id").isNotNull(), F.last("name", True).over(so_far))
    return commands.withColumn("uses", uses).withColumn("name", name).drop("uses")


def lives_of(commands: DataFrame, *, by_log: bool | None = None) -> DataFrame:
    """Every command with its place in the log, and the number of the life, among those of its id."""
    log = _log(commands, by_log)
    return _with_lives(_measured(commands, log), [*log, "id"])


def _log(df: DataFrame, by_log: bool | None) -> list[str]:
    if by_log is None:
        return log_columns(df)
    return ["log"] if by_log else []


def _measured(commands: DataFrame, log: Sequence[str]) -> DataFrame:
    """Commands with what is needed of them: sizes instead of bytes, and when a job's ttl is over."""
    added = F.col("command").isin("add", "schedule")
    # Null for a time that Spark's timestamps can't tell: such a job never expires.
    due = F.when(F.col("command") == "schedule", F.col("scheduled")).otherwise(F.coalesce("scheduled", "created"))
    expires = F.timestamp_micros(F.unix_micros(due) + F.col("ttl_ms") * 1000)
    return commands.where("command is not null").select(
        *log, "id", "segment", "offset", "time", "command", "name", "ttr_ms", "priority",
        "max_attempts", "max_fails", "scheduled", "created",
        F.length("job_payload").alias("payload_bytes"),
        F.length("result").alias("result_bytes"),
        added.alias("is_add"),
        F.when(added, expires).alias("expires"),
    )  # fmt: skip


def _with_lives(commands: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Commands with the number of the life that each belongs to, and what came before it in that life."""
    order = Window.partitionBy(*keys).orderBy("segment", "offset")
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    gone = F.col("command").isin("delete", "expire")
    alive_until = F.last(F.when(F.col("is_add"), F.col("expires")).when(gone, F.timestamp_micros(F.lit(0))), True)
    commands = commands.withColumns(
        {"alive_until": alive_until.over(before), "was_gone": F.coalesce(F.lag(gone).over(order), F.lit(False))}
    )
    begins = F.when(
        F.col("is_add"), F.col("alive_until").isNull() | (F.col("alive_until") < F.col("time"))
    ).otherwise(F.col("was_gone"))
    commands = commands.withColumn("life", F.sum(begins.cast("int")).over(order.rowsBetween(*_UP_TO_NOW)))
    life = Window.partitionBy(*keys, "life").orderBy("segment", "offset")
    running = life.rowsBetween(*_UP_TO_NOW)
    # A timeout of a job that isn't leased is a fail that isn't the last; that of a leased job has one before it.
    max_fails = F.coalesce(F.first("max_fails", True).over(running), F.lit(0))
    timeout, previous = F.col("command") == "timeout-attempt", F.lag("command").over(life)
    commands = commands.withColumn("is_fail", timeout & (previous != "start-attempt") & (max_fails > 1))
    commands = commands.withColumns(
        {
            "is_timeout": timeout & ~F.col("is_fail") & ~F.coalesce(F.lead("is_fail").over(life), F.lit(False)),
            "is_fail": F.col("is_fail") | (F.col("command") == "fail"),
        }
    )
    return commands.withColumns(
        {
            "starts": F.count_if(F.col("command") == "start-attempt").over(running),
            "fails": F.count_if("is_fail").over(running),
            "fails_max": F.greatest(F.coalesce(F.first("max_fails", True).over(running), F.lit(0)), F.lit(1)),
            "attempts_max": F.coalesce(F.first("max_attempts", True).over(running), F.lit(0)),
            "until": F.lead("time").over(life),
        }
    )


_UP_TO_NOW = (Window.unboundedPreceding, Window.currentRow)


def _facts() -> list[Column]:
    """All facts about a life that its commands tell."""
    command, place = F.col("command"), F.struct("segment", "offset")
    spent = F.col("starts") >= F.coalesce(F.nullif(F.col("attempts_max"), F.lit(0)), F.lit(ATTEMPTS_MAX))
    last_fail = (command == "fail") & ((F.col("fails") >= F.col("fails_max")) | spent)
    last_timeout = (command == "timeout-attempt") & (F.col("attempts_max") > 0) & spent
    final = (command == "complete") | last_fail | last_timeout
    event = F.struct("segment", "offset", "time", "command", "result_bytes")
    start, add = command == "start-attempt", F.col("is_add")
    return [
        *(
            F.min_by(F.when(add, F.col(name)), F.when(add, place)).alias(name)
            for name in ("name", "ttr_ms", "priority", "max_attempts", "max_fails", "payload_bytes", "scheduled")
        ),
        F.max(F.when(add, F.col("expires"))).alias("expires"),
        F.min(F.when(add, event)).alias("add"),
        F.min(F.when(final, event)).alias("end"),
        F.max(F.when(command.isin("delete", "expire"), event)).alias("gone"),
        F.max(event).alias("latest"),
        F.min(F.when(start, F.col("time"))).alias("first_lease"),
        F.max(F.when(start, F.col("time"))).alias("last_lease"),
        F.count_if(start).cast("int").alias("attempts"),
        F.count_if("is_timeout").cast("int").alias("timeouts"),
        F.count_if("is_fail").cast("int").alias("fails"),
        F.sum(F.when(start, _ms_between("time", "until"))).alias("leased_ms"),
    ]


def _columns() -> list[Column]:
    """The columns of a row, from the facts of a life."""
    kind = F.coalesce(F.col("add.command"), F.lit("run")).alias("kind")
    ended, gone = F.col("end.command"), F.col("gone.command")
    outcome = (
        F.when(ended == "complete", "completed")
        .when(ended.isNotNull(), "failed")
        .when(gone == "delete", "deleted")
        .when(gone == "expire", "expired")
        .when(F.col("latest.command") == "start-attempt", "leased")
        .otherwise("waiting")
    )
    # A run is due when it is leased: the log doesn't have the time of the request.
    due = F.coalesce(F.greatest("scheduled", "add.time"), F.when(F.col("add").isNull(), F.col("first_lease")))
    waited = _ms_between(due, "first_lease")  # negative where a server's clock was set back
    finished = F.col("end.time")
    return [
        F.col("name"),
        kind,
        outcome.alias("outcome"),
        F.col("priority"),
        F.col("add.time").alias("added"),
        F.col("scheduled"),
        due.alias("due"),
        F.col("first_lease"),
        F.col("last_lease"),
        finished.alias("finished"),
        F.col("gone.time").alias("removed"),
        gone.alias("removed_by"),
        F.col("latest.time").alias("last_seen"),
        F.col("expires"),
        F.col("ttr_ms"),
        F.col("attempts"),
        F.col("max_attempts"),
        F.col("timeouts"),
        F.col("fails"),
        F.col("max_fails"),
        F.when(waited < 0, 0.0).otherwise(waited).alias("waiting_ms"),
        F.when(finished >= F.col("last_lease"), _ms_between("last_lease", finished)).alias("running_ms"),
        F.col("leased_ms"),
        F.col("payload_bytes"),
        F.col("end.result_bytes").alias("result_bytes"),
    ]


def _ms_between(start: Column | str, end: Column | str) -> Column:
    return (F.unix_micros(end) - F.unix_micros(start)) / 1000.0


# -- queues


def queue_stats(jobs: DataFrame, *, by_log: bool | None = None) -> DataFrame:
    """A row for each queue: jobs by outcome, percentiles of waiting and running, and rates per minute.

    Percentiles of waiting are over the jobs that were leased, those of running over the jobs that ended. They are
    approximate. Rates are over the time from the queue's first command to its last, at least a minute.
    """
    span = F.greatest(_ms_between(F.min("began"), F.max("last_seen")) / 60_000, F.lit(1.0))
    percentiles = [
        F.percentile_approx(f"{what}_ms", share).alias(f"{what}_ms_{name}")
        for what in ("waiting", "running")
        for name, share in _PERCENTILES.items()
    ]
    keys = [*_log(jobs, by_log), "name"]
    table = jobs.withColumn("began", F.coalesce("added", "first_lease", "last_seen")).groupBy(*keys)
    return table.agg(
        F.count("*").alias("jobs"),
        *(F.count_if(F.col("outcome") == name).alias(name) for name in OUTCOMES),
        F.sum("attempts").alias("attempts"),
        F.sum("timeouts").alias("timeouts"),
        F.sum("fails").alias("fails"),
        *percentiles,
        F.max("waiting_ms").alias("waiting_ms_max"),
        F.max("running_ms").alias("running_ms_max"),
        F.sum("payload_bytes").alias("payload_bytes"),
        F.sum("result_bytes").alias("result_bytes"),
        F.min("began").alias("first_time"),
        F.max("last_seen").alias("last_time"),
        (F.count("added") / span).alias("added_per_minute"),
        (F.count("finished") / span).alias("finished_per_minute"),
    )


def queue_rates(jobs: DataFrame, width: str = "1 minute") -> DataFrame:
    """A row for each queue and window of time: how many jobs were added, leased for the first time, finished."""
    keys = [*log_columns(jobs), "name"]
    events = {"added": "added", "leased": "first_lease", "finished": "finished"}
    happened = F.explode(F.array(*(F.struct(F.lit(what).alias("what"), F.col(column).alias("time"))
                                   for what, column in events.items())))  # fmt: skip
    rows = jobs.select(*keys, happened.alias("event")).where("event.time is not null")
    counted = rows.groupBy(*keys, F.window("event.time", width).alias("window")).agg(
        *(F.count_if(F.col("event.what") == what).alias(what) for what in events)
    )
    return counted.select(*keys, F.col("window.start").alias("start"), *events)


# -- trouble


def stuck(jobs: DataFrame, now: TimeLike, *, patience: str = PATIENCE) -> DataFrame:
    """Jobs that wait or run for too long as of `now`, with the reason in the column `why`.

    - `lease over`: leased, and its ttr is over by more than `patience`, but no timeout was written: its server is
      down, or was.
    - `not leased`: due for longer than `patience`, and no attempt was made since: it has no workers, too few,
      or all of them are busy.

    A job whose ttl is over is neither: it is gone as soon as a server looks.
    """
    late_us = parse_time(now) // 1000 - parse_duration(patience) // 1000
    waits_since = F.greatest(F.unix_micros("due"), F.unix_micros("last_seen"))
    lease_end = F.unix_micros("last_lease") + F.coalesce(F.col("ttr_ms"), F.lit(0)) * 1000
    why = F.when((F.col("outcome") == "leased") & (lease_end < late_us), "lease over").when(
        (F.col("outcome") == "waiting") & (waits_since < late_us), "not leased"
    )
    alive = F.col("expires").isNull() | (F.unix_micros("expires") >= parse_time(now) // 1000)
    return jobs.where(alive & F.col("removed").isNull()).withColumn("why", why).where("why is not null")


def poisoned(jobs: DataFrame, *, attempts: int = ATTEMPTS_POISONED) -> DataFrame:
    """Jobs that their workers choke on, with the reason in the column `why`.

    - `attempts used up`: it failed with a timeout of its last attempt, so that no worker ever answered.
    - `keeps timing out`, `keeps failing`: at least `attempts` of its attempts ended so, and none completed it.
    """
    unanswered = (F.col("outcome") == "failed") & F.col("result_bytes").isNull()
    why = (
        F.when(unanswered, "attempts used up")
        .when(F.col("timeouts") >= attempts, "keeps timing out")
        .when(F.col("timeouts") + F.col("fails") >= attempts, "keeps failing")
    )
    return jobs.where("outcome <> 'completed'").withColumn("why", why).where("why is not null")
