"""A log as a dataset of pyarrow: DuckDB and others ask it for a scanner, with columns and a filter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from forelog.arrow.filters import Filter
from forelog.arrow.source import LogSource

__all__ = ["LogDataset", "LogScanner"]

Columns = Sequence[str] | Mapping[str, pc.Expression] | None


class LogDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The rows of a log, or of a folder of logs. `forelog.arrow.dataset` makes one."""

    def __init__(self, source: LogSource, passing: pc.Expression | None = None) -> None:
        # Without the base's, which only makes datasets in C++.
        self._source = source
        self._passing = passing

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._source.schema

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name
        **_scanning: Any,
    ) -> LogScanner:
        """What reads these columns of the rows that pass a filter."""
        return LogScanner(self._source, columns, self._both(filter))

    def filter(self, expression: pc.Expression) -> LogDataset:
        """The same log with only the rows that pass."""
        return LogDataset(self._source, self._both(expression))

    def _both(self, expression: pc.Expression | None) -> pc.Expression | None:
        if self._passing is None or expression is None:
            return self._passing if expression is None else expression
        return self._passing & expression

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError(
            "a log has no fragments: use to_table() or to_batches(), and continue with the result"
        )

    get_fragments = replace_schema = join = join_asof = sort_by = _refuse
    partition_expression = property(_refuse)


class LogScanner:
    """A scanner as pyarrow has them, without threads of its own.

    pyarrow's would call Python from a thread that reads ahead. If its rows aren't all wanted, it waits for that
    thread while it holds the interpreter's lock, for ever.
    """

    def __init__(self, source: LogSource, columns: Columns, passing: pc.Expression | None) -> None:
        self._source = source
        schema = source.schema
        self._passing = None if passing is None else Filter(passing, schema)
        self._columns = schema.names if columns is None else columns
        asked = schema.names if isinstance(columns, Mapping) else self._columns
        names = [name for name in schema.names if name in asked or (self._passing and self._passing.uses(name))]
        self._names = names or [schema.names[0]]  # rows are counted by a column, too
        self.dataset_schema = schema
        self.projected_schema = self._scan(schema.empty_table()).schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, some at a time. They are read anew each time."""
        for batch in self._source.batches(self._names, self._passing):
            yield from self._scan(pa.Table.from_batches([batch])).to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows, for a program that isn't in Python."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows, without the rest."""
        found, missing = [], num_rows
        for batch in self.to_batches():
            found.append(batch.slice(0, missing))
            missing -= found[-1].num_rows
            if not missing:
                break
        return pa.Table.from_batches(found, self.projected_schema)

    def take(self, indices: Sequence[int]) -> pa.Table:
        """The rows with these numbers."""
        return self.head(max(pa.array(indices).to_pylist(), default=-1) + 1).take(indices)

    def count_rows(self) -> int:
        """How many rows there are."""
        return sum(batch.num_rows for batch in self.to_batches())

    def _scan(self, rows: pa.Table) -> pa.Table:
        """The asked columns of those rows that pass."""
        if self._passing is None and not isinstance(self._columns, Mapping):
            return rows.select(self._columns)
        expression = None if self._passing is None else self._passing.expression
        columns = self._columns if isinstance(self._columns, dict) else list(self._columns)
        return ds.InMemoryDataset(rows).to_table(columns=columns, filter=expression, use_threads=False)
