"""Reading logs with only the columns that each part of the pipeline needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forelog.errors import BadOption
from forelog.spark.codecs import codec_of
from forelog.spark.types import ddl
from forelog.times import format_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB_COLUMNS = (
    "segment", "offset", "time", "command", "id", "name", "ttr_ms", "ttl_ms", "priority", "max_attempts",
    "max_fails", "job_payload", "result", "scheduled", "created",
)  # fmt: skip
"""The columns of a command log that `jobs` needs."""

REPLAY_COLUMNS = ("segment", "offset", "time_ns", "payload", "id")
"""The columns of a command log that `replay` needs: the payloads, because their times have nanoseconds."""

STATS_COLUMNS = ("segment", "offset", "time", "length")
"""The columns of any captain log that `stats` needs."""


def read_log(
    spark: SparkSession,
    path: str,
    columns: Sequence[str],
    *,
    codec: str = "records",
    recursive: bool = False,
    since_ns: int | None = None,
    until_ns: int | None = None,
    on_corruption: str = "fail",
) -> DataFrame:
    """Read a log with these columns; with `recursive`, a folder of logs with the column `log` before them."""
    types = {"log": "string", **codec_of(codec).columns}
    names = ["log", *columns] if recursive else list(columns)
    reader = spark.read.format("forelog").schema(ddl(types, names))
    reader = reader.option("codec", codec).option("recursive", str(recursive).lower())
    reader = reader.option("onCorruption", on_corruption)
    for name, time_ns in (("since", since_ns), ("until", until_ns)):
        if time_ns is not None:
            reader = reader.option(name, format_time(time_ns))
    return reader.load(path)


def log_columns(df: DataFrame) -> list[str]:
    """The column with the name of the log, if the table has it."""
    return ["log"] if "log" in df.columns else []


def need_columns(df: DataFrame, columns: Sequence[str], what: str) -> None:
    """Raise BadOption if a table lacks columns, before Spark raises a page of text."""
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise BadOption(
            f"{what} needs the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; there are "
            f"{', '.join(df.columns)}. read_log of forelog.spark.pipeline.input reads them"
        )
