"""`forelog clean`: forget records by age, size or key."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json
from forelog.cli.progress import Progress
from forelog.formats.state import MAGIC as STATE_MAGIC
from forelog.log.cleaner import CleanReport
from forelog.log.directory.tenants import ANNEX_MAGIC, JOBS_MAGIC, described
from forelog.log.rules import KeepLast, KeepLatest, OlderThan, Rule
from forelog.log.stream import Stream

_THEMSELVES = {
    STATE_MAGIC: "it shortens itself, and its old records are still needed",
    ANNEX_MAGIC: "its server drops what nobody needs",
    JOBS_MAGIC: "its server drops what no job needs, and so does `forelog pipeline clean` while it is stopped",
}
"""What becomes of old records in logs that only their owners can clean, by magic number."""


def parser() -> options.CommandParser:
    parser = options.command_parser(
        "clean",
        "Forget records, by one rule. The last segment, which is appended to, is never touched; positions stay\n"
        "valid. Appenders continue meanwhile, readers wait.",
        "examples:\n"
        "  forelog clean events.log --older-than 7d\n"
        "  forelog clean settings.log --latest-until = --dry-run",
    )
    parser.add("""
        log LOG                     the log's directory
        --older-than AGE            drop records older than this, such as 24h or 7d
        --keep-bytes SIZE           drop the oldest segments beyond this size, such as 10GiB
        --keep-segments N           drop the oldest segments beyond N
        --latest-key START:STOP     keep only the latest record of each key; the key is this part of the payload
        --latest-until BYTE         the key is all before this byte; with --latest-key, within that part
        --roll                      start a new segment first, so that the last one can be cleaned too; needs the
                                    log to itself
        --dry-run                   only show what would be dropped
        --on-corruption raise|skip  at damage: stop with exit code 4 (default), or leave damaged segments
                                    unchanged
    """)
    parser.set_types(keep_bytes=options.byte_size)
    parser.set_defaults(on_corruption="raise")
    options.add_known_header(parser)
    options.add_timeout(parser, "for readers to finish")
    return parser


def run(chosen: argparse.Namespace) -> int:
    rule = _rule(chosen)
    stream = options.open_log(chosen.log, chosen)
    _refuse_logs_that_clean_themselves(stream, chosen)
    if rule.needs_last and not stream.format.appends_in_place:
        raise codes.UsageError(f"--latest-key and --latest-until are not for the format {stream.format.name}")
    if chosen.roll and not chosen.dry_run:
        with stream.appender(timeout=chosen.timeout) as log:
            log.roll()
    with (
        stream.cleaner(timeout=chosen.timeout) as cleaner,
        Progress(f"cleaning {chosen.log}", unit="") as progress,
    ):
        report = cleaner.clean(rule, on_corruption=chosen.on_corruption, dry_run=chosen.dry_run, progress=progress)
    if chosen.json:
        print_json({"path": chosen.log, "dry_run": chosen.dry_run, **asdict(report)})
    else:
        _print(chosen.log, report, dry_run=chosen.dry_run, rolls=chosen.roll)
    return codes.FINE


def _refuse_logs_that_clean_themselves(stream: Stream, chosen: argparse.Namespace) -> None:
    """A state log without its old records has lost state, and a command log its jobs."""
    magic, _ = stream.format.signature or (0, 0)
    if magic in _THEMSELVES and chosen.magic is None:
        raise codes.UsageError(
            f"{chosen.log} is {described(stream.format).what}: {_THEMSELVES[magic]}. To drop records by this "
            f"rule, and lose what they say, add --magic {magic:#x}"
        )


def _rule(chosen: argparse.Namespace) -> Rule:
    rules: list[Rule] = []
    if chosen.older_than is not None:
        rules.append(OlderThan(chosen.older_than))
    if chosen.keep_bytes is not None:
        rules.append(KeepLast(byte_count=chosen.keep_bytes))
    if chosen.keep_segments is not None:
        rules.append(KeepLast(segments=chosen.keep_segments))
    if chosen.latest_key is not None or chosen.latest_until is not None:
        rules.append(KeepLatest(key=chosen.latest_key, until=chosen.latest_until))
    if len(rules) != 1:
        found = "none" if not rules else "several"
        raise codes.UsageError(
            f"clean takes one rule, and there are {found}: choose --older-than, --keep-bytes, --keep-segments, or "
            "--latest-key and --latest-until"
        )
    return rules[0]


def _print(path: str, report: CleanReport, *, dry_run: bool, rolls: bool) -> None:
    would = "would be " if dry_run else ""
    print(
        f"{path}: {plural(report.records_dropped, 'record')} {would}dropped, "
        f"{human_bytes(report.bytes_dropped)} {would}freed"
    )
    changed = f"{report.segments_rewritten:,} {would}rewritten and {report.segments_removed:,} {would}removed"
    print(f"  of {plural(report.segments_visited, 'finished segment')}, {changed}")
    if dry_run and rolls:
        print("  the last segment isn't counted: --roll finishes it only in a real run")
    elif not report.segments_visited:
        print("  cleaning skips the last segment, and there is no other: --roll starts a new one first")
    for segment in report.segments_skipped:
        print(f"  left unchanged: {segment}")
