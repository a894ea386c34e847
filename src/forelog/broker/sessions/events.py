"""A session as events of a log: a snapshot when it is created and when the log rotates, and changes in between.

    session  the whole session
    is       owner, expiry, when its client disconnected, the last packet id
    subs     subscriptions that start at one position, all plain or all shared
    replays  subscriptions to the past that start at one position; in older logs replay, with one of them
    unsub    filters that it unsubscribed from
    at       the position of a cursor
    out      messages of QoS 2 in flight; rec: received; comp: their packet ids are free
    took     messages of QoS 2 that its client published; let go: a packet id that its client released

The size of an event depends on the change, not on the session. An event holds the new value, so replaying events
twice, in order, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from forelog.broker.log.batch import StoredMessage
from forelog.broker.mqtt.topics import parse_filter
from forelog.broker.sessions.session import Cursor, Sent, Session, Sub
from forelog.log.position import Position

_NO_LOCAL, _RETAIN_AS_PUBLISHED = 4, 8
EVENT_BYTES, ENTRY_BYTES = 64, 8
"""Estimated bytes of an event, and of each name in it, besides its texts."""
_STEP_MAX, _STEP_BYTES_MAX = 100, 1 << 20
"""Things that a snapshot writes in one step, and their bytes."""
_OTHERS = {"retain": "retain", "unretain": "retain", "group": "group", "ungroup": "group", "known": "known"}
"""The subjects of events that aren't about a session."""


def snapshot(session: Session, end: Position, written_ns: int, ended_ns: int | None) -> dict[str, Any]:
    """A whole session that ended then, without messages published after `written_ns`, which may still fail."""
    return {
        "id": session.client_id,
        "user": session.owner,
        "expiry": session.expiry_seconds,
        "ended": ended_ns,
        "cursors": [
            [
                cursor.key,
                list(session.at(cursor, end)),
                [[name, [*sub[:4], list(sub.since)]] for name, sub in cursor.subs.items()],
                [list(one) for one in cursor.done],
            ]
            for cursor in session.cursors.values()
        ],
        "groups": [[name, [*sub[:4], list(sub.since)]] for name, sub in session.groups.items()],
        "out": [
            [packet_id, *sent.position, None if sent.cursor is None else sent.cursor.key]
            for packet_id, sent in session.in_flight.items()
            if sent.qos == 2 and sent.kept is None
        ],
        "released": list(session.released),
        "last_id": session.last_id,
        "received": [[one, time_ns] for one, time_ns in session.received.items() if time_ns <= written_ns],
    }


def restored(event: dict[str, Any], in_flight_max: int) -> Session:
    """The session of a snapshot."""
    session = Session(event["id"], Position(0, 0), in_flight_max)
    session.owner = event.get("user")
    session.expiry_seconds, session.ended_ns = event["expiry"], event["ended"]
    for key, position, subs, done in event["cursors"]:
        cursor = session.cursors.setdefault(key, Cursor(key, session, Position(*position)))
        cursor.next = cursor.noted = Position(*position)
        cursor.done = {Position(*one) for one in done}
        session.done_count += len(cursor.done)
        for name, sub in subs:
            cursor.add(name, _sub(sub))
    session.groups = {name: _sub(sub) for name, sub in event["groups"]}
    for packet_id, segment, offset, key in event["out"]:
        session.in_flight[packet_id] = Sent(Position(segment, offset), 2, session.cursors.get(key))
    session.released = dict.fromkeys(event["released"])
    session.last_id = event["last_id"]
    session.received = dict(event["received"])
    return session


def retained_event(topic: str, message: StoredMessage) -> tuple[Any, ...]:
    """The event of a retained message, without what only the log of messages needs: its sender, its packet id."""
    kept = {name: value for name, value in message.properties.items() if name not in ("retain", "from", "id")}
    return "retain", topic, message.time_ns, message.payload, *([kept] if kept else [])


def sub_entry(name: str, sub: Sub) -> list[Any]:
    """A subscription in an event that has its start."""
    flags = sub.qos | (_NO_LOCAL if sub.no_local else 0)
    return [name, flags | (_RETAIN_AS_PUBLISHED if sub.retain_as_published else 0), sub.identifier]


def apply_change(session: Session, kind: str, rest: list[Any]) -> None:
    """Apply an event other than a snapshot."""
    if kind == "at":
        key, *position = rest
        cursor = session.cursors.get(key)
        if cursor is not None:
            cursor.next = cursor.noted = Position(*position)
            cursor.forget_before(cursor.next)
    elif kind == "is":
        session.owner, session.expiry_seconds, session.ended_ns, session.last_id = rest[:4]
    elif kind == "subs":
        _subscribe(session, *rest[:3])
    elif kind == "replay":
        key, entry, start = rest[:3]
        cursor = session.cursors[key] = Cursor(key, session, Position(*start))
        cursor.noted = cursor.next
        cursor.add(entry[0], _sub_of(entry, Position(0, 0)))
    elif kind == "unsub":
        for name in rest[0]:
            if session.groups.pop(name, None) is None and (not name or session.cursors.pop(name, None) is None):
                session.main.remove(name)
    elif kind == "took":
        session.received.update(rest[0])
    elif kind == "let go":
        session.received.pop(rest[0], None)
    else:
        _change_more(session, kind, rest)


def _change_more(session: Session, kind: str, rest: list[Any]) -> None:
    """Apply a change of replays, or of messages of QoS 2 in flight."""
    if kind == "replays":
        start, entries = rest[:2]
        for entry in entries:
            cursor = session.cursors[entry[0]] = Cursor(entry[0], session, Position(*start))
            cursor.noted = cursor.next
            cursor.add(parse_filter(entry[0]).filter, _sub_of(entry, Position(0, 0)))
    else:
        _change_sent(session, kind, rest[0])


def _change_sent(session: Session, kind: str, some: list[Any]) -> None:
    """Apply a change of messages of QoS 2 in flight."""
    if kind == "out":
        for packet_id, segment, offset, key in some:
            session.in_flight[packet_id] = Sent(Position(segment, offset), 2, session.cursors.get(key))
            session.last_id = packet_id
    elif kind == "rec":
        for packet_id in some:
            session.receive(packet_id)
    elif kind == "comp":
        for packet_id in some:
            session.complete(packet_id)


def _subscribe(session: Session, shared: bool, since: list[int], entries: list[list[Any]]) -> None:
    place = Position(*since)
    for entry in entries:
        if shared:
            session.groups[entry[0]] = _sub_of(entry, place)
        else:
            session.main.add(entry[0], _sub_of(entry, place))


def _sub_of(entry: list[Any], since: Position) -> Sub:
    _, flags, identifier = entry
    return Sub(flags & 3, bool(flags & _NO_LOCAL), bool(flags & _RETAIN_AS_PUBLISHED), identifier, since)


def _sub(event: list[Any]) -> Sub:
    qos, no_local, retain_as_published, identifier, since = event
    return Sub(qos, no_local, retain_as_published, identifier, Position(*since))


def subject(event: list[Any]) -> tuple[str, str]:
    """What an event is about."""
    if event[0] == "session":
        return "session", event[1]["id"]
    return _OTHERS.get(event[0], "session"), str(event[1])


def latest(events: list[Any]) -> list[Any]:
    """Events without the positions that later events replace."""
    kept, seen = [], set()
    for event in reversed(events):
        key = tuple(event[:3]) if event[0] == "at" else tuple(event[:2]) if event[0] == "group" else None
        if key is None or key not in seen:
            kept.append(event)
            seen.add(key)
    return kept[::-1]


def event_bytes(event: list[Any]) -> int:
    """Estimated bytes of an event in the log."""
    size = EVENT_BYTES
    for part in event:
        if isinstance(part, str | bytes):
            size += len(part)
        elif isinstance(part, list):
            names = (one[0] if isinstance(one, list) and one else one for one in part)
            size += sum(ENTRY_BYTES + len(name) for name in names if isinstance(name, str))
    return size


def in_parts(keys: list[tuple[str, Any]], weight: Callable[[str, Any], int]) -> Iterator[list[tuple[str, Any]]]:
    """The keys of a snapshot, in parts that one step writes."""
    some: list[tuple[str, Any]] = []
    size = 0
    for one in keys:
        some.append(one)
        size += weight(*one)
        if len(some) == _STEP_MAX or size > _STEP_BYTES_MAX:
            yield some
            some, size = [], 0
    yield some
