"""A log as a lazy frame of Polars, which says which columns and how many rows it needs, and by which filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from forelog.arrow.filters import Filter
from forelog.arrow.source import LogSource
from forelog.errors import MissingExtra

if TYPE_CHECKING:
    import polars as pl

__all__ = ["condition", "lazy_frame"]

_COMPARISONS = ("__eq__", "__lt__", "__le__", "__gt__", "__ge__")


def lazy_frame(source: LogSource) -> pl.LazyFrame:
    """A frame that reads the log each time when it is collected."""
    polars = _load_polars()
    from polars.io.plugins import register_io_source

    def read(
        names: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch_rows: int | None
    ) -> Iterator[pl.DataFrame]:
        # With both, the rows are counted before the filter: then it may leave none out.
        known = None if predicate is None or rows is not None else condition(predicate)
        wanted = None if known is None else Filter(known, source.schema)
        for batch in source.batches(source.names if names is None else names, wanted):
            frame = polars.from_arrow(batch)
            if rows is not None:
                frame = frame.head(rows)
                rows -= frame.height
            yield frame if predicate is None else frame.filter(predicate)
            if rows == 0:
                return

    empty = polars.from_arrow(source.schema.empty_table())
    return register_io_source(read, schema=empty.schema)


def condition(predicate: pl.Expr) -> pc.Expression | None:
    """A condition for Arrow that holds wherever a predicate does; None if nothing of it is understood."""
    parts = predicate.meta.pop()[::-1]
    if len(parts) == 3 and predicate.meta.eq(parts[0].is_between(parts[1], parts[2])):
        return condition((parts[0] >= parts[1]) & (parts[0] <= parts[2]))
    if len(parts) != 2:
        return None
    left, right = parts
    if predicate.meta.eq(left & right) or predicate.meta.eq(left | right):
        both = [known for known in (condition(left), condition(right)) if known is not None]
        if len(both) == 2:
            return both[0] & both[1] if predicate.meta.eq(left & right) else both[0] | both[1]
        return both[0] if both and predicate.meta.eq(left & right) else None
    return _comparison(predicate, left, right)


def _comparison(predicate: pl.Expr, left: pl.Expr, right: pl.Expr) -> pc.Expression | None:
    """A column that is compared with values."""
    if not (left.meta.is_column() and right.meta.is_literal()):
        return None
    polars = _load_polars()
    column, values = pc.field(left.meta.output_name()), polars.select(right).to_series()
    if predicate.meta.eq(left.is_in(right)):
        return column.isin((values.explode() if values.dtype == polars.List else values).to_arrow())
    for name in _COMPARISONS:
        if len(values) == 1 and predicate.meta.eq(getattr(left, name)(right)):
            return getattr(column, name)(values.to_arrow()[0])
    return None


def _load_polars() -> Any:
    try:
        import polars
    except ImportError as error:
        raise MissingExtra.needed("polars", by="scan_polars()", extra="polars") from error
    return polars
