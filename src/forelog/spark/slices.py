"""The rows of a slice, for Spark and for whatever else reads Arrow. Nothing here depends on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from forelog.formats.columns import load_pyarrow
from forelog.log.walk import Defect
from forelog.spark.codecs import Codec, codec_of
from forelog.spark.options import ReadOptions
from forelog.spark.planning import Slice
from forelog.spark.ranges import EVERYTHING, Ranges
from forelog.spark.types import arrow_schema

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


def table_columns(options: ReadOptions) -> tuple[dict[str, str], list[str]]:
    """All columns that a table can have, and those that it has by default."""
    codec = codec_of(options.codec)
    columns, default = dict(codec.columns), list(codec.default)
    if options.defects:
        columns, default = {**DEFECT_COLUMNS, "segment": codec.columns["segment"]}, list(DEFECT_COLUMNS)
    if options.names_logs:
        return {"log": "string", **columns}, ["log", *default]
    return columns, default


def ranges_for(options: ReadOptions, codec: Codec) -> Ranges:
    """What may be left out: by columns that mean the position and the time of a record."""
    ranges, own = options.ranges, () if options.defects else codec.positioned
    return Ranges(
        segment=ranges.segment if options.defects or "segment" in own else EVERYTHING.segment,
        offset=ranges.offset if "offset" in own and codec.splits else EVERYTHING.offset,
        since_ns=ranges.since_ns if "time" in own else None,
        until_ns=ranges.until_ns if "time" in own else None,
        logs=ranges.logs if options.names_logs and "log" not in codec.columns else None,
    )


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
