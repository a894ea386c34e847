"""The tasks of an ingest: write the rows of a slice to Parquet files, or merge small files into one.

No row passes through Spark: a task reads a slice of a log with the codec, writes Parquet with Arrow, and returns
what it wrote. File names are random, so an abandoned attempt never collides with another one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from forelog.errors import ForelogError
from forelog.formats.columns import load_pyarrow
from forelog.log.position import Position
from forelog.log.walk import Defect, OnCorruption
from forelog.spark.codecs import Codec
from forelog.spark.planning import Slice
from forelog.spark.tables.commits import DataFile, partition_folder
from forelog.spark.tables.storage import Storage, storage_of
from forelog.spark.types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 32 << 20
OPEN_FILES_MAX = 64
_BATCH_ROWS = 16_384
_EPOCH = date(1970, 1, 1)
_DICTIONARIES = ("segment", "log", "command", "name", "namespace", "error", "unit", "shard", "priority")


@dataclass(frozen=True, slots=True)
class Shape:
    """What all tasks of an ingest have in common."""

    codec: Codec
    columns: dict[str, str]
    """The columns with their Spark types, without the date, which is taken from `time_column`."""
    partition_by: str | None
    time_column: str
    on_corruption: OnCorruption


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice to write, and the position of its log after it."""

    piece: Slice
    segments: tuple[int, ...]
    """The segments of the slice when it was planned. They must still be there when it is read."""
    byte_count: int
    after: Position


@dataclass(frozen=True, slots=True)
class WriteTask:
    """A task that writes slices."""

    pieces: tuple[Piece, ...]
    table: str
    folder: str
    """The folder of the new files, in the table."""
    label: str
    """The beginning of their names."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """A task that merges files of a partition."""

    table: str
    files: tuple[DataFile, ...]
    folder: str
    label: str


@dataclass(frozen=True, slots=True)
class Written:
    """What a task did. An error that a retry can't help is returned here, and not raised."""

    files: list[DataFile] = field(default_factory=list)
    defects: int = 0
    vanished: bool = False
    """Whether segments were removed between planning and reading."""
    error: tuple[type[ForelogError], tuple[Any, ...], dict[str, Any]] | None = None

    def check(self) -> None:
        """Raise the task's error."""
        if self.error is not None:
            kind, values, named = self.error
            raise kind(*values, **named)


def write_pieces(shape: Shape, task: WriteTask) -> Written:
    """Write the rows of slices, one or more files for each partition."""
    defects: list[Defect] = []
    parts = _Parts(shape, storage_of(task.table), task.folder, task.label)
    try:
        for piece in task.pieces:
            if not write_piece(shape, piece, parts, defects):
                return Written(vanished=True)
    except ForelogError as error:
        return Written(error=(type(error), error.args, dict(error.__dict__)))
    return Written(parts.close(), len(defects))


def write_piece(shape: Shape, one: Piece, parts: _Parts, defects: list[Defect]) -> bool:
    """Write the rows of a slice. Returns whether all of its segments were still there."""
    directory = one.piece.log.stream().directory
    with directory.read_lock():
        if not set(one.segments) <= set(directory.numbers()):
            return False
        for batch in _batches(shape, one.piece, defects):
            parts.add(batch)
        return True


def _batches(shape: Shape, piece: Slice, defects: list[Defect]) -> Iterator[pa.RecordBatch]:
    pa = load_pyarrow()
    names = list(shape.columns)
    schema = arrow_schema(shape.columns, names)
    own = [name for name in names if name != "log"]
    for arrays in shape.codec.batches(piece, own, _BATCH_ROWS, shape.on_corruption, defects):
        if "log" in shape.columns:
            arrays["log"] = pa.repeat(pa.scalar(piece.log.name, pa.string()), len(arrays[own[0]]))
        yield pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)


def merge_files(shape: Shape, task: MergeTask) -> Written:
    """Merge files of one partition, in the order of their names."""
    import pyarrow.parquet as pq

    sample = task.files[0]
    storage = storage_of(task.table)
    out = _Part(shape, storage, task.folder, task.label, sample.folder, sample.partition)
    for file in task.files:
        with pq.ParquetFile(storage.open(file.path)) as source:
            for batch in source.iter_batches(batch_size=_BATCH_ROWS):
                out.write(batch)
    merged = out.close()
    expected = sum(file.rows for file in task.files)
    if merged.rows != expected:
        raise AssertionError(f"{merged.rows} rows of {expected} were merged")
    one_log = "log" not in shape.columns
    return Written(
        [
            DataFile(
                path=merged.path,
                rows=merged.rows,
                bytes=merged.bytes,
                partition=sample.partition,
                first=min((str(file.first) for file in task.files), key=Position.parse) if one_log else None,
                last=max((str(file.last) for file in task.files), key=Position.parse) if one_log else None,
                since_us=min((f.since_us for f in task.files if f.since_us is not None), default=None),
                until_us=max((f.until_us for f in task.files if f.until_us is not None), default=None),
            )
        ]
    )


# -- partitions


class _Parts:
    """The files of a task that are being written, by partition."""

    def __init__(self, shape: Shape, storage: Storage, folder: str, label: str) -> None:
        self._shape = shape
        self._storage = storage
        self._folder = folder
        self._label = label
        self._open: dict[str | None, _Part] = {}
        self._closed: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for value, rows in split(batch, self._shape.partition_by, self._shape.time_column):
            part = self._open.pop(value, None)
            if part is None:
                if len(self._open) >= OPEN_FILES_MAX:
                    self._closed.append(self._open.pop(next(iter(self._open))).close())
                column = self._shape.partition_by
                place = "" if column is None else partition_folder(column, value)
                part = _Part(self._shape, self._storage, self._folder, self._label, place, value)
            self._open[value] = part  # last: the first one is the least recently used
            part.write(rows)

    def close(self) -> list[DataFile]:
        return self._closed + [part.close() for part in self._open.values()]


def split(batch: pa.RecordBatch, column: str | None, time_column: str) -> list[tuple[str | None, pa.RecordBatch]]:
    """The rows of a batch by the value of the partition column, as a string, without that column."""
    if column is None:
        return [(None, batch)]
    import pyarrow as pa
    import pyarrow.compute as pc

    if column == "date":
        keys = pc.floor_temporal(batch[time_column], unit="day").view(pa.int64())
        rest = batch
    else:
        keys = batch[column]
        rest = batch.drop_columns([column])
    values = pc.unique(keys).to_pylist()
    if len(values) == 1:
        return [(_text(column, values[0]), rest)]
    found = []
    for value in values:
        chosen = (
            pc.is_null(keys) if value is None else pc.fill_null(pc.equal(keys, pa.scalar(value, keys.type)), False)
        )
        found.append((_text(column, value), rest.filter(chosen)))
    return found


def _text(column: str, value: Any) -> str | None:
    if value is None or value == "":
        return None
    if column == "date":
        return (_EPOCH + timedelta(microseconds=value)).isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- files


class _Part:
    """A Parquet file that is being written, with the statistics of its rows."""

    def __init__(
        self, shape: Shape, storage: Storage, folder: str, label: str, place: str, value: str | None
    ) -> None:
        self._shape = shape
        self._storage = storage
        self._name = f"{label}-{uuid.uuid4().hex}.parquet"
        self._staged = f"{folder}/{self._name}"
        self._written = ""
        """The file on this machine."""
        self._place = place
        self._value = value
        self._writer: Any = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0
        self._first: Position | None = None
        self._last: Position | None = None
        self._since_us: int | None = None
        self._until_us: int | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        self._note(batch)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _note(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._rows += batch.num_rows
        if "log" not in self._shape.columns:
            self._first = self._first or _position(batch, 0)
            self._last = _position(batch, batch.num_rows - 1)
        times = pc.min_max(batch[self._shape.time_column].view(pa.int64())).as_py()
        if times["min"] is not None:
            self._since_us = times["min"] if self._since_us is None else min(self._since_us, times["min"])
            self._until_us = times["max"] if self._until_us is None else max(self._until_us, times["max"])

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._batches:
            return
        schema = self._batches[0].schema
        if self._writer is None:
            self._written = self._storage.staged(self._staged)
            self._writer = pq.ParquetWriter(
                self._written,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in schema.names if name in _DICTIONARIES],
                write_statistics=_with_statistics(schema),
            )
        table = pa.Table.from_batches(self._batches)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._batches, self._bytes = [], 0

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        size = self._storage.add(self._staged, self._written)
        return DataFile(
            path=os.path.join(self._place, self._name),
            rows=self._rows,
            bytes=size,
            partition=self._value,
            first=None if self._first is None else str(self._first),
            last=None if self._last is None else str(self._last),
            since_us=self._since_us,
            until_us=self._until_us,
        )


def _position(batch: pa.RecordBatch, row: int) -> Position:
    return Position(batch["segment"][row].as_py(), batch["offset"][row].as_py())


def _with_statistics(schema: pa.Schema) -> list[str]:
    """Columns with useful statistics: not those with bytes of any length."""
    import pyarrow as pa

    return [
        field.name for field in schema if not pa.types.is_binary(field.type) and not pa.types.is_nested(field.type)
    ]


def label_of(number: int, task: int) -> str:
    """The beginning of a task's file names, which sort in the order of commits."""
    return f"{number:09d}-{task:05d}"


def groups_to_merge(
    files: Sequence[DataFile], below: int, at_least: int, up_to: int
) -> list[tuple[DataFile, ...]]:
    """Which small files to merge: those of one partition, if there are many, up to a size."""
    by_folder: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.bytes < below:
            by_folder.setdefault(file.folder, []).append(file)
    groups: list[tuple[DataFile, ...]] = []
    for small in by_folder.values():
        if len(small) < at_least:
            continue
        group: list[DataFile] = []
        for file in small:
            if group and sum(one.bytes for one in group) + file.bytes > up_to:
                groups.append(tuple(group))
                group = []
            group.append(file)
        groups.append(tuple(group))
    return [group for group in groups if len(group) > 1]
