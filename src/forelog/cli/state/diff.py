"""`forelog state diff`: what differs between two states.

Two states are compared by the last event of each thing. `forelog.state.reader.last_events` says what the key of
a thing is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import plural, print_json
from forelog.cli.state.inspect import as_json, text_of
from forelog.log.position import Position
from forelog.state.reader import events_of, last_events, open_source, reading, span_of

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_MISSING = object()


def add_options(parser: options.CommandParser) -> None:
    """Add the options of `diff`."""
    parser.add("""
        log LOG        the log's directory
        [other OTHER]  another log, to compare it with
        --as-of WHEN   the earlier state, at a time or position
    """)
    parser.add_argument(
        "--and",
        dest="and_when",
        type=options.time_or_position,
        metavar="WHEN",
        help="the later state (default: now; with two logs: the state of OTHER)",
    )


def run(chosen: argparse.Namespace) -> int:
    """Show the differences. The exit code is 1 if there are any."""
    if chosen.other is None and chosen.as_of is None:
        raise codes.UsageError("a log doesn't differ from itself: give another log, or a time with --as-of")
    before, plain_before = _state(chosen.log, chosen.as_of, chosen.timeout)
    after, plain_after = _state(chosen.other or chosen.log, chosen.and_when, chosen.timeout)
    is_dict = plain_before and plain_after
    count = 0
    for change in _changes(before, after, is_dict=is_dict):
        count += 1
        if chosen.json:
            print_json(change)
        else:
            print(_line(change))
    if not chosen.json:
        print(f"{plural(count, 'difference')}" if count else "no difference")
    return codes.PROBLEMS if count else codes.FINE


def _state(
    log: str, when: Position | int | None, timeout: float | None
) -> tuple[dict[tuple[str, Any], Any], bool]:
    stream = open_source(log)
    with reading(stream, timeout):
        return last_events(events_of(stream, span_of(stream, when)))


def _changes(
    before: dict[tuple[str, Any], Any], after: dict[tuple[str, Any], Any], *, is_dict: bool
) -> Iterator[dict[str, Any]]:
    if is_dict:
        # A key that is gone is as one that never was.
        before, after = ({k: v[1] for k, v in state.items() if len(v) > 1} for state in (before, after))
    for thing in [*before, *(thing for thing in after if thing not in before)]:
        old, new = before.get(thing, _MISSING), after.get(thing, _MISSING)
        if old is _MISSING or new is _MISSING or not _same(old, new):
            kind = "added" if old is _MISSING else "removed" if new is _MISSING else "changed"
            change: dict[str, Any] = {"change": kind, "key": as_json(thing[1])}
            if not is_dict:
                change["type"] = thing[0]
            if old is not _MISSING:
                change["from"] = as_json(old)
            if new is not _MISSING:
                change["to"] = as_json(new)
            yield change


def _same(old: Any, new: Any) -> bool:
    """Whether two values were written in the same way, whatever the order in dicts. True isn't 1, and nan
    equals nan."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return repr(old) == repr(new)


def _line(change: dict[str, Any]) -> str:
    name = f"{change['type']} " if change.get("type") else ""
    values = " -> ".join(text_of(change[end]) for end in ("from", "to") if end in change)
    return f"{_SIGNS[change['change']]} {name}{text_of(change['key'])}: {values}"
