"""`forelog state inspect`: generations and events of a state log."""

from __future__ import annotations

import argparse
import base64
import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json, table
from forelog.log.position import Position
from forelog.state.reader import Event, Span, events_of, last_events, open_source, parse_event, reading, span_of
from forelog.times import format_time

_OTHER = "?"


def add_options(parser: options.CommandParser) -> None:
    """Add the options of `inspect`."""
    parser.add("""
        log LOG       the log's directory
        --as-of WHEN  the state at a time or position; for a PersistentDict also its content
        --events      list the events that a restore would replay, as lines of JSON
        --limit N     show at most N events or keys (default: all)
    """)


def run(chosen: argparse.Namespace) -> int:
    """Show the state log."""
    stream = open_source(chosen.log)
    with reading(stream, chosen.timeout):
        span = span_of(stream, chosen.as_of)
        if chosen.events:
            for event in islice(events_of(stream, span), chosen.limit):
                print_json(event_in_words(event))
            return codes.FINE
        types, byte_counts, since = _count(events_of(stream, span), span)
        items: list[tuple[Any, Any]] | None = None
        if chosen.as_of is not None:
            found, is_dict = last_events(events_of(stream, span))
            items = items_of(found) if is_dict else None
    figures = {**_figures(span, types), **since}
    if chosen.json:
        if items is not None:
            shown = [[as_json(key), as_json(value)] for key, value in islice(items, chosen.limit)]
            figures |= {"keys": len(items), "items": shown}
        print_json(figures)
    else:
        _show(chosen.log, span, figures, types, byte_counts)
        if items is not None:
            print()
            _show_items(items, chosen.limit)
    return codes.FINE


def _count(events: Iterable[Event], span: Span) -> tuple[Counter[str], Counter[str], dict[str, int]]:
    """Count the events and bytes of each type, and what was written since the snapshot."""
    types: Counter[str] = Counter()
    byte_counts: Counter[str] = Counter()
    since = {"events_since_snapshot": 0, "bytes_since_snapshot": 0}
    commit = span.commit or Position(0, 0)
    for event in events:
        said = parse_event(event.data)
        name = _OTHER if said is None else said.type or "(plain)"
        types[name] += 1
        byte_counts[name] += event.frame_bytes
        if event.position > commit:
            since["events_since_snapshot"] += 1
            since["bytes_since_snapshot"] += event.frame_bytes
    return types, byte_counts, since


def _figures(span: Span, types: Counter[str]) -> dict[str, Any]:
    return {
        "generation": span.generation,
        "whole": span.complete,
        "whole_since": None if span.whole_ns is None else format_time(span.whole_ns),
        "last_change": format_time(span.last_ns),
        "from": str(span.start),
        "to": str(span.end),
        "events": types.total(),
        "types": dict(types),
    }


def _show(log: str, span: Span, figures: dict[str, Any], types: Counter[str], byte_counts: Counter[str]) -> None:
    whole = "" if span.whole_ns is None else f" since {figures['whole_since']}"
    if span.complete:
        state = f"generation {span.generation}, whole{whole}"
    elif span.commit is None:
        state = f"generation {span.generation}, not whole yet"
    else:
        state = f"generation {span.generation}, not whole yet; the one before it is,{whole}"
    print(f"{log}: {state}")
    print(f"from {span.start} to {span.end}, last change {figures['last_change']}")
    since, size = figures["events_since_snapshot"], human_bytes(figures["bytes_since_snapshot"])
    print(f"{plural(figures['events'], 'event')}, {since:,} of them since the snapshot, {size}")
    if types:
        rows = [(name, f"{count:,}", human_bytes(byte_counts[name])) for name, count in types.most_common()]
        for line in table([("type", ">events", ">bytes"), *rows]):
            print(f"  {line}")


def _show_items(items: list[tuple[Any, Any]], limit: int | None) -> None:
    print(plural(len(items), "key"))
    for key, value in islice(items, limit):
        print(f"  {text_of(key)}: {text_of(value)}")


def items_of(found: dict[tuple[str, Any], Any]) -> list[tuple[Any, Any]]:
    """What is in a PersistentDict, given the last event of each key."""
    return [(event[0], event[1]) for event in found.values() if len(event) > 1]


def event_in_words(event: Event) -> dict[str, Any]:
    """An event as JSON has it."""
    fields: dict[str, Any] = {"position": str(event.position), "time": format_time(event.time_ns)}
    said = parse_event(event.data)
    if said is None:
        return {**fields, "type": None, "event_base64": base64.b64encode(event.data).decode()}
    return {**fields, "type": said.type, "event": as_json(said.value)}


def as_json(value: Any) -> Any:
    """A value of msgpack in the types of JSON: bytes in base64, keys as texts, others as Python's repr.

    JSON has no number for a NaN or an infinity: these are texts, as `forelog convert` has them.

    >>> as_json({1: [b"chip", 2.5], "a": None})
    {'1': [{'base64': 'Y2hpcA=='}, 2.5], 'a': None}
    >>> as_json([float("nan"), float("-inf")])
    ['NaN', '-Infinity']
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else text_of(key): as_json(item) for key, item in value.items()}
    return str(value)


def text_of(value: Any) -> str:
    """A value on one line."""
    import json

    return json.dumps(as_json(value), ensure_ascii=False)
