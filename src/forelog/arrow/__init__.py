"""Logs as tables without Spark: for Polars, DuckDB, pandas, and whatever else reads a dataset of pyarrow.

    from forelog import arrow

    arrow.scan_polars("orders.log").filter(pl.col("segment") == 7).select("payload").collect()

    orders = arrow.dataset("orders.log")
    duckdb.sql("select count(*) from orders where time > now() - interval 1 hour")
    orders.to_table(columns=["payload"]).to_pandas()

Tables have the columns and the rows that Spark's source has for the same codec. A query reads the columns that it
needs, and leaves out what its filters on `segment`, `offset`, `time` and `log` rule out. It reads what is there
when it runs.

source.py       a log, or a folder of logs, as record batches
filters.py      what a filter rules out
datasets.py     a dataset of pyarrow
polars.py       a lazy frame of Polars
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from forelog.arrow.source import LogSource, ScanOptions

if TYPE_CHECKING:
    import polars as pl

    from forelog.arrow.datasets import LogDataset

__all__ = ["ScanOptions", "dataset", "scan_polars"]


def dataset(path: str | os.PathLike[str], **options: Unpack[ScanOptions]) -> LogDataset:
    """A log, or a folder of logs, as a dataset of pyarrow, which DuckDB queries under the name of its variable.

    Raises LogNotFound if there is no log, and BadOption if it has another format than the codec's.
    """
    source = LogSource.open(path, options)
    from forelog.arrow.datasets import LogDataset

    return LogDataset(source)


def scan_polars(path: str | os.PathLike[str], **options: Unpack[ScanOptions]) -> pl.LazyFrame:
    """A log, or a folder of logs, as a lazy frame of Polars. Options and errors are those of `dataset`."""
    source = LogSource.open(path, options)  # it says what is missing, if there is no pyarrow
    from forelog.arrow.polars import lazy_frame

    return lazy_frame(source)
