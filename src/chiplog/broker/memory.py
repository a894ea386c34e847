"""What a broker must not forget besides messages: sessions, where they are, and retained messages.

It is a state log: each change is an event before it matters to anyone, and the next start replays them. Messages
aren't in it, only positions of them, except for retained ones, which may outlive the files that they came in.

How far it knows the messages is noted now and then. What came after that is read from the message log at the
start, because it says itself which message was to be retained, and under which id a publisher has sent one of QoS
2: there is no moment in which a message is in the log and its consequences are lost.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from chiplog.broker.batches import RETAIN, Batch, Stored
from chiplog.broker.limits import Limits
from chiplog.broker.retained import RetainedMessages
from chiplog.broker.sessions import Cursor, Sent, Session, Sub
from chiplog.errors import ChiplogError
from chiplog.files import Files
from chiplog.log.position import Position
from chiplog.state.log import Enumeration, StateLog

__all__ = ["Memory"]

logger = logging.getLogger("chiplog")

SHARE = "$share/"


class Memory:
    """Sessions, groups and retained messages, and the log that keeps them."""

    def __init__(self, path: str, limits: Limits, *, files: Files | None = None, **options: Any) -> None:
        self.sessions: dict[str, Session] = {}
        self.groups: dict[str, Position] = {}
        """Where shared subscriptions have got to."""
        self.retained = RetainedMessages()
        self.known_ns = 0
        """The time of the last message whose consequences are known."""
        self.run_slice: Callable[[Callable[[], None]], None] = lambda work: work()
        """Does some work where nothing else changes what is here: on the event loop."""
        self.written: Callable[[], int] = lambda: self.known_ns
        """The time of the last message that is in the log, and whose consequences are here."""
        self.end: Callable[[], Position] = lambda: Position(0, 0)
        """Up to where those who are live have been given everything."""
        self._limits = limits
        self._events: list[Any] = []
        self._let_go: dict[tuple[str, int], int] = {}
        self._log = StateLog(path, replay=self.replay, enumerate=self._enumerate, files=files, **options)

    def open(self) -> None:
        """Restore everything."""
        self._log.open()
        for session in self.sessions.values():  # what is sent again under its id isn't sent as a new one, too
            for sent in session.in_flight.values():
                if sent.cursor is not None:
                    sent.cursor.done.add(sent.position)
            session.unordered = bool(session.in_flight)

    def close(self) -> None:
        """Write what is left, sync, let go."""
        self.flush()
        self._log.close()

    def health(self) -> Any:
        """The log's."""
        return self._log.health()

    # -- noting; nothing counts until it is flushed

    def note(self, *event: Any) -> None:
        """A change."""
        self._events.append(list(event))

    def flush(self) -> None:
        """Write what was noted, as durably as the policy says."""
        if self._events:
            events, self._events = self._events, []
            try:
                self._log.update_many(events)
            except BaseException:  # positions are told again anyway, everything else mustn't be forgotten
                self._events = [event for event in events if event[0] not in ("at", "group")] + self._events
                raise

    def try_flush(self) -> None:
        """The same, where nobody could be told that it failed: then it is written with what comes next."""
        try:
            self.flush()
        except (OSError, ChiplogError) as error:
            logger.error("broker: what has changed couldn't be written, and is kept for now: %s", error)

    def note_known(self) -> None:
        """Up to where a start needn't read the messages any more."""
        if (written_ns := self.written()) > self.known_ns:
            for session in self.sessions.values():
                if session.received:
                    self.note_session(session)
            self.known_ns = written_ns
            self.note("known", written_ns)

    def note_session(self, session: Session) -> None:
        """A session, as it is now; if it doesn't outlive its connection, that there is none."""
        if session.durable:
            self.note("session", _told(session, self.end()))
        else:
            self.note("end", session.client_id)

    def note_at(self, session: Session, cursor: Cursor, position: Position) -> None:
        """How far it has got."""
        self.note("at", session.client_id, cursor.key, *position)
        cursor.forget_before(position)

    def note_retained(self, topic: str, message: Stored | None) -> None:
        """The message that who subscribes gets at once."""
        if message is None:
            self.note("unretain", topic)
        else:
            self.note("retain", topic, message.time_ns, message.payload, message.properties)

    def learn(self, batch: Batch) -> None:
        """Take in the consequences of messages that were written before a crash."""
        for row in range(len(batch)):
            if batch.flags[row] & (RETAIN | 3) <= 1:
                continue
            message = batch.message(row)
            if batch.flags[row] & RETAIN:
                self.retain(message)
            client_id, packet_id = message.properties.get("from"), message.properties.get("id")
            session = self.sessions.get(client_id) if isinstance(client_id, str) else None
            if session is None or not isinstance(packet_id, int) or message.qos != 2:
                continue
            if self._let_go.get((session.client_id, packet_id), 0) < message.time_ns:
                session.received[packet_id] = message.time_ns

    def learned(self) -> None:
        """That was all of them."""
        self._let_go.clear()

    def retain(self, message: Stored) -> Stored | None:
        """Keep a message for its topic, or, if it is empty, none. What is kept now."""
        if not message.payload:
            self.retained.remove(message.topic)
            return None
        if len(self.retained) < self._limits.retained_max or message.topic in self.retained:
            self.retained.add(message)
        return message

    # -- the state log's side

    def _enumerate(self, log: Enumeration) -> None:
        """Everything, a little at a time, so that the event loop isn't held up."""

        def tell(kind: str, key: Any) -> None:
            if kind == "session" and (session := self.sessions.get(key)) is not None and session.durable:
                log.update(["session", _told(session, self.end())])
            elif kind == "retain" and (message := self.retained.get(key)) is not None:
                log.update(["retain", key, message.time_ns, message.payload, message.properties])
            elif kind == "group" and (position := self.groups.get(key)) is not None:
                log.update(["group", key, *position])

        def tell_all(some: list[tuple[str, Any]]) -> None:
            for kind, key in some:
                tell(kind, key)

        keys: list[tuple[str, Any]] = []

        def list_all() -> None:
            keys.extend(("session", key) for key in self.sessions)
            keys.extend(("retain", key) for key in self.retained)
            keys.extend(("group", key) for key in self.groups)
            self.known_ns = self.written()
            log.update(["known", self.known_ns])

        self.run_slice(list_all)
        for first in range(0, len(keys), 100):
            self.run_slice(functools.partial(tell_all, keys[first : first + 100]))

    def replay(self, event: list[Any]) -> None:
        """Take a change in that was noted before."""
        kind, *rest = event
        if kind == "let go":  # also of a session that is told of later
            self._let_go[rest[0], rest[1]] = rest[2]
        if kind == "session":
            self._restore(rest[0])
        elif kind == "end":
            self.sessions.pop(rest[0], None)
        elif kind == "retain":
            self.retained.add(Stored(rest[1], rest[0], rest[2], rest[3]))
        elif kind == "unretain":
            self.retained.remove(rest[0])
        elif kind == "group":
            self.groups[rest[0]] = Position(*rest[1:])
        elif kind == "ungroup":
            self.groups.pop(rest[0], None)
        elif kind == "known":
            self.known_ns = rest[0]
        elif (session := self.sessions.get(rest[0])) is not None:
            self._change(session, kind, rest[1:])

    def _change(self, session: Session, kind: str, rest: list[Any]) -> None:
        if kind == "at":
            key, *position = rest
            cursor = session.cursors.get(key)
            if cursor is not None:
                cursor.next = Position(*position)
                cursor.forget_before(cursor.next)
        elif kind == "out":
            for packet_id, segment, offset, key in rest[0]:
                session.in_flight[packet_id] = Sent(Position(segment, offset), 2, session.cursors.get(key))
                session.last_id = packet_id
        elif kind == "rec":
            for packet_id in rest[0]:
                session.receive(packet_id)
        elif kind == "comp":
            for packet_id in rest[0]:
                session.complete(packet_id)
        elif kind == "let go":
            session.received.pop(rest[0], None)

    def _restore(self, told: dict[str, Any]) -> None:
        session = Session(told["id"], Position(0, 0), self._limits.in_flight_max)
        session.owner = told.get("user")
        session.expiry_seconds, session.ended_ns = told["expiry"], told["ended"]
        for key, position, subs, done in told["cursors"]:
            cursor = session.cursors.setdefault(key, Cursor(key, session, Position(*position)))
            cursor.next = Position(*position)
            cursor.done = {Position(*one) for one in done}
            for name, sub in subs:
                cursor.add(name, _sub(sub))
        session.groups = {name: _sub(sub) for name, sub in told["groups"]}
        for packet_id, segment, offset, key in told["out"]:
            session.in_flight[packet_id] = Sent(Position(segment, offset), 2, session.cursors.get(key))
        session.released = dict.fromkeys(told["released"])
        session.last_id = told["last_id"]
        session.received = dict(told["received"])
        self.sessions[session.client_id] = session


def _told(session: Session, end: Position) -> dict[str, Any]:
    """A session, as an event."""
    out = [
        (packet_id, *sent.position, None if sent.cursor is None else sent.cursor.key)
        for packet_id, sent in session.in_flight.items()
        if sent.qos == 2 and sent.message is None
    ]
    return {
        "id": session.client_id,
        "user": session.owner,
        "expiry": session.expiry_seconds,
        "ended": session.ended_ns,
        "cursors": [
            (cursor.key, session.at(cursor, end), list(cursor.subs.items()), list(cursor.done))
            for cursor in session.cursors.values()
        ],
        "groups": list(session.groups.items()),
        "out": out,
        "released": list(session.released),
        "last_id": session.last_id,
        "received": list(session.received.items()),
    }


def _sub(told: list[Any]) -> Sub:
    qos, no_local, retain_as_published, identifier, since = told
    return Sub(qos, no_local, retain_as_published, identifier, Position(*since))
