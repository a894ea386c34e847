"""Spark's types and Arrow's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forelog.errors import BadOption
from forelog.formats.columns import load_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def ddl(columns: Mapping[str, str], names: Sequence[str]) -> str:
    """A schema as Spark reads it."""
    return ", ".join(f"`{name}` {columns[name]}" for name in names)


def chosen(schema: StructType, columns: Mapping[str, str]) -> list[str]:
    """The names of a schema's columns; BadOption if one is unknown or has another type."""
    for field in schema.fields:
        if field.name not in columns:
            raise BadOption(f"there is no column {field.name!r}: choose from {', '.join(columns)}")
        if field.dataType.simpleString() != columns[field.name]:
            raise BadOption(
                f"column {field.name!r} is {columns[field.name]}, not {field.dataType.simpleString()}: read it as "
                "that, and cast it"
            )
    return [field.name for field in schema.fields]


def arrow_schema(columns: Mapping[str, str], names: Sequence[str]) -> pa.Schema:
    """The exact schema that Spark expects of batches with these columns."""
    pa = load_pyarrow()
    return pa.schema([(name, _arrow_type(pa, columns[name])) for name in names])


def _arrow_type(pa: Any, name: str) -> Any:
    if name == "map<binary,binary>":
        return pa.map_(pa.binary(), pa.binary())
    return {
        "boolean": pa.bool_(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }[name]
