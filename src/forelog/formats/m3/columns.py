"""The entries of M3's commit log as Arrow columns: no Python object per entry.

===========  ========================  ==================================================================
column       type                      what
===========  ========================  ==================================================================
namespace    binary                    the series' namespace
id           binary                    its id
shard        int64                     its shard
tags         map<binary, binary>       its tags; null for a series without
timestamp    timestamp[ns, UTC]        the datapoint's time
value        double                    and number
unit         int16                     the timestamp's precision: 1 s, 2 ms, 3 µs, 4 ns, 5 min, 6 h, 7 d, 8 a
annotation   binary                    what was noted; null for nothing
created      timestamp[ns, UTC]        when the entry was written
position     struct<segment, offset>   the chunk in which the entry begins
segment      int32                     its file
offset       int64                     its place there
===========  ========================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forelog.formats.columns import check_columns, load_pyarrow, segment_column
from forelog.formats.m3.entries import EntryBlock, SeriesTable

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "namespace", "id", "shard", "tags", "timestamp", "value", "unit", "annotation", "created", "position",
    "segment", "offset",
)  # fmt: skip
DEFAULT_COLUMNS = COLUMNS[:9]
_OF_SERIES = ("namespace", "id", "shard", "tags")


def datapoints_schema(columns: Sequence[str] = DEFAULT_COLUMNS) -> pa.Schema:
    """The schema of the batches with these columns."""
    pa = load_pyarrow()
    time = pa.timestamp("ns", tz="UTC")
    types = {
        "namespace": pa.binary(),
        "id": pa.binary(),
        "shard": pa.int64(),
        "tags": pa.map_(pa.binary(), pa.binary()),
        "timestamp": time,
        "value": pa.float64(),
        "unit": pa.int16(),
        "annotation": pa.binary(),
        "created": time,
        "position": pa.struct([("segment", pa.int32()), ("offset", pa.int64())]),
        "segment": pa.int32(),
        "offset": pa.int64(),
    }
    return pa.schema([(name, types[name]) for name in check_columns(columns, COLUMNS)])


class EntryColumns:
    """Makes Arrow arrays of entries' columns; those of series are made once and taken from by row."""

    def __init__(self, schema: pa.Schema) -> None:
        self._pa: Any = load_pyarrow()
        self._types = {field.name: field.type for field in schema}
        self._table: SeriesTable | None = None
        self._rows = 0
        self._series: dict[str, Any] = {}
        self._makers: dict[str, Callable[[EntryBlock], Any]] = {
            "timestamp": lambda block: self._int64(block.entries.timestamps, block, self._types["timestamp"]),
            "value": lambda block: self._fixed(self._pa.float64(), block.entries.values, block),
            "unit": self._unit,
            "annotation": self._annotation,
            "created": lambda block: self._int64(block.entries.created, block, self._types["created"]),
            "position": self._position,
            "segment": self._segment,
            "offset": lambda block: self._int64(block.entries.offsets, block, self._pa.int64()),
        }

    def column(self, name: str, block: EntryBlock) -> Any:
        if name not in _OF_SERIES:
            return self._makers[name](block)
        self._learn(block.series)
        return self._series[name].take(self._int64(block.entries.series, block, self._pa.int64()))

    def _learn(self, table: SeriesTable) -> None:
        """Add the series that are new since the last block."""
        if table is not self._table:
            self._table, self._rows, self._series = table, 0, {}
        if self._rows == len(table) and self._series:
            return
        new = [table[row] for row in range(self._rows, len(table))]
        for name in self._types.keys() & set(_OF_SERIES):
            values = self._pa.array([getattr(series, name) for series in new], self._types[name])
            known = self._series.get(name)
            self._series[name] = values if known is None else self._pa.concat_arrays([known, values])
        self._rows = len(table)

    def _fixed(self, kind: Any, column: Any, block: EntryBlock) -> Any:
        whole = self._pa.Array.from_buffers(kind, len(column), [None, self._pa.py_buffer(column)])
        return whole.slice(block.first, block.last - block.first)

    def _int64(self, column: Any, block: EntryBlock, kind: Any) -> Any:
        return self._fixed(self._pa.int64(), column, block).view(kind)

    def _unit(self, block: EntryBlock) -> Any:
        return self._fixed(self._pa.uint8(), block.entries.units, block).cast(self._pa.int16())

    def _segment(self, block: EntryBlock) -> Any:
        return segment_column(self._pa, block.segment, block.last - block.first)

    def _position(self, block: EntryBlock) -> Any:
        parts = [self._segment(block), self._int64(block.entries.offsets, block, self._pa.int64())]
        return self._pa.StructArray.from_arrays(parts, ["segment", "offset"])

    def _annotation(self, block: EntryBlock) -> Any:
        pa, entries = self._pa, block.entries
        there = self._fixed(
            pa.uint8(), entries.annotated, EntryBlock(0, entries, 0, len(entries.series), block.series)
        )
        validity = there.cast(pa.bool_()).buffers()[1]
        buffers = [validity, pa.py_buffer(entries.annotation_offsets), pa.py_buffer(entries.annotations)]
        whole = pa.Array.from_buffers(pa.binary(), len(entries.series), buffers)
        return whole.slice(block.first, block.last - block.first)
