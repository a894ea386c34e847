"""What a broker must not forget besides messages: sessions, where they are, and retained messages.

It is a state log: each change is an event before it matters to anyone, and the next start replays them. Messages
aren't in it, only positions of them, except for retained ones, which may outlive the files that they came in.

How far it knows the messages is noted now and then. What came after that is read from the message log at the
start, because it says itself which message was to be retained, and under which id a publisher has sent one of QoS
2: there is no moment in which a message is in the log and its consequences are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from forelog.broker.flow.batches import RETAIN, Batch, Stored
from forelog.broker.limits import Limits
from forelog.broker.sessions.events import change, restored, sub_entry, told
from forelog.broker.sessions.retained import RetainedMessages
from forelog.broker.sessions.session import Cursor, Session, Sub
from forelog.errors import AppenderFailed, BadEvent, ForelogError, RecordTooLarge
from forelog.files import Files
from forelog.log.position import Position
from forelog.state.enumeration import Enumeration
from forelog.state.log import StateLog

__all__ = ["Memory"]

logger = logging.getLogger("forelog")

HEAL_SECONDS, HEAL_SECONDS_MAX = 0.5, 30.0
"""Between two attempts to write a log that couldn't be written; longer each time, up to the second."""
_BATCH_BYTES = 4 << 20
"""Events that are written together, about: far below what a log takes at once."""
_OTHERS = {"retain": "retain", "unretain": "retain", "group": "group", "ungroup": "group", "known": "known"}
"""What an event is of, if it isn't of a session."""
_LOOKED_AT = 500
"""Retained messages that are looked at together."""
_EVENT_BYTES = 64
_ENTRY_BYTES = 8
_TOLD_MAX, _TOLD_BYTES_MAX = 100, 1 << 20
"""Sessions and retained messages that are told of together when everything is written anew, and their bytes."""
_SUBS_MAX = 1000
"""Subscriptions in one event."""


class Memory:
    """Sessions, groups and retained messages, and the log that keeps them."""

    def __init__(self, path: str, limits: Limits, *, files: Files | None = None, **options: Any) -> None:
        self.sessions: dict[str, Session] = {}
        self.groups: dict[str, Position] = {}
        """Where shared subscriptions have got to."""
        self.retained = RetainedMessages(limits.retained_max, limits.retained_bytes_max)
        self._looked_at: str | None = None
        self.known_ns = 0
        """The time of the last message whose consequences are known."""
        self.run_slice: Callable[[Callable[[], None]], None] = lambda work: work()
        """Does some work where nothing else changes what is here: on the event loop."""
        self.written: Callable[[], int] = lambda: self.known_ns
        """The time of the last message that is in the log, and whose consequences are here."""
        self.end: Callable[[], Position] = lambda: Position(0, 0)
        """Up to where those who are live have been given everything."""
        self.taking: dict[Session, None] = {}
        """Sessions that have published messages of QoS 2 which aren't noted."""
        self.is_ill = False
        """Whether nothing can be written before `heal`."""
        self._starts_over = self._reopens = False
        self._limits = limits
        self._events: list[Any] = []
        self._pending_bytes = 0
        self._noted: set[str] = set()
        """Sessions that the log has: only what changes of them is to be noted."""
        self._new: set[str] = set()
        """Those of them that aren't written yet."""
        self._let_go: dict[tuple[str, int], int] = {}
        self._healing = threading.Lock()
        self._make_log = functools.partial(
            StateLog, path, replay=self.replay, enumerate=self._enumerate, files=files, **options
        )
        self._log = self._make_log()

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
        try:
            if self.is_ill:
                self.heal()
            self.flush()
        finally:
            self._log.close()

    def health(self) -> Any:
        """The log's."""
        return self._log.health()

    # -- noting; nothing counts until it is flushed

    def note(self, *event: Any) -> None:
        """A change."""
        if event[0] == "end":
            self._noted.discard(event[1])
            if event[1] in self._new:  # the log has never heard of it, or of its end
                self._new.discard(event[1])
                own = ("session", event[1])
                self._events = [one for one in self._events if one[0] == "end" or _subject(one) != own]
                return
        # Where a group is goes before subscriptions, so that those that follow each other stay one event.
        is_between = event[0] == "group" and self._events and self._events[-1][0] == "subs"
        self._events.insert(len(self._events) - bool(is_between), list(event))
        self._pending_bytes += _EVENT_BYTES + sum(len(part) for part in event if isinstance(part, str | bytes))

    def flush(self) -> None:
        """Write what was noted, as durably as the policy says."""
        if self._events:
            if self.is_ill:
                self._bound_pending()
                raise OSError(errno.EAGAIN, "the log of sessions couldn't be written, and is being written anew")
            events, self._events, self._pending_bytes = self._events, [], 0
            at = 0
            try:
                while at < len(events):
                    at = self._write(events, at)
                self._new.clear()
            except BaseException as error:
                self._not_written(events[at:], error)
                raise

    def _write(self, events: list[Any], at: int) -> int:
        """Some events, together; where the rest begins. One that can never be written doesn't keep the others."""
        end, size = at, 0
        while end < len(events) and size < _BATCH_BYTES:
            size += _bytes_of(events[end])
            end += 1
        try:
            self._log.update_many(events[at:end])
        except (RecordTooLarge, BadEvent) as error:
            if end - at > 1:
                for one in range(at, end):
                    self._write(events[: one + 1], one)
            else:
                logger.error("broker: a change of %.100r can't be written, ever: %s", events[at][1:2], error)
        return end

    def _not_written(self, events: list[Any], error: BaseException) -> None:
        """Nothing of it may be forgotten; of positions the last one is enough."""
        self._events = _latest(events + self._events)
        self._pending_bytes = sum(map(_bytes_of, self._events))
        if isinstance(error, AppenderFailed):
            self.is_ill = True
        self._bound_pending()

    def _bound_pending(self) -> None:
        if self._pending_bytes > self._limits.pending_bytes_max:
            # All that there is will be written instead, once there is room: that is in memory anyway. What isn't
            # there any more has to be remembered, as far as the log has it.
            ends = [event for event in self._events if event[0] in ("end", "unretain", "ungroup")]
            self._events = [event for event in ends if not self._is_there(*_subject(event))]
            self._pending_bytes = 0
            self.is_ill = self._starts_over = True

    def _is_there(self, kind: str, key: str) -> bool:
        if kind == "session":
            return (session := self.sessions.get(key)) is not None and session.durable
        return key in (self.retained if kind == "retain" else self.groups)

    def try_flush(self) -> None:
        """The same, where nobody could be told that it failed: then it is written with what comes next."""
        try:
            self.flush()
        except (OSError, ForelogError) as error:
            logger.error("broker: what has changed couldn't be written, and is kept for now: %s", error)

    def heal(self) -> None:
        """Open the log again after a failure that was final, or write everything anew. Not on the event loop."""
        with self._healing:
            self._heal()

    def _heal(self) -> None:
        if self._log.failed is not None or self._reopens:
            self._reopens = True
            with contextlib.suppress(OSError, ForelogError):
                self._log.close()
            log = self._make_log()
            log.open(replay=False)
            self._log, self._reopens = log, False
        if self._starts_over:
            self._starts_over = False
            try:
                self._log.rotate()
            except BaseException:
                self._starts_over = True
                raise
        self.is_ill = self._starts_over  # again, if too much has changed meanwhile

    async def tend(self) -> None:
        """Look now and then whether a log that couldn't be written can be again."""
        pause = HEAL_SECONDS
        while True:
            await asyncio.sleep(pause)
            if not self.is_ill:
                pause = HEAL_SECONDS
                continue
            try:
                await asyncio.to_thread(self.heal)
            except (OSError, ForelogError) as error:
                pause = min(2 * pause, HEAL_SECONDS_MAX)
                logger.error("broker: the log of sessions can't be written yet: %s", error)
            else:
                logger.warning("broker: the log of sessions can be written again")

    def note_known(self) -> None:
        """Up to where a start needn't read the messages any more."""
        known_ns, written_ns = self.known_ns, self.written()
        if written_ns > known_ns:
            taking, self.taking = self.taking, {}
            for session in taking:
                new = [[one, time_ns] for one, time_ns in session.received.items() if time_ns > known_ns]
                written = [pair for pair in new if pair[1] <= written_ns]
                if len(written) < len(new):  # those that aren't in the log may still fail
                    self.taking[session] = None
                known = self.sessions.get(session.client_id) is session and session.client_id in self._noted
                if written and known:
                    self.note("took", session.client_id, written)
            self.known_ns = written_ns
            self.note("known", written_ns)

    def note_session(self, session: Session) -> None:
        """A session, as far as it has changed; if it doesn't outlive its connection, that there is none."""
        client_id = session.client_id
        if not session.durable:
            self.note("end", client_id)
        elif client_id not in self._noted:
            self._new.add(client_id)
            self.note("session", told(session, self.end(), self.written()))
            self._has(session)
        else:
            self.note("is", client_id, session.owner, session.expiry_seconds, session.ended_ns, session.last_id)
            self.note_places(session)

    def _has(self, session: Session) -> None:
        """The log has a session as it is now."""
        self._noted.add(session.client_id)
        for cursor, at in session.places(self.end()):
            cursor.noted = at

    def note_places(self, session: Session) -> None:
        """How far a session has got."""
        for cursor, at in session.places(self.end()):
            if at != cursor.noted:
                self.note_at(session, cursor, at)

    def note_at(self, session: Session, cursor: Cursor, position: Position) -> None:
        """How far one of its cursors has got."""
        self.note("at", session.client_id, cursor.key, *position)
        cursor.noted = position
        cursor.forget_before(position)

    def note_sub(self, session: Session, name: str, sub: Sub, *, shared: bool = False) -> None:
        """It has subscribed. Subscriptions that follow each other become one event."""
        if session.client_id not in self._noted:
            return
        begins = ["subs", session.client_id, shared, list(sub.since)]
        last = self._events[-1] if self._events else []
        if last[:4] == begins and len(last[4]) < _SUBS_MAX:
            last[4].append(sub_entry(name, sub))
        else:
            self.note(*begins, [sub_entry(name, sub)])
        self._pending_bytes += len(name) + _ENTRY_BYTES

    def note_replay(self, session: Session, cursor: Cursor) -> None:
        """It has subscribed to the past."""
        if session.client_id in self._noted:
            begins = ["replays", session.client_id, list(cursor.next)]
            last = self._events[-1] if self._events else []
            for sub in cursor.subs.values():
                entry = sub_entry(cursor.key, sub)
                if last[:3] == begins and len(last[3]) < _SUBS_MAX:
                    last[3].append(entry)
                else:
                    self.note(*begins, [entry])
                self._pending_bytes += len(cursor.key) + _ENTRY_BYTES
            cursor.noted = cursor.next

    def note_unsub(self, session: Session, name: str) -> None:
        """It has unsubscribed."""
        if session.client_id not in self._noted:
            return
        last = self._events[-1] if self._events else []
        if last[:2] == ["unsub", session.client_id] and len(last[2]) < _SUBS_MAX:
            last[2].append(name)
        else:
            self.note("unsub", session.client_id, [name])
        self._pending_bytes += len(name) + _ENTRY_BYTES

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
                self.taking[session] = None

    def learned(self) -> None:
        """That was all of them."""
        self._let_go.clear()

    def retain(self, message: Stored) -> Stored | None:
        """Keep a message for its topic, or, if it is empty, none. What is kept now.

        Whether there is room was asked before it was written: the log says of each message whether it is retained.
        """
        self.retained.release(message.topic)
        if not message.payload:
            self.retained.remove(message.topic)
            return None
        self.retained.add(message)
        return message

    def forget_expired(self, seconds_left: Callable[[Stored], int | None]) -> None:
        """Look at some retained messages, and at others the next time: those that have expired make room."""
        some = self.retained.after(self._looked_at, _LOOKED_AT)
        self._looked_at = some[-1].topic if len(some) == _LOOKED_AT else None
        for message in some:
            if seconds_left(message) == 0:
                self.retained.remove(message.topic)
                self.note_retained(message.topic, None)

    # -- the state log's side

    def _enumerate(self, log: Enumeration) -> None:
        """Everything, a little at a time, so that the event loop isn't held up."""

        def tell(kind: str, key: Any) -> None:
            if kind == "session" and (session := self.sessions.get(key)) is not None and session.durable:
                log.update(["session", told(session, self.end(), self.written())])
                self._has(session)
                self._new.discard(key)
            elif kind == "retain" and (message := self.retained.get(key)) is not None:
                log.update(["retain", key, message.time_ns, message.payload, message.properties])
            elif kind == "group" and (position := self.groups.get(key)) is not None:
                log.update(["group", key, *position])

        def tell_all(some: list[tuple[str, Any]]) -> None:
            if not self.is_ill:
                self.flush()  # what was noted before comes before
            else:  # it is part of what is told now
                now = {one for one in some if self._is_there(*one)}
                self._events = [event for event in self._events if _subject(event) not in now]
            for kind, key in some:
                tell(kind, key)

        keys: list[tuple[str, Any]] = []

        def list_all() -> None:
            keys.extend(("session", key) for key in self.sessions)
            keys.extend(("retain", key) for key in self.retained)
            keys.extend(("group", key) for key in self.groups)
            known.append(self.written())

        def end() -> None:
            """Last, so that nobody believes it before everything else is there."""
            if not self.is_ill:
                self.flush()
                known.append(self.known_ns)
            log.update(["known", max(known)])

        known: list[int] = []
        self.run_slice(list_all)
        for some in self._in_parts(keys):
            self.run_slice(functools.partial(tell_all, some))
        self.run_slice(end)

    def _in_parts(self, keys: list[tuple[str, Any]]) -> Iterator[list[tuple[str, Any]]]:
        """As much as is told of in one slice: not many, and not much."""
        some: list[tuple[str, Any]] = []
        size = 0
        for one in keys:
            some.append(one)
            size += self._weight(*one)
            if len(some) == _TOLD_MAX or size > _TOLD_BYTES_MAX:
                yield some
                some, size = [], 0
        yield some

    def _weight(self, kind: str, key: str) -> int:
        """About how many bytes have to be written to tell of something."""
        if kind == "session":
            return 0 if (session := self.sessions.get(key)) is None else session.held_bytes
        message = self.retained.get(key) if kind == "retain" else None
        return 0 if message is None else len(message.payload)

    def replay(self, event: list[Any]) -> None:
        """Take a change in that was noted before."""
        kind, *rest = event
        if kind == "let go":  # also of a session that is told of later
            self._let_go[rest[0], rest[1]] = rest[2]
        if kind == "session":
            session = restored(rest[0], self._limits.in_flight_max)
            self.sessions[session.client_id] = session
            self._noted.add(session.client_id)
            self._begin_groups(session, session.groups)
        elif kind == "end":
            self.sessions.pop(rest[0], None)
            self._noted.discard(rest[0])
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
        elif (found := self.sessions.get(rest[0])) is not None:
            change(found, kind, rest[1:])
            if kind == "subs":
                self._begin_groups(found, (entry[0] for entry in rest[3]))

    def _begin_groups(self, session: Session, names: Iterable[str]) -> None:
        """A group begins where the first of its members has subscribed, unless it is known to be elsewhere."""
        for name in names:
            if name in session.groups:
                self.groups.setdefault(name, session.groups[name].since)


def _subject(event: list[Any]) -> tuple[str, str]:
    """What an event is of."""
    if event[0] == "session":
        return "session", event[1]["id"]
    return _OTHERS.get(event[0], "session"), str(event[1])


def _latest(events: list[Any]) -> list[Any]:
    """Events without positions that a later one replaces."""
    kept, seen = [], set()
    for event in reversed(events):
        key = tuple(event[:3]) if event[0] == "at" else tuple(event[:2]) if event[0] == "group" else None
        if key is None or key not in seen:
            kept.append(event)
            seen.add(key)
    return kept[::-1]


def _bytes_of(event: list[Any]) -> int:
    """About how many bytes an event takes in the log."""
    size = _EVENT_BYTES
    for part in event:
        if isinstance(part, str | bytes):
            size += len(part)
        elif isinstance(part, list):
            names = (one[0] if isinstance(one, list) and one else one for one in part)
            size += sum(_ENTRY_BYTES + len(name) for name in names if isinstance(name, str))
    return size
