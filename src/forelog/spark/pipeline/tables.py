"""Reading what the pipeline needs, and no more: columns that aren't asked for are never copied."""

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
"""What `jobs` needs of a command log."""

REPLAY_COLUMNS = ("segment", "offset", "time_ns", "payload", "id")
"""What `replay` needs of a command log: payloads as they are, for their times have nanoseconds."""

STATS_COLUMNS = ("segment", "offset", "time", "length")
"""What `stats` needs of any log in the captain format."""


def read_table(
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
    """A log with these columns; with `recursive` a folder of logs, and the column `log` before them."""
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
    """The column that tells logs apart, where there is one."""
    return ["log"] if "log" in df.columns else []


def need_columns(df: DataFrame, columns: Sequence[str], what: str) -> None:
    """Tell which columns a table lacks, before Spark does it with a page of text."""
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise BadOption(
            f"{what} needs the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; there are "
            f"{', '.join(df.columns)}. read_table of forelog.spark.pipeline.tables reads them"
        )
