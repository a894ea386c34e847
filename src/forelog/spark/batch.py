"""Reading logs as a table."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from forelog.spark.codecs import codec_of
from forelog.spark.options import ReadOptions
from forelog.spark.planning import find_logs, plan
from forelog.spark.slices import ranges_for, read_slice
from forelog.spark.tasks import Task, tasks_of

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
        logs = find_logs(options.path, recursive=options.recursive, wanted=ranges.holds_log)
        pieces = plan(options, logs, splits=codec.splits, ranges=ranges)
        return tasks_of(pieces, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece = partition.piece if isinstance(partition, Task) else None
        settle_worker()
        if piece is not None:
            yield from read_slice(piece, self._options, self._columns, self._names)


@functools.cache
def settle_worker() -> None:
    """Exclude all imported objects from garbage collection, which Spark's workers run after each task."""
    gc.freeze()
