"""`forelog stats`: segments, sizes and rates, as numbers and as a picture."""

from __future__ import annotations

import argparse
import contextlib
import operator
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forelog.cli import codes, draw, options
from forelog.cli.log.histogram import Histogram
from forelog.cli.output import human_bytes, human_count, human_duration, plural, print_json, table
from forelog.cli.progress import Progress
from forelog.log.position import Position
from forelog.log.stream import SegmentInfo, Stream
from forelog.log.walk import Walk
from forelog.times import SECOND_NS, format_time

if TYPE_CHECKING:
    from forelog.commitlog.check import EntriesReport

ROWS_FIRST, ROWS_LAST = 4, 12
HEIGHT = 4
RATE_BINS_JSON = 64


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "stats",
        "Show a log's segments, their sizes, and how many records and bytes came per second over time.",
    )
    parser.add_argument("log", metavar="LOG", help="the log's directory")
    parser.add_argument("--quick", action="store_true", help="show only what is known without reading the records")
    parser.add_argument("--all", action="store_true", help="show every segment, also of a long log")
    parser.add_argument(
        "--width", type=options.count, metavar="N", help="width in characters (default: the terminal's)"
    )
    options.add_known_header(parser)
    options.add_timeout(parser, "for a cleaner to finish")
    return parser


@dataclass(slots=True)
class _Segment:
    info: SegmentInfo
    records: int | None
    last_time_ns: int | None


@dataclass(slots=True)
class _Stats:
    segments: list[_Segment] = field(default_factory=list)
    histogram: Histogram = field(default_factory=Histogram)
    payload_bytes: int = 0
    payload_bytes_max: int = 0
    defects: int = 0
    defect_bytes: int = 0
    entries: EntriesReport | None = None
    """What is in the chunks of a log in M3's format."""

    @property
    def byte_count(self) -> int:
        return sum(segment.info.byte_count for segment in self.segments)

    @property
    def records(self) -> int | None:
        """None if some segment's number isn't known."""
        counts = [segment.records for segment in self.segments]
        return None if None in counts else sum(count or 0 for count in counts)


def run(chosen: argparse.Namespace) -> int:
    stream = options.open_log(chosen.log, chosen)
    with Progress(f"reading {chosen.log}") as progress:
        stats = _quick(stream) if chosen.quick else _read(stream, chosen.timeout, progress)
    if stream.format.holds_entries and not chosen.quick:
        from forelog.commitlog.check import check_entries

        with Progress(f"decoding {chosen.log}") as progress:
            stats.entries = check_entries(stream, progress=progress, timeout=chosen.timeout)
    if chosen.json:
        print_json(_as_dict(stream, stats, quick=chosen.quick))
    else:
        width = chosen.width or shutil.get_terminal_size().columns
        _print(stream, stats, max(width, 40), chosen)
    return codes.FINE


def _quick(stream: Stream) -> _Stats:
    return _Stats([_Segment(info, info.records, info.last_time_ns) for info in stream.segments()])


def _read(stream: Stream, timeout: float | None, progress: Progress) -> _Stats:
    directory = stream.directory
    directory.names()
    with directory.read_lock(timeout=timeout):
        stats = _Stats()
        infos = stream.segments()
        total, done = sum(info.byte_count for info in infos), 0
        for info in infos:
            stats.segments.append(_read_segment(stream, info, stats))
            done += info.byte_count
            progress(done, total)
        return stats


def _read_segment(stream: Stream, info: SegmentInfo, stats: _Stats) -> _Segment:
    segment = _Segment(info, 0, None)
    start, stop = Position(info.number, 0), Position(info.number + 1, 0)
    walk = Walk(stream.directory, start=start, stop=stop, on_corruption="skip")
    records = 0
    with contextlib.closing(walk):
        for block in walk:
            scan = block.scan
            records += len(scan.times)
            segment.last_time_ns = scan.times[-1]
            stats.payload_bytes += sum(scan.ends) - sum(scan.starts)
            stats.payload_bytes_max = max(stats.payload_bytes_max, max(map(operator.sub, scan.ends, scan.starts)))
            stats.histogram.add(scan.times, scan.offsets, block.base + scan.end)
        segment.records = records
        stats.defects += len(walk.defects)
        stats.defect_bytes += sum(defect.byte_count for defect in walk.defects)
    return segment


# -- as text


def _print(stream: Stream, stats: _Stats, width: int, chosen: argparse.Namespace) -> None:
    records = stats.records
    record = _record(stream)
    counted = "" if records is None else f"{plural(records, record)}, "
    print(
        f"{stream.path}: {_kind(stream)}, {plural(len(stats.segments), 'segment')}, {counted}"
        f"{human_bytes(stats.byte_count)}"
    )
    if records and not chosen.quick:
        overhead = stats.byte_count / max(stats.payload_bytes, 1) - 1
        mean = f"{stats.payload_bytes / records:,.1f} bytes on average"
        if stats.entries is None:
            print(f"payloads: {human_bytes(stats.payload_bytes)}, {mean}; the log adds {overhead:.1%}")
        else:
            print(f"chunks: {human_bytes(stats.payload_bytes)}, {mean}, {stats.payload_bytes_max:,} at most")
    if stats.entries is not None:
        from forelog.cli.log import datapoints

        print("\n".join(datapoints.summary(stats.entries)))
    if stats.defects:
        print(f"damage: {plural(stats.defects, 'place')}, {human_bytes(stats.defect_bytes)}: see forelog verify")
    print()
    print("\n".join(_segment_table(stats, width, record, show_all=chosen.all)))
    if not chosen.quick and stats.histogram.start_ns is not None:
        print()
        print("\n".join(_pictures(stats.histogram, width, record)))


def _segment_table(stats: _Stats, width: int, record: str, *, show_all: bool) -> list[str]:
    rows: list[tuple[str, ...]] = [(">segment", f">{record}s", ">bytes", f"first {record}", "")]
    shown = stats.segments
    if not show_all and len(shown) > ROWS_FIRST + ROWS_LAST + 1:
        shown = [*shown[:ROWS_FIRST], *shown[-ROWS_LAST:]]
    largest = max((segment.info.byte_count for segment in stats.segments), default=0)
    blocks = draw.can_draw()
    for segment in shown:
        info = segment.info
        rows.append(
            (
                f"{info.number:09d}",
                "?" if segment.records is None else f"{segment.records:,}",
                human_bytes(info.byte_count),
                "-" if info.first_time_ns is None else _seconds(info.first_time_ns),
                "*" if info.rewritten else "",
            )
        )
    lines = table(rows)
    room = max(width - max(map(len, lines)) - 2, 8)
    widest = max(map(len, lines))
    pictured = [lines[0]]
    for line, segment in zip(lines[1:], shown, strict=True):
        sized = draw.bar(segment.info.byte_count, largest, room, blocks=blocks)
        pictured.append(f"{line.ljust(widest)}  {sized}".rstrip())
    if len(shown) < len(stats.segments):
        hidden = len(stats.segments) - len(shown)
        pictured.insert(1 + ROWS_FIRST, f"      ... {plural(hidden, 'segment')} more, --all shows them")
    if any(segment.info.rewritten for segment in shown):
        pictured.append("* rewritten by cleaning")
    return pictured


def _pictures(histogram: Histogram, width: int, record: str) -> list[str]:
    records, sizes = histogram.resampled(width - 2)
    assert histogram.start_ns is not None
    span = max(histogram.span_ns, histogram.width_ns) / SECOND_NS
    seconds = span / len(records)
    blocks = draw.can_draw()
    lines = []
    for name, values, amount in ((f"{record}s", records, human_count), ("bytes", sizes, human_bytes)):
        peak, mean = max(values) / seconds, sum(values) / span
        lines.append(f"{name} per second: {amount(mean)} on average, {amount(peak)} at most")
        lines += [f"  {line}" for line in draw.columns(values, height=HEIGHT, blocks=blocks)]
        lines.append("")
    start, end = _seconds(histogram.start_ns), _seconds(histogram.end_ns)
    middle = f"{human_duration(histogram.span_ns / SECOND_NS)}, a column is {human_duration(seconds)}"
    if len(records) < len(start) + len(end) + len(middle) + 4:
        return [*lines[:-1], f"  from {start} to {end}", f"  {middle}"]
    gap = len(records) - len(start) - len(end)
    return [*lines[:-1], f"  {start}{middle.center(gap)}{end}"]


def _record(stream: Stream) -> str:
    """The word for the engine's records in a format, such as chunk."""
    return stream.format.record_word


def _kind(stream: Stream) -> str:
    magic, version = getattr(stream.format, "magic", None), getattr(stream.format, "version", None)
    marks = "" if magic is None else f", magic {magic:#010x}, version {version}"
    return f"{stream.format.name}{marks}"


def _seconds(time_ns: int) -> str:
    return format_time(time_ns // SECOND_NS * SECOND_NS)


# -- as JSON


def _as_dict(stream: Stream, stats: _Stats, *, quick: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "path": stream.path,
        "format": stream.format.name,
        "magic": getattr(stream.format, "magic", None),
        "version": getattr(stream.format, "version", None),
        "records": stats.records,
        "bytes": stats.byte_count,
        "segments": [
            {
                "number": segment.info.number,
                "path": segment.info.path,
                "records": segment.records,
                "bytes": segment.info.byte_count,
                "end": str(segment.info.end),
                "sealed": segment.info.sealed,
                "rewritten": segment.info.rewritten,
                "first_time_ns": segment.info.first_time_ns,
                "last_time_ns": segment.last_time_ns,
            }
            for segment in stats.segments
        ],
    }
    if not quick:
        histogram = stats.histogram
        records, sizes = histogram.resampled(RATE_BINS_JSON)
        result |= {
            "payload_bytes": stats.payload_bytes,
            "payload_bytes_max": stats.payload_bytes_max,
            "defects": stats.defects,
            "defect_bytes": stats.defect_bytes,
            "over_time": {
                "start_ns": histogram.start_ns,
                "end_ns": histogram.end_ns if histogram.start_ns is not None else None,
                "records": records,
                "bytes": sizes,
            },
        }
    if stats.entries is not None:
        from forelog.cli.log import datapoints

        result["datapoints"] = datapoints.as_dict(stats.entries)
    return result
