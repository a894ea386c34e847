"""The four logs on Spark: who reads them here knows nothing of the programs that wrote them.

activity             what was written in each second, of each kind
jobs                 the life of every job
queues               waiting and running times of each queue
poisoned             jobs that their workers choke on
messages_per_topic   for each topic and second
stock_changes        every change of the stock
stock_at_the_kill    the stock as it was then
power                what each machine drew, twice a second
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from examples.demo.proof import EVENT
from examples.demo.writers import ITEMS
from forelog.spark.pipeline import jobs as job_pipeline
from forelog.spark.pipeline.input import JOB_COLUMNS, read_log
from forelog.spark.pipeline.replay import latest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGS = {
    "messages": ("broker/messages", "messages"),
    "jobs": ("jobs", "commands"),
    "stock": ("stock", "records"),
    "meters": ("meters", "datapoints"),
}
"""For each log where it is, and which codec makes columns of it."""

_ITEM_AT = 4
"""Where an item's name is in a change: after the mark, the type's name (it has none), and two bytes of msgpack."""


def tables(spark: SparkSession, logs: Path, killed_ns: int) -> dict[str, DataFrame]:
    """Every table, not computed yet."""
    commands = read_log(spark, str(logs / "jobs"), JOB_COLUMNS, codec="commands").cache()
    messages = read_log(spark, str(logs / "broker/messages"), ["time", "topic"], codec="messages").cache()
    points = read_log(spark, str(logs / "meters"), ["tags", "timestamp", "value"], codec="datapoints").cache()
    records = read_log(spark, str(logs / "stock"), ["segment", "offset", "time", "payload"])
    events = records.where(F.substring("payload", 1, 1) == F.lit(bytes([EVENT]))).cache()
    lives = job_pipeline.jobs(commands).cache()
    at_the_kill = latest(events, killed_ns, key=slice(_ITEM_AT, _ITEM_AT + len(ITEMS[0])))
    return {
        "activity": _activity({"messages": messages, "commands": commands, "stock changes": events}, points),
        "jobs": _plain(lives),
        "queues": job_pipeline.queue_stats(lives).orderBy("name"),
        "poisoned": _plain(job_pipeline.poisoned(lives)),
        "messages_per_topic": _windows(messages, "time", "1 second", "topic").orderBy("topic", "start"),
        "stock_changes": _stock(events).orderBy("number"),
        "stock_at_the_kill": _stock(at_the_kill).orderBy("item"),
        "power": power(points).orderBy("machine", "start"),
    }


def _plain(lives: DataFrame) -> DataFrame:
    total = (F.unix_micros("finished") - F.unix_micros("added")) / 1000
    names = [
        "name",
        "id",
        "outcome",
        "added",
        "first_lease",
        "finished",
        "attempts",
        "fails",
        "waiting_ms",
        "running_ms",
    ]
    more = ["why"] if "why" in lives.columns else []
    return lives.select(*names, total.alias("total_ms"), *more).orderBy("added")


def _activity(tables: dict[str, DataFrame], points: DataFrame) -> DataFrame:
    """How much was written in each second: by when it was written, not by what it says."""
    times = [table.select("time", F.lit(kind).alias("kind")) for kind, table in tables.items()]
    times.append(points.select(F.col("timestamp").alias("time"), F.lit("datapoints").alias("kind")))
    every = times[0]
    for table in times[1:]:
        every = every.unionByName(table)
    return _windows(every, "time", "1 second", "kind").orderBy("kind", "start")


def _windows(table: DataFrame, time: str, width: str, by: str) -> DataFrame:
    counted = table.groupBy(by, F.window(time, width).alias("window")).count()
    return counted.select(by, F.col("window.start").alias("start"), F.col("count"))


def power(points: DataFrame) -> DataFrame:
    """A row for each machine and half a second, of the fifty datapoints that there were."""
    machine = F.decode(F.element_at("tags", F.lit(b"machine")), "UTF-8").alias("machine")
    table = points.select(machine, "timestamp", "value").groupBy(
        "machine", F.window("timestamp", "500 milliseconds")
    )
    found = table.agg(
        F.count("*").alias("points"),
        F.min("value").alias("low"),
        F.avg("value").alias("mean"),
        F.max("value").alias("high"),
    )
    return found.select("machine", F.col("window.start").alias("start"), "points", "low", "mean", "high")


def _stock(events: DataFrame) -> DataFrame:
    found = events.withColumn("change", _change("payload"))
    return found.select("time", "change.*", "segment", "offset")


def _change(payload: str) -> Column:
    """What a change says: by the codec that the state log itself has."""

    def decode(data: bytes) -> tuple[str, int, int]:
        from forelog.state import EventCodec

        item, (count, number) = EventCodec().decode(bytes(data)[1:])
        return item, count, number

    return F.udf(decode, "item string, count int, number int", useArrow=False)(payload)
