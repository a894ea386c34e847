"""What a filter rules out.

Arrow knows whether a filter can hold at all where something is guaranteed, `segment <= 7` for one: it leaves out
the files of a dataset in this way. Here it is asked about values, and halves the range of a column until its ends
are found. So whatever Arrow can derive from a filter is used, and a filter that it can't say anything about leaves
everything.

>>> import pyarrow as pa, pyarrow.compute as pc
>>> segments = pa.schema([("segment", pa.int32())])
>>> filter = (pc.field("segment") > 3) & ~pc.field("segment").isin([8]) & (pc.field("segment") < 9)
>>> Filter(filter, segments).ranges().segment
(4, 8)
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from forelog.bounds import BYTES_MAX
from forelog.spark.ranges import Ranges

__all__ = ["Filter"]

_NUMBER_MAX = 2**63 - 1
_LARGEST = {"segment": _NUMBER_MAX, "offset": BYTES_MAX, "time": _NUMBER_MAX}
_FORMAT = ds.IpcFileFormat()  # of files that are never opened
_PLACE = LocalFileSystem()


class Filter:
    """A filter over the rows of a table."""

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self.expression = expression
        self._schema = schema

    def uses(self, name: str) -> bool:
        """Whether it needs a column."""
        without = pa.schema([field for field in self._schema if field.name != name])
        try:
            ds.Scanner.from_batches(iter(()), schema=without, filter=self.expression)
        except pa.ArrowInvalid:
            return True
        return False

    def allows_log(self, name: str) -> bool:
        """Whether a row of this log can pass."""
        return self._allows(pc.field("log") == name)

    def ranges(self) -> Ranges:
        """The positions and times that can pass."""
        return Ranges.of({name: self._ends(name) for name in _LARGEST if self._has(name) and self.uses(name)})

    def _has(self, name: str) -> bool:
        return name in self._schema.names

    def _ends(self, name: str) -> list[int | None]:
        """The least and the greatest value of a column that can pass, None for any; an empty list if none can."""
        column, kind = pc.field(name), self._schema.field(name).type
        most = 2**31 - 1 if kind == pa.int32() else _LARGEST[name]
        least = -most if name == "time" else 0

        def up_to(value: int) -> bool:
            return self._allows((column <= pa.scalar(value, kind)) | column.is_null())

        def from_minus(value: int) -> bool:
            return self._allows((column >= pa.scalar(-value, kind)) | column.is_null())

        if not up_to(most) or not from_minus(-least):
            return []
        low, high = _first(up_to, least, most), -_first(from_minus, -most, -least)
        return [None if low == least else low, None if high == most else high]

    def _allows(self, guarantee: pc.Expression) -> bool:
        """Whether a row can pass for which this holds."""
        fragment = _FORMAT.make_fragment("none", filesystem=_PLACE, partition_expression=guarantee)
        files = ds.FileSystemDataset([fragment], self._schema, _FORMAT, _PLACE)
        return bool(list(files.get_fragments(filter=self.expression)))


def _first(allowed: Callable[[int], bool], low: int, high: int) -> int:
    """The first value from `low` on before which none is allowed. `high` is allowed."""
    while low < high:
        middle = (low + high) // 2
        if allowed(middle):
            high = middle
        else:
            low = middle + 1
    return low
