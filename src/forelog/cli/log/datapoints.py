"""What the commands show of a log in M3's format: datapoints instead of payloads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

from forelog.cli import codes
from forelog.cli.output import as_text, human_count, plural
from forelog.commitlog.check import EntriesReport
from forelog.commitlog.entries import EntryWalk, entries_of
from forelog.formats.m3 import Entry, Series
from forelog.formats.m3.exchange import as_fields
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.log.walk import Defect
from forelog.times import format_time

UNITS = {1: "s", 2: "ms", 3: "us", 4: "ns", 5: "min", 6: "h", 7: "day", 8: "year"}
_FOLLOW_SECONDS = 1.0


Row = tuple[Position, Entry]


def rows(
    stream: Stream, chosen: argparse.Namespace, start: Position | None, since_ns: int | None
) -> Iterator[Row]:
    """The datapoints to show, with --follow also new ones; cleaners can run while it waits."""
    if chosen.reverse:
        raise codes.UsageError("--reverse is not for logs in M3's format: their files can be read forward only")
    if chosen.raw:
        raise codes.UsageError("--raw is not for logs in M3's format: a datapoint isn't a payload. Try --json")
    walk = EntryWalk(stream, start=start, since=since_ns, until=chosen.until, on_corruption=chosen.on_corruption)
    return _rows(stream, walk, chosen)


def _rows(stream: Stream, walk: EntryWalk, chosen: argparse.Namespace) -> Iterator[Row]:
    directory = stream.directory
    watch = directory.files.watch(stream.path) if chosen.follow else None
    try:
        while True:
            with directory.read_lock(timeout=chosen.timeout):
                walk.revalidate()
                for block in walk:
                    yield from entries_of(block)
            if watch is None or walk.done:
                return
            watch.wait(_FOLLOW_SECONDS)
    finally:
        walk.close()
        if watch is not None:
            watch.close()


def layout(chosen: argparse.Namespace) -> Callable[[Row], bytes]:
    """How a datapoint is shown."""
    if chosen.json:
        return as_json
    return partial(_line, show=bytes.hex if chosen.hex else as_text)


def _line(row: Row, show: Callable[[bytes], str]) -> bytes:
    """Position, created, namespace, id, tags, timestamp, value, unit, annotation."""
    position, entry = row
    datapoint = entry.datapoint
    fields = (
        str(position),
        format_time(entry.created_ns, aligned=True),
        _series(entry.series, show),
        format_time(datapoint.timestamp_ns, aligned=True),
        repr(datapoint.value),
        UNITS.get(entry.unit, str(int(entry.unit))),
        "-" if entry.annotation is None else show(entry.annotation),
    )
    return "\t".join(fields).encode() + b"\n"


@lru_cache(maxsize=4096)
def _series(series: Series, show: Callable[[bytes], str]) -> str:
    tags = "-" if not series.tags else ",".join(f"{show(name)}={show(value)}" for name, value in series.tags)
    return f"{show(series.namespace)}\t{show(series.id)}\t{tags}"


def as_json(row: Row) -> bytes:
    """A datapoint as JSON, as `convert` writes it, with its position and the time of its creation."""
    position, entry = row
    place = {
        "position": str(position),
        "segment": position.segment,
        "offset": position.offset,
        "created": format_time(entry.created_ns),
        "created_ns": entry.created_ns,
    }
    return json.dumps({**place, **as_fields(entry)}, ensure_ascii=False).encode() + b"\n"


# -- for verify and stats


def summary(report: EntriesReport) -> list[str]:
    """Lines that sum up the entries of a log."""
    entries = f"{human_count(report.entries)} {'entry' if report.entries == 1 else 'entries'}"
    lines = [
        f"{entries} of {report.series:,} series in {plural(len(report.namespaces), 'namespace')}"
        f"{f', {human_count(report.annotations)} of them annotated' if report.annotations else ''}"
    ]
    if report.timestamp_min_ns is not None and report.timestamp_max_ns is not None:
        first, last = format_time(report.timestamp_min_ns), format_time(report.timestamp_max_ns)
        lines.append(f"timestamps from {first} to {last}")
    return lines


def problems(report: EntriesReport, *, live: bool, chunks_torn: bool) -> list[str]:
    """Messages that can't be read, one line each; without a torn end that verify has reported."""
    lines = [str(defect) for defect in report.defects]
    if report.torn is not None and not live and not chunks_torn:
        lines.append(str(report.torn))
    return lines


def as_dict(report: EntriesReport) -> dict[str, Any]:
    """A report as JSON has it."""
    return {
        "entries": report.entries,
        "annotations": report.annotations,
        "series": report.series,
        "namespaces": {as_text(name): count for name, count in report.namespaces.items()},
        "timestamp_min_ns": report.timestamp_min_ns,
        "timestamp_max_ns": report.timestamp_max_ns,
        "created_min_ns": report.created_min_ns,
        "created_max_ns": report.created_max_ns,
        "defects": [_defect(defect) for defect in report.defects],
        "torn": None if report.torn is None else _defect(report.torn),
    }


def _defect(defect: Defect) -> dict[str, Any]:
    return {**defect._asdict(), "position": str(defect.position)}
