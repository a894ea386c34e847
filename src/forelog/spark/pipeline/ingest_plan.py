"""What an ingest writes next: the new records of each log, cut into slices. Without Spark, and without writing."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forelog.errors import BadOption
from forelog.files.modes import PRIVATE
from forelog.log.position import Position
from forelog.log.walk import OnCorruption
from forelog.spark.codecs import codec_of
from forelog.spark.continuity import Continuity, Phrases
from forelog.spark.options import PARTITION_BYTES, ReadOptions
from forelog.spark.pipeline.ingest_files import Piece, Shape
from forelog.spark.planning import Log, Slice, between_entries, cut, end_of

COMPACT_BELOW_BYTES = 16 << 20
COMMIT_BYTES = 512 << 20
_WORDS = Phrases("the table goes up to", "Choose a new folder for the table", "fail_on_data_loss=False")
_PARTITION_TYPES = ("boolean", "smallint", "int", "bigint", "string")

_PLACES = ("segment", "offset")  # these would make a partition for each segment, or row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of an ingest, without its source and target."""

    codec: str = "records"
    table: str = "parquet"
    partition_by: str | None = None
    recursive: bool = False
    on_corruption: str = "fail"
    fail_on_data_loss: bool = True
    moved: bool = False
    compact_below: int = COMPACT_BELOW_BYTES
    slice_bytes: int = PARTITION_BYTES
    """Bytes of log for a task."""
    commit_bytes: int = COMMIT_BYTES
    """Bytes of log for a commit."""
    catalog: str | None = None
    table_name: str | None = None
    """The catalog of an Iceberg table and its name there, if not the defaults."""
    mode: int = PRIVATE
    """Permissions of the files and directories of a new table."""


def continuity_of(plan: Plan) -> Continuity:
    """Checks for an ingest that it misses nothing: one object for all that it plans."""
    return Continuity(_WORDS, fails=plan.fail_on_data_loss)


def new_pieces(
    plan: Plan,
    logs: Sequence[Log],
    positions: Mapping[str, Position],
    continuity: Continuity,
    traces: Mapping[str, str] | None = None,
) -> list[Piece]:
    """The pieces of the logs after these positions, in the order of each log."""
    splits = codec_of(plan.codec).splits
    options = ReadOptions("", partition_bytes=plan.slice_bytes)
    pieces: list[Piece] = []
    for log in logs:
        begin = positions.get(log.name, Position(0, 0))
        stream = log.stream()
        numbers = stream.directory.numbers()
        if not numbers:
            continue
        begin = continuity.go_on(log, begin, (traces or {}).get(log.name))
        end = between_entries(log, begin, end_of(stream, begin))
        continuity.stand(log, begin, max(begin, end))  # both: the table is at one or the other when it plans anew
        if end <= begin:
            continue
        slices = cut(log, stream, begin, end, options, splits=splits)
        for place, piece in enumerate(slices):
            # Where the next one starts, there is a segment; where this one stops, there may be none.
            after = slices[place + 1].start if place + 1 < len(slices) else end
            pieces.append(_piece(piece, numbers, after))
    return pieces


def _piece(piece: Slice, numbers: list[int], after: Position) -> Piece:
    directory = piece.log.stream().directory
    low = bisect_left(numbers, piece.start.segment)
    high = bisect_right(numbers, piece.stop.segment if piece.stop.offset else piece.stop.segment - 1)
    size = 0
    for number in numbers[low:high]:
        end = directory.segment_bytes(number) or 0
        end = min(end, piece.stop.offset) if number == piece.stop.segment else end
        size += max(end - (piece.start.offset if number == piece.start.segment else 0), 0)
    return Piece(piece, tuple(numbers[low:high]), size, after)


def shape_of(plan: Plan) -> Shape:
    """The columns of the table and where they come from; BadOption if they are wrong."""
    codec = codec_of(plan.codec)
    columns = {name: codec.columns[name] for name in codec.default}
    if plan.recursive:
        columns = {"log": "string", **columns}
    times = [name for name, kind in columns.items() if kind == "timestamp"]
    by = plan.partition_by
    if by is not None and by != "date":
        if by not in columns:
            raise BadOption(f"partition_by is {by!r}: expected date, or one of the columns {', '.join(columns)}")
        if columns[by] not in _PARTITION_TYPES or by in _PLACES:
            fit = [name for name, kind in columns.items() if kind in _PARTITION_TYPES]
            choices = ", ".join(["date", *(name for name in fit if name not in _PLACES)])
            wrong = f"partition_by is {by!r}, which is {columns[by]}: folders can't be named for that"
            raise BadOption(f"{wrong}. Choose from {choices}")
    policies: dict[str, OnCorruption] = {"fail": "raise", "skip": "skip"}
    if plan.on_corruption not in policies:
        raise BadOption(f"on_corruption is {plan.on_corruption!r}: expected fail or skip")
    return Shape(codec, columns, by, times[0], policies[plan.on_corruption])


def table_columns(shape: Shape) -> dict[str, str]:
    """The columns of the table. The partition column comes last, as in Spark."""
    by = shape.partition_by
    if by is None:
        return shape.columns
    rest = {name: kind for name, kind in shape.columns.items() if name != by}
    return {**rest, by: shape.columns.get(by, "date")}
