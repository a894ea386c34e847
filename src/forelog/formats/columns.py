"""What all code for Arrow columns shares: loading pyarrow, and checking the names of columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from forelog.errors import MissingExtra


def load_pyarrow() -> ModuleType:
    """Import pyarrow. Raises MissingExtra if it isn't installed."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingExtra.needed("pyarrow", by="scan()", extra="arrow") from error
    module: ModuleType = pyarrow
    return module


def check_columns(columns: Sequence[str], known: Sequence[str], *, least: int = 1) -> tuple[str, ...]:
    """Check the names of wanted columns. An error lists the columns that exist."""
    if isinstance(columns, str):
        raise TypeError(f"columns is the text {columns!r}: expected a list of names")
    if len(columns) < least or any(name not in known for name in columns):
        raise ValueError(f"columns {list(columns)}: choose from {', '.join(known)}")
    return tuple(columns)


def segment_column(pa: Any, segment: int, rows: int, *, wide: bool = False) -> Any:
    """A column that has the segment in each row. Made without `pa.scalar`, whose first call imports pandas."""
    one = segment.to_bytes(8 if wide else 4, sys.byteorder, signed=True)
    return pa.Array.from_buffers(pa.int64() if wide else pa.int32(), rows, [None, pa.py_buffer(one * rows)])
