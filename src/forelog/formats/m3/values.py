"""The values of M3's commit log: datapoints, and the series that they belong to.

>>> cpu = Series(b"cpu", shard=3, tags={b"host": b"a"})
>>> cpu
Series(id=b'cpu', namespace=b'default', shard=3, tags=((b'host', b'a'),))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Self

from forelog.kernel import m3_metadata, m3_parse_metadata

_U16_MAX = 2**16 - 1
_U32_MAX = 2**32 - 1

Tags = tuple[tuple[bytes, bytes], ...]


class Unit(IntEnum):
    """The precision of a timestamp. The timestamp itself is always in nanoseconds."""

    SECOND = 1
    MILLISECOND = 2
    MICROSECOND = 3
    NANOSECOND = 4
    MINUTE = 5
    HOUR = 6
    DAY = 7
    YEAR = 8


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A series of datapoints: an id within a namespace, with tags. Hashable, and cheap to compare.

    Tags are a mapping, which is sorted by name, or pairs, whose order is kept. None and no tags are different,
    as in M3.
    """

    id: bytes
    """What the series is called."""
    namespace: bytes = b"default"
    """What the id is unique in."""
    shard: int = 0
    """Which of the database's shards has it."""
    tags: Tags | None = None
    """Pairs of name and value; None for no tags."""
    metadata: bytes = field(init=False, repr=False)
    """All of that as it is written: two series are equal if this is."""

    def __init__(
        self,
        id: bytes,  # noqa: A002 - M3's name for it
        namespace: bytes = b"default",
        shard: int = 0,
        tags: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]] | None = None,
    ) -> None:
        if not isinstance(shard, int) or not 0 <= shard <= _U32_MAX:
            raise ValueError(f"shard is {shard!r}: expected an unsigned 32 bit number")
        self._set(as_bytes("id", id), as_bytes("namespace", namespace), int(shard), _as_tags(tags))

    @classmethod
    def of_metadata(cls, metadata: bytes) -> Self:
        """The series that metadata in a file describes, even if M3 itself would have written it differently."""
        series = cls.__new__(cls)
        series._set(*m3_parse_metadata(metadata))
        return series

    def _set(self, series_id: bytes, namespace: bytes, shard: int, tags: Tags | None) -> None:
        metadata = m3_metadata(series_id, namespace, shard, tags)
        values = {"id": series_id, "namespace": namespace, "shard": shard, "tags": tags, "metadata": metadata}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return self.metadata == other.metadata if isinstance(other, Series) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.metadata)


class Datapoint(NamedTuple):
    """A number and its time."""

    timestamp_ns: int
    """The time, in nanoseconds since 1970."""
    value: float
    """The number."""


class Entry(NamedTuple):
    """A datapoint in a file, with its series, unit and annotation."""

    series: Series
    """What the datapoint belongs to."""
    datapoint: Datapoint
    """The time and the number."""
    unit: int
    """A `Unit`, or a number that M3 gives no meaning to."""
    annotation: bytes | None
    """What was noted; None for nothing."""
    created_ns: int
    """When the entry was written."""


def as_bytes(what: str, value: Any) -> bytes:
    """The value as bytes, or a TypeError that says what they are for."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is {value!r}: expected bytes, such as b'cpu'")
    return bytes(value)


def _as_tags(tags: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]] | None) -> Tags | None:
    if tags is None:
        return None
    given = sorted(tags.items()) if isinstance(tags, Mapping) else tags
    pairs = tuple((as_bytes("a tag's name", name), as_bytes("a tag's value", value)) for name, value in given)
    if len(pairs) > _U16_MAX:
        raise ValueError(f"{len(pairs)} tags: a series has at most {_U16_MAX}")
    for name, value in pairs:
        if not name:
            raise ValueError(f"a tag with the value {value[:40]!r} has no name: M3 reads no such series")
        if max(len(name), len(value)) > _U16_MAX:
            size = max(len(name), len(value))
            raise ValueError(f"tag {name[:40]!r} has {size} bytes: names and values have at most {_U16_MAX}")
    return pairs
