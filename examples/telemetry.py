"""Telemetry to Spark: `python -m examples.telemetry`.

Sensors publish over MQTT to a broker whose memory is a log. Here the broker runs in this process, and the
sensors are clients of aiomqtt. To Spark their messages are a table, without an export: it reads the log's files
as they are, while the broker writes them.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import TYPE_CHECKING

import aiomqtt

from forelog import spark as forelog_spark
from forelog.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SENSORS = {"attic": 24.0, "cellar": 11.0, "kitchen": 21.0}
READINGS = 200


async def measure(host: str, port: int, room: str, start: float) -> None:
    """One sensor: it goes on when the broker has acknowledged what it sent."""
    async with aiomqtt.Client(host, port, identifier=room) as client:
        for number in range(READINGS):
            await client.publish(f"home/{room}/temperature", f"{start + number % 10 / 10:.1f}", qos=1)
        await client.publish(f"home/{room}/battery", "97", qos=1)


def statistics(spark: SparkSession, log: str) -> DataFrame:
    """Messages by topic: how many, from what to what, and how long it took."""
    messages = spark.read.format("forelog").option("codec", "messages").load(log)
    readings = messages.selectExpr("topic", "time", "cast(cast(payload as string) as double) as value")
    return readings.groupBy("topic").agg(*_figures()).orderBy("topic")


def _figures() -> list[Column]:
    from pyspark.sql import functions as f

    return [
        f.count("*").alias("messages"),
        f.min("value").alias("lowest"),
        f.round(f.avg("value"), 2).alias("average"),
        f.max("value").alias("highest"),
    ]


async def collect(spark: SparkSession, path: str) -> None:
    """Sensors publish, and then the table is asked for, by a broker that is still running."""
    async with Broker(path) as broker:
        ((host, port),) = await broker.listen("127.0.0.1", 0)
        await asyncio.gather(*(measure(host, port, room, start) for room, start in SENSORS.items()))
        print(f"{len(SENSORS) * (READINGS + 1)} messages were acknowledged")
        table = await asyncio.to_thread(statistics, spark, f"{path}/messages")
        await asyncio.to_thread(table.show, truncate=False)


def main(spark: SparkSession | None = None) -> None:
    """With a session of one's own, which is left running, or with a local one."""
    own = spark is None
    spark = spark or forelog_spark.session()
    try:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(collect(spark, f"{folder}/broker"))
    finally:
        if own:
            spark.stop()


if __name__ == "__main__":
    main()
