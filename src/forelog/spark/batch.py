"""Reading logs as a table."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from forelog.spark.codecs import codec_of
from forelog.spark.options import ReadOptions
from forelog.spark.planning import logs_of, plan
from forelog.spark.slices import ranges_for, read_slice
from forelog.spark.tasks import bundles_of, tasks_in, tasks_of
from forelog.spark.totals import Totals

if TYPE_CHECKING:
    import pyarrow as pa


class ForelogReader(DataSourceReader):
    """Reads logs, in tasks of about `partitionBytes`."""

    def __init__(self, options: ReadOptions, columns: dict[str, str], names: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        codec = codec_of(options.codec)
        ranges = ranges_for(options, codec)
        logs = logs_of(options, ranges.holds_log)
        # Where damage is passed over, only reading tells how many rows there are.
        told = codec.row_each and not options.defects and options.on_corruption == "raise"
        told = told and options.since_ns is None and options.until_ns is None
        totals = Totals.of_json(options.aggregates) if told and options.aggregates is not None else None
        limit = options.limit if told and options.aggregates is None else None
        pieces = plan(options, logs, splits=codec.splits, ranges=ranges, totals=totals, limit=limit)
        return bundles_of(tasks_of(pieces, options, totals.known if totals is not None else ()), options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settle_worker()
        for task in tasks_in(partition):
            assert task.piece is not None
            yield from read_slice(task.piece, self._options, self._columns, self._names)


@functools.cache
def settle_worker() -> None:
    """Exclude all imported objects from garbage collection, which Spark's workers run after each task."""
    gc.freeze()
