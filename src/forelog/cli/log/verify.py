"""`forelog verify`: check every byte of logs."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json, say, table
from forelog.cli.progress import Progress
from forelog.errors import ForelogError
from forelog.log.stream import Stream
from forelog.log.verify import SegmentReport, VerifyReport, verify
from forelog.log.walk import Defect
from forelog.times import format_time

if TYPE_CHECKING:
    from forelog.commitlog.check import EntriesReport


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "verify",
        "Check every byte of logs: checksums, headers, indexes, order of times, whether synced bytes are\n"
        "missing, and of a log in M3's format every message. Nothing is changed, and a log may be in use\n"
        "meanwhile. Exit code 1 if anything is damaged.",
    )
    parser.add_argument("logs", metavar="LOG", nargs="+", help="a log's directory")
    parser.add_argument("--segments", action="store_true", help="show every segment, not only problems")
    options.add_known_header(parser)
    options.add_timeout(parser, "for a cleaner to finish")
    return parser


def run(chosen: argparse.Namespace) -> int:
    worst = codes.FINE
    for path in chosen.logs:
        try:
            with Progress(f"verifying {path}") as progress:
                stream = options.open_log(path, chosen)
                report = verify(stream, progress=progress, timeout=chosen.timeout)
            with Progress(f"decoding {path}") as progress:
                entries = _check_entries(stream, progress, chosen.timeout)
        except (ForelogError, OSError) as error:
            if len(chosen.logs) == 1:
                raise
            code, message = codes.explain(error)
            say(message)
            worst = max(worst, code)
            continue
        problems = report.problems() + _message_problems(report, entries)
        if chosen.json:
            print_json(as_dict(report, entries, problems))
        else:
            _print(report, entries, problems, segments=chosen.segments)
        sys.stdout.flush()
        worst = max(worst, codes.PROBLEMS if problems else codes.FINE)
    return worst


def _check_entries(stream: Stream, progress: Progress, timeout: float | None) -> EntriesReport | None:
    """Check the messages in chunks, in a format that has chunks."""
    if not stream.format.holds_entries:
        return None
    from forelog.commitlog.check import check_entries

    return check_entries(stream, progress=progress, timeout=timeout)


def _message_problems(report: VerifyReport, entries: EntriesReport | None) -> list[str]:
    if entries is None:
        return []
    from forelog.cli.log import datapoints

    torn = any(segment.torn is not None for segment in report.segments)
    return datapoints.problems(entries, live=report.live, chunks_torn=torn)


def _print(report: VerifyReport, entries: EntriesReport | None, problems: list[str], *, segments: bool) -> None:
    verdict = plural(len(problems), "problem") if problems else "no damage"
    record = "record" if entries is None else "chunk"
    counts = f"{plural(len(report.segments), 'segment')}, {plural(report.records, record)}"
    live = ", being appended to" if report.live else ""
    print(f"{report.path}: {counts}, {human_bytes(report.byte_count)}{live}: {verdict}")
    if entries is not None:
        from forelog.cli.log import datapoints

        print("\n".join(f"  {line}" for line in datapoints.summary(entries)))
    if segments and report.segments:
        rows: list[tuple[str, ...]] = [
            (">segment", ">records", ">bytes", "first time", "last time", "index", "state")
        ]
        rows += [_row(segment) for segment in report.segments]
        print("\n".join(f"  {line}" for line in table(rows)))
    for line in problems:
        print(f"  damage: {line}")
    for line in report.notes():
        print(f"  note: {line}")
    if problems:
        say(f"`forelog repair {report.path}` shows what can be done")


def _row(segment: SegmentReport) -> tuple[str, ...]:
    state = "damaged" if segment.defects else "torn" if segment.torn else "fine"
    if segment.header != "right":
        state = segment.header
    return (
        f"{segment.number}",
        f"{segment.records:,}",
        f"{segment.byte_count:,}",
        "-" if segment.first_time_ns is None else format_time(segment.first_time_ns),
        "-" if segment.last_time_ns is None else format_time(segment.last_time_ns),
        segment.index,
        state,
    )


def as_dict(report: VerifyReport, entries: EntriesReport | None, problems: list[str]) -> dict[str, Any]:
    """A report as JSON has it."""
    segments = []
    for segment in report.segments:
        fields = asdict(segment)
        fields["defects"] = [_defect(defect) for defect in segment.defects]
        fields["torn"] = None if segment.torn is None else _defect(segment.torn)
        back = segment.times_back_first
        fields["times_back_first"] = None if back is None else str(back)
        segments.append(fields)
    result = {
        "path": report.path,
        "ok": not problems,
        "records": report.records,
        "bytes": report.byte_count,
        "problems": problems,
        "notes": report.notes(),
        **asdict(report),
        "segments": segments,
    }
    if entries is not None:
        from forelog.cli.log import datapoints

        result["datapoints"] = datapoints.as_dict(entries)
    return result


def _defect(defect: Defect) -> dict[str, Any]:
    return {**defect._asdict(), "position": str(defect.position)}
