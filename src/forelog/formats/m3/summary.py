"""Counting the entries of a log in M3's format."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from forelog.formats.m3.entries import EntryBlock
from forelog.kernel import m3_parse_metadata


@dataclass(slots=True)
class Summary:
    """Counts of a log's entries."""

    entries: int = 0
    """How many entries there are."""
    annotations: int = 0
    """How many entries have an annotation."""
    series: int = 0
    """How many different series the entries are of, in all files."""
    namespaces: dict[bytes, int] = field(default_factory=dict)
    """How many series each namespace has."""
    timestamp_min_ns: int | None = None
    """The earliest time of a datapoint; None without entries."""
    timestamp_max_ns: int | None = None
    """The latest time of a datapoint; None without entries."""
    created_min_ns: int | None = None
    """The earliest time at which an entry was written; None without entries."""
    created_max_ns: int | None = None
    """The latest time at which an entry was written; None without entries."""

    def add(self, block: EntryBlock) -> None:
        """Count all entries of a block."""
        entries = block.entries
        self.entries += len(entries.series)
        self.annotations += sum(entries.annotated)
        times = min(entries.timestamps), max(entries.timestamps)
        created = min(entries.created), max(entries.created)
        if self.timestamp_min_ns is None or self.timestamp_max_ns is None:
            self.timestamp_min_ns, self.timestamp_max_ns = times
        self.timestamp_min_ns = min(self.timestamp_min_ns, times[0])
        self.timestamp_max_ns = max(self.timestamp_max_ns, times[1])
        if self.created_min_ns is None or self.created_max_ns is None:
            self.created_min_ns, self.created_max_ns = created
        self.created_min_ns = min(self.created_min_ns, created[0])
        self.created_max_ns = max(self.created_max_ns, created[1])


def count_series(metadata: set[bytes]) -> dict[bytes, int]:
    """How many series each namespace has, by the metadata of each series."""
    return dict(sorted(Counter(m3_parse_metadata(raw)[1] for raw in metadata).items()))
