"""The formats that a table can have on top of its files: Parquet alone, Delta or Iceberg."""

from __future__ import annotations

from forelog.errors import BadOption
from forelog.spark.tables.delta import Delta
from forelog.spark.tables.format import TableFormat
from forelog.spark.tables.iceberg import Iceberg
from forelog.spark.tables.parquet import Parquet

__all__ = ["format_of"]


def format_of(name: str, catalog: str | None = None, table_name: str | None = None) -> TableFormat:
    """The format with a name. Only Iceberg has a catalog, and a name of the table in it."""
    if name != "iceberg" and (catalog or table_name):
        raise BadOption(f"a table of {name} is in no catalog and has no other name: only iceberg has")
    if name == "parquet":
        return Parquet()
    if name == "delta":
        return Delta()
    if name == "iceberg":
        return Iceberg(catalog, table_name)
    raise BadOption(f"table is {name!r}: expected parquet, delta or iceberg")
