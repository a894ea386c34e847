"""A log, or a folder of logs, as record batches: the plan and the codecs of Spark's source, in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

from forelog.formats.columns import check_columns, load_pyarrow
from forelog.log.position import Position
from forelog.log.walk import OnCorruption
from forelog.spark.codecs import codec_of
from forelog.spark.options import ReadOptions
from forelog.spark.planning import check_codec, find_logs, plan
from forelog.spark.slices import ranges_for, read_slice, table_columns
from forelog.spark.types import arrow_schema
from forelog.times import TimeLike, parse_time

if TYPE_CHECKING:
    import pyarrow as pa

    from forelog.arrow.filters import Filter


class ScanOptions(TypedDict, total=False):
    """Which part of a log is read, and how."""

    codec: str
    """How records become rows: `records`, `commands`, `datapoints`, `messages`, or one of your own."""
    columns: Sequence[str]
    """The columns of the table; by default those that Spark's source has by default."""
    recursive: bool
    """Whether the path is a folder of logs, at any depth. The table then begins with a column `log`."""
    since: TimeLike
    """Only records from this time on."""
    until: TimeLike
    """Only records before this time."""
    start: Position
    """The position to start at."""
    on_corruption: OnCorruption
    """What to do at damage: `raise`, `skip` it, or `stop` there."""
    defects: bool
    """Read the damaged places in place of the records."""


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where the rows of a table come from."""

    options: ReadOptions
    """What is read."""
    names: tuple[str, ...]
    """The columns of the table."""

    @classmethod
    def open(cls, path: str | os.PathLike[str], given: ScanOptions) -> LogSource:
        """Check that there is something to read, with options that fit it."""
        load_pyarrow()
        since, until = given.get("since"), given.get("until")
        options = ReadOptions(
            path=os.fspath(path),
            codec=given.get("codec", "records"),
            recursive=given.get("recursive", False),
            since_ns=None if since is None else parse_time(since),
            until_ns=None if until is None else parse_time(until),
            start=given.get("start"),
            on_corruption=given.get("on_corruption", "raise"),
            defects=given.get("defects", False),
        )
        columns, default = table_columns(options)
        names = check_columns(given.get("columns", default), list(columns))
        check_codec(find_logs(options.path, recursive=options.recursive), options.codec)
        return cls(options, names)

    @property
    def schema(self) -> pa.Schema:
        columns, _ = table_columns(self.options)
        return arrow_schema(columns, self.names)

    def batches(self, names: Sequence[str], wanted: Filter | None = None) -> Iterator[pa.RecordBatch]:
        """The rows that there are now, with these columns. Most rows that a filter rules out are left out."""
        options, codec = self.options, codec_of(self.options.codec)
        columns, _ = table_columns(options)
        asked = options if wanted is None else replace(options, ranges=wanted.ranges())
        ranges = ranges_for(asked, codec)
        by_log = wanted if "log" in self.names and options.recursive else None
        logs = find_logs(
            options.path,
            recursive=options.recursive,
            wanted=lambda name: by_log is None or by_log.allows_log(name),
        )
        for piece in plan(options, logs, splits=codec.splits, ranges=ranges):
            yield from read_slice(piece, options, columns, list(names))
