"""`forelog broker sessions`: sessions and how far each has read, from a broker's files.

The broker need not run, and isn't asked if it does. Its log of sessions has what it knows, a moment later.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from forelog.broker.limits import NEVER, Limits
from forelog.broker.sessions.session import Session
from forelog.broker.sessions.store import SessionStore
from forelog.cli import codes, options
from forelog.cli.output import human_bytes, plural, print_json, table
from forelog.errors import BadEvent, UnknownFormat
from forelog.formats.messages import Messages
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.serving.notices import text
from forelog.state.reader import events_of, open_source, parse_event, reading, span_of
from forelog.times import format_time


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `sessions`."""
    parser.add_argument("log", metavar="LOG", help="the broker's directory: its --log")
    parser.add_argument("--limit", type=options.count, metavar="N", help="show at most N, the largest lag first")
    options.add_timeout(parser, "for a cleaner to finish")


def run(chosen: argparse.Namespace) -> int:
    """Show the sessions."""
    store = read_store(chosen.log, chosen.timeout)
    stream = Stream.open(os.path.join(chosen.log, "messages"))
    if stream.format.name != Messages.name:
        raise UnknownFormat(f"{stream.path} isn't a log of messages: its format is {stream.format.name}")
    sizes = [(number, stream.segment_bytes(number) or 0) for number in stream.numbers()]
    rows = [_row(session, store, sizes) for session in store.sessions.values()]
    rows.sort(key=lambda row: (-row["lag_bytes"], row["client_id"]))
    shown = rows if chosen.limit is None else rows[: chosen.limit]
    if chosen.json:
        for row in shown:
            print_json(row)
        return codes.FINE
    retained = plural(len(store.retained), "retained message")
    print(f"{chosen.log}: {plural(len(rows), 'session')}, {retained}")
    if shown:
        lines = [("client", "user", "since", "position", ">lag", ">unacknowledged", "subscriptions")]
        for row in shown:
            since = f"away {row['away_since']}" if row["away_since"] else "connected"
            lag = human_bytes(row["lag_bytes"])
            names = ", ".join(map(text, row["subscriptions"])) or "-"
            who = (text(row["client_id"]), text(row["user"]))  # what clients chose isn't for terminals
            lines.append((*who, since, row["position"], lag, str(row["unacknowledged"]), names))
        print("\n".join(f"  {line}" for line in table(lines)))
    return codes.FINE


def read_store(log: str, timeout: float | None) -> SessionStore:
    """Read a broker's log of sessions. Changes nothing there, and takes no lock that the broker needs."""
    stream = open_source(os.path.join(log, "sessions"))
    store = SessionStore(stream.path, Limits())
    with reading(stream, timeout):
        for event in events_of(stream, span_of(stream)):
            said = parse_event(event.data)
            if said is None or not isinstance(said.value, list) or not said.value:
                raise BadEvent(f"{stream.path} at {event.position}: it isn't an event of a broker")
            try:
                store.replay(said.value)
            except (LookupError, TypeError, ValueError) as error:
                raise BadEvent(f"{stream.path} at {event.position}: not an event of a broker: {error}") from None
    return store


def _row(session: Session, store: SessionStore, sizes: list[tuple[int, int]]) -> dict[str, Any]:
    places = [session.at(cursor, cursor.next) for cursor in session.cursors.values() if cursor.subs]
    places += [store.groups[key] for key in session.groups if key in store.groups]
    position = min(places, default=session.main.next)
    names = [*session.main.subs, *filter(None, session.cursors), *session.groups]
    expires = session.expires_ns()
    return {
        "client_id": session.client_id,
        "user": session.owner,
        "away_since": None if session.ended_ns is None else format_time(session.ended_ns // 10**9 * 10**9),
        "expires": None if expires is None else format_time(expires // 10**9 * 10**9),
        "expiry_seconds": None if session.expiry_seconds == NEVER else session.expiry_seconds,
        "position": str(position),
        "lag_bytes": _bytes_after(position, sizes) if places else 0,
        "unacknowledged": len(session.in_flight) + len(session.released),
        "subscriptions": sorted(names),
    }


def _bytes_after(position: Position, sizes: list[tuple[int, int]]) -> int:
    """How many bytes the log has after a position."""
    later = sum(size for number, size in sizes if number > position.segment)
    return later + sum(max(size - position.offset, 0) for number, size in sizes if number == position.segment)
