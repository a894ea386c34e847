"""Statistics of a table of records: rates, sizes, times, gaps, skew, duplicates.

    stats(records)                  a row for each log
    windows(records, "1 minute")    a row for each log and window of time
    gaps(records, "15m")            the times in which nothing was written
    duplicates(records)             payloads that occur more than once

They need the columns `time` and `length` of the codec `records`, or a `payload` to measure in place of `length`;
some also need `segment` or `payload`. Without the column `log`, all rows are of one log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from forelog.spark.pipeline.input import log_columns, need_columns
from forelog.times import parse_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SIZE_PERCENTILES = {"p50": 0.5, "p99": 0.99}


def stats(records: DataFrame, *, window: str = "1 minute") -> DataFrame:
    """A row for each log.

    Rates are over its time from the first record to the last, at least a second. `peak_per_second` is that of
    its busiest window. `share` is the log's part of all bytes, and `skew` how many times the records of a mean
    log it has: where one log has most of the records, more tasks don't make a job faster.
    """
    need_columns(records, ["segment", "time"], "stats")
    logs = log_columns(records)
    # Two steps: windows are few, so that all else is cheap. Of sizes only their distribution needs the records.
    busy = F.window("time", window).alias("window")
    parts = records.select(*logs, "segment", "time", _length(records).alias("length"))
    tallied = parts.groupBy(*logs, busy).agg(
        F.count("*").alias("records"),
        F.sum("length").alias("bytes"),
        F.min("length").alias("length_min"),
        F.max("length").alias("length_max"),
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
        F.collect_set("segment").alias("segments"),
    )
    seconds = F.greatest(_seconds(F.min("first_time"), F.max("last_time")), F.lit(1.0))
    width = F.first(_seconds(F.col("window.start"), F.col("window.end")))
    table = tallied.groupBy(*logs).agg(
        F.size(F.array_distinct(F.flatten(F.collect_list("segments")))).alias("segments"),
        F.sum("records").alias("records"),
        F.sum("bytes").alias("bytes"),
        F.min("length_min").alias("length_min"),
        F.max("length_max").alias("length_max"),
        F.min("first_time").alias("first_time"),
        F.max("last_time").alias("last_time"),
        (F.sum("records") / seconds).alias("records_per_second"),
        (F.sum("bytes") / seconds).alias("bytes_per_second"),
        (F.max("records") / F.least(width, seconds)).alias("peak_per_second"),
    )
    table = table.withColumn("length_mean", F.col("bytes") / F.col("records"))
    everything = Window.partitionBy()
    return table.withColumns(
        {
            "share": F.col("bytes") / F.nullif(F.sum("bytes").over(everything), F.lit(0)),
            "skew": F.col("records") / F.avg("records").over(everything),
        }
    )


def sizes(records: DataFrame) -> DataFrame:
    """A row for each log: percentiles of its payloads' lengths, to a 10,000th of the rank."""
    percentiles = [
        F.percentile_approx("length", share).alias(f"length_{name}") for name, share in SIZE_PERCENTILES.items()
    ]
    logs = log_columns(records)
    return records.select(*logs, _length(records).alias("length")).groupBy(*logs).agg(*percentiles)


def windows(records: DataFrame, width: str = "1 minute") -> DataFrame:
    """A row for each log and window of time in which there are records."""
    need_columns(records, ["time"], "windows")
    logs = log_columns(records)
    tallied = records.groupBy(*logs, F.window("time", width).alias("window")).agg(
        F.count("*").alias("records"),
        F.sum(_length(records)).alias("bytes"),
        F.min("time").alias("first_time"),
        F.max("time").alias("last_time"),
    )
    return tallied.select(
        *logs,
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        "records",
        "bytes",
        "first_time",
        "last_time",
        (F.col("records") / _seconds(F.col("window.start"), F.col("window.end"))).alias("records_per_second"),
    )


def gaps(records: DataFrame, longer_than: str = "1m") -> DataFrame:
    """Times of at least `longer_than` in which a log got no record: from the time of one record to that of the
    next.

    Time is cut into windows of that width. A gap at least as long as a window always crosses the end of one, so
    only the first and the last time of each window matter. Nothing is sorted but one row for each window.
    """
    need_columns(records, ["time"], "gaps")
    logs = log_columns(records)
    width_us = max(parse_duration(longer_than) // 1000, 1)
    bucket = F.floor(F.unix_micros("time") / F.lit(width_us)).alias("bucket")
    ends = records.groupBy(*logs, bucket).agg(F.min("time").alias("first"), F.max("time").alias("last"))
    order = Window.partitionBy(*logs).orderBy("bucket")
    found = ends.withColumn("start", F.lag("last").over(order)).withColumn("end", F.col("first"))
    seconds = _seconds(F.col("start"), F.col("end"))
    return (
        found.select(*logs, "start", "end", seconds.alias("seconds"))
        .where(F.unix_micros("end") - F.unix_micros("start") >= width_us)
        .orderBy(F.desc("seconds"))
    )


def duplicates(records: DataFrame) -> DataFrame:
    """Payloads that a log has more than once: how often, and the first and last place.

    Payloads are compared by a hash of 128 bits, so the payloads themselves aren't moved.
    """
    need_columns(records, ["segment", "offset", "payload"], "duplicates")
    logs = log_columns(records)
    place = F.struct("segment", "offset")
    hashed = records.select(
        *logs, F.md5("payload").alias("hash"), F.length("payload").alias("length"), place.alias("place")
    )
    grouped = hashed.groupBy(*logs, "hash", "length").agg(
        F.count("*").alias("copies"), F.min("place").alias("first"), F.max("place").alias("last")
    )
    return grouped.where("copies > 1").orderBy(F.desc("copies"), "first")


def _length(records: DataFrame) -> Column:
    if "length" in records.columns:
        return F.col("length")
    need_columns(records, ["payload"], "the sizes of records")
    return F.length("payload")


def _seconds(start: Column, end: Column) -> Column:
    return (F.unix_micros(end) - F.unix_micros(start)) / 1e6
