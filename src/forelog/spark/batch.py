"""Reading logs as a table, and their defects as another."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from forelog.formats.columns import load_pyarrow
from forelog.log.position import Position
from forelog.log.walk import Defect
from forelog.spark.codecs import codec_of
from forelog.spark.options import ReadOptions
from forelog.spark.planning import Slice, earliest, find_logs, latest, plan
from forelog.spark.types import arrow_schema
from forelog.times import parse_time

if TYPE_CHECKING:
    import pyarrow as pa

DEFECT_COLUMNS = {
    "segment": "int",
    "offset": "bigint",
    "reason": "string",
    "file": "string",
    "file_offset": "bigint",
    "bytes": "bigint",
}


@dataclass
class Task(InputPartition):
    """A slice for one task; None where there is nothing to read."""

    piece: Slice | None


class ForelogReader(DataSourceReader):
    """Reads logs, in tasks of about `partitionBytes`."""

    def __init__(self, options: ReadOptions, columns: dict[str, str], names: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        logs = find_logs(self._options.path, recursive=self._options.recursive)
        pieces = plan(self._options, logs, splits=codec_of(self._options.codec).splits)
        return [Task(piece) for piece in pieces] or [Task(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        piece = partition.piece if isinstance(partition, Task) else None
        settle_worker()
        if piece is not None:
            yield from read_slice(piece, self._options, self._columns, self._names)


class FilteredReader(ForelogReader):
    """A reader that gets the filters of a query, and is used for this query only."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the reading by time and segment. Spark applies all filters again, to every row."""
        for one in filters:
            self._options = narrowed(self._options, one)
        return filters


@functools.cache
def settle_worker() -> None:
    """Exclude all imported objects from garbage collection, which Spark's workers run after each task."""
    gc.freeze()


def read_slice(
    piece: Slice, options: ReadOptions, columns: dict[str, str], names: list[str]
) -> Iterator[pa.RecordBatch]:
    """The record batches of a task."""
    pa = load_pyarrow()
    schema = arrow_schema(columns, names)
    codec = codec_of(options.codec)
    defects: list[Defect] = []
    own = [name for name in names if name in codec.columns and not options.defects]
    read = own or [next(iter(codec.columns))]  # a table of log names alone still has a row for each record
    choice = "skip" if options.defects else options.on_corruption
    for arrays in codec.batches(piece, read, options.batch_rows, choice, defects):
        if options.defects:
            continue
        rows = len(arrays[read[0]])
        if "log" in names:
            arrays["log"] = pa.repeat(pa.scalar(piece.log.name, pa.string()), rows)
        yield pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)
    if options.defects and defects:
        yield pa.RecordBatch.from_pylist([_row(piece, defect, names) for defect in defects], schema=schema)


def _row(piece: Slice, defect: Defect, names: list[str]) -> dict[str, Any]:
    values = {
        "log": piece.log.name,
        "segment": defect.position.segment,
        "offset": defect.position.offset,
        "reason": defect.reason,
        "file": defect.path,
        "file_offset": defect.physical_offset,
        "bytes": defect.byte_count,
    }
    return {name: values[name] for name in names}


# -- filters


def narrowed(options: ReadOptions, one: Filter) -> ReadOptions:
    """Options that read less, if a filter is by time or segment."""
    match one:
        case GreaterThanOrEqual(("time",), datetime() as value) | GreaterThan(("time",), datetime() as value):
            return replace(options, pushed_since_ns=latest(options.pushed_since_ns, parse_time(value)))
        case LessThanOrEqual(("time",), datetime() as value) | LessThan(("time",), datetime() as value):
            # Times in a table are in microseconds: include the nanoseconds of the last one.
            return replace(options, pushed_until_ns=earliest(options.pushed_until_ns, parse_time(value) + 1000))
        case EqualTo(("time",), datetime() as value):
            after = narrowed(options, GreaterThanOrEqual(("time",), value))
            return narrowed(after, LessThanOrEqual(("time",), value))
        case GreaterThanOrEqual(("segment",), int() as value) | EqualTo(("segment",), int() as value):
            return _from_segment(options, value)
        case GreaterThan(("segment",), int() as value):
            return _from_segment(options, value + 1)
    return options


def _from_segment(options: ReadOptions, number: int) -> ReadOptions:
    return replace(options, start=max(options.start or Position(0, 0), Position(max(number, 0), 0)))
