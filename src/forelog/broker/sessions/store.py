"""What the broker keeps besides messages: sessions, their positions, groups and retained messages.

It is a state log. Every change is written as an event before it takes effect, and the next start replays the
events. Messages appear in it only as positions. Retained messages are the exception: they may outlive the files of
the log.

The log of messages says of each message whether it is retained and, at QoS 2, under which packet id it was
published. The store notes now and then how far it has taken this in. A start reads the messages after that again,
so a message that is in the log never loses its consequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from forelog.broker.limits import Limits
from forelog.broker.log.batch import RETAIN, MessageBatch, StoredMessage
from forelog.broker.log.clock import SteadyClock
from forelog.broker.sessions.events import (
    ENTRY_BYTES,
    EVENT_BYTES,
    apply_change,
    event_bytes,
    in_parts,
    latest,
    restored,
    retained_event,
    snapshot,
    sub_entry,
    subject,
)
from forelog.broker.sessions.retained import RetainedMessages
from forelog.broker.sessions.session import Cursor, Session, Sub
from forelog.errors import AppenderFailed, BadEvent, ForelogError, RecordTooLarge
from forelog.files import Files
from forelog.log.appender import Sync
from forelog.log.position import Position
from forelog.state.enumeration import Enumeration
from forelog.state.log import StateLog

logger = logging.getLogger("forelog")

HEAL_SECONDS, HEAL_SECONDS_MAX = 0.5, 30.0
"""The first pause between attempts to write a broken log, and the longest; each is twice the one before."""
_BATCH_BYTES = 4 << 20
"""Bytes of events that are written together, about: far below the limit of a log."""
_LOOKED_AT = 500
"""Retained messages that one call of `forget_expired` checks."""
_SUBS_MAX = 1000
"""Subscriptions in one event."""


class SessionStore:
    """Sessions, groups and retained messages, and the log that keeps them."""

    def __init__(
        self,
        path: str,
        limits: Limits,
        *,
        written: Callable[[], int] | None = None,
        delivered: Callable[[], Position] = lambda: Position(0, 0),
        run: Callable[[Callable[[], None]], None] = lambda work: work(),
        files: Files | None = None,
        mode: int | None = None,
        sync: Sync = "os",
        sync_interval_ms: int = 1000,
        timeout: float | None = 0,
        clock: SteadyClock | None = None,
    ) -> None:
        """A store at a path; `open` restores what is there.

        `written` returns the time of the last message that is in the log. `delivered` returns the position up to
        which live cursors have been given everything. `run` runs a function where nothing else changes sessions:
        on the event loop.
        """
        self.sessions: dict[str, Session] = {}
        self.groups: dict[str, Position] = {}
        """The positions of groups."""
        self.retained = RetainedMessages(limits.retained_max, limits.retained_bytes_max)
        self._looked_at: str | None = None
        self.known_ns = 0
        """The time of the last message whose consequences the log has."""
        self.taking: dict[Session, None] = {}
        """Sessions that published messages of QoS 2 that aren't noted yet."""
        self.is_ill = False
        """Whether the log is broken: nothing can be written before `heal`."""
        self._written = written
        self._delivered = delivered
        self._run = run
        self._has_learned = False
        self._starts_over = self._reopens = False
        self._limits = limits
        self.clock = SteadyClock() if clock is None else clock
        self._events: list[Any] = []
        self._pending_bytes = 0
        self._noted: set[str] = set()
        """Sessions that the log has, so that only their changes are noted."""
        self._new: set[str] = set()
        """Sessions among them whose snapshots aren't written yet."""
        self._let_go: dict[tuple[str, int], int] = {}
        self._healing = threading.Lock()
        self._make_log = functools.partial(
            StateLog,
            path,
            replay=self.replay,
            enumerate=self._enumerate,
            files=files,
            mode=mode,
            sync=sync,
            sync_interval_ms=sync_interval_ms,
            timeout=timeout,
        )
        self._log = self._make_log()

    def open(self) -> None:
        """Open the log and restore everything."""
        self._log.open()
        for session in self.sessions.values():  # a message that is resent isn't sent as a new one as well
            for sent in session.in_flight.values():
                if sent.cursor is not None:
                    sent.cursor.done.add(sent.position)
            session.done_count = sum(len(cursor.done) for cursor in session.cursors.values())
            session.unordered = bool(session.in_flight)

    def close(self) -> None:
        """Write what is left, sync and close the log."""
        try:
            if self.is_ill:
                self.heal()
            self.flush()
        finally:
            self._log.close()

    def health(self) -> Any:
        """The health of the log."""
        return self._log.health()

    def written(self) -> int:
        """The time of the last message that is in the log and whose consequences are here."""
        return self._written() if self._written is not None and self._has_learned else self.known_ns

    # -- noting changes; `flush` writes them

    def note(self, *event: Any) -> None:
        """Note a change."""
        if event[0] == "end":
            self._noted.discard(event[1])
            if event[1] in self._new:  # the log never had it, so it needs no end either
                self._new.discard(event[1])
                own = ("session", event[1])
                self._events = [one for one in self._events if one[0] == "end" or subject(one) != own]
                return
        # A group's position goes before subscriptions, so that consecutive subscriptions stay one event.
        is_between = event[0] == "group" and self._events and self._events[-1][0] == "subs"
        self._events.insert(len(self._events) - bool(is_between), list(event))
        self._pending_bytes += EVENT_BYTES + sum(len(part) for part in event if isinstance(part, str | bytes))

    def flush(self) -> None:
        """Write what was noted, as durably as the sync policy says."""
        if self._events:
            if self.is_ill:
                self._bound_pending()
                raise OSError(errno.EAGAIN, "the log of sessions failed, and is being written anew")
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
        """Write some events; returns the index of the rest. An event that can never be written is left out."""
        end, size = at, 0
        while end < len(events) and size < _BATCH_BYTES:
            size += event_bytes(events[end])
            end += 1
        try:
            self._log.update_many(events[at:end])
        except (RecordTooLarge, BadEvent) as error:
            if end - at > 1:
                for one in range(at, end):
                    self._write(events[: one + 1], one)
            else:
                logger.error("broker: a change of %.100r can never be written: %s", events[at][1:2], error)
        return end

    def _not_written(self, events: list[Any], error: BaseException) -> None:
        """Keep events that couldn't be written; of several positions of a cursor only the last one."""
        self._events = latest(events + self._events)
        self._pending_bytes = sum(map(event_bytes, self._events))
        if isinstance(error, AppenderFailed):
            self.is_ill = True
        self._bound_pending()

    def _bound_pending(self) -> None:
        if self._pending_bytes > self._limits.pending_bytes_max:
            # `heal` will write everything that exists, which is in memory anyway. Only the ends of things that the
            # log has must be kept.
            ends = [event for event in self._events if event[0] in ("end", "unretain", "ungroup")]
            self._events = [event for event in ends if not self._exists(*subject(event))]
            self._pending_bytes = 0
            self.is_ill = self._starts_over = True

    def _exists(self, kind: str, key: str) -> bool:
        if kind == "session":
            return (session := self.sessions.get(key)) is not None and session.durable
        return key in (self.retained if kind == "retain" else self.groups)

    def try_flush(self) -> None:
        """`flush` where a failure has no client to report to: it is logged, and the next flush tries again."""
        try:
            self.flush()
        except (OSError, ForelogError) as error:
            logger.error(
                "broker: changes of sessions can't be written, and are kept for the next attempt: %s", error
            )

    def heal(self) -> None:
        """Open the log again after a final failure, or write everything anew. Blocks: not for the event loop."""
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
        self.is_ill = self._starts_over  # set again if too much has changed meanwhile

    async def tend(self) -> None:
        """Heal the log whenever it is broken, until cancelled."""
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
                logger.error("broker: the log of sessions still can't be written: %s", error)
            else:
                logger.warning("broker: the log of sessions can be written again")

    def note_known(self) -> None:
        """Note up to which message a start needn't read the log of messages."""
        known_ns, written_ns = self.known_ns, self.written()
        if written_ns > known_ns:
            taking, self.taking = self.taking, {}
            for session in taking:
                new = [[one, time_ns] for one, time_ns in session.received.items() if time_ns > known_ns]
                written = [pair for pair in new if pair[1] <= written_ns]
                if len(written) < len(new):  # the others may still fail to be written
                    self.taking[session] = None
                known = self.sessions.get(session.client_id) is session and session.client_id in self._noted
                if written and known:
                    self.note("took", session.client_id, written)
            self.known_ns = written_ns
            self.note("known", written_ns)

    def note_session(self, session: Session) -> None:
        """Note what has changed of a session, or its end if it doesn't outlive its connection."""
        client_id = session.client_id
        if not session.durable:
            self.note("end", client_id)
        elif client_id not in self._noted:
            self._new.add(client_id)
            self.note("session", self._snapshot(session))
            self._note_snapshot(session)
        else:
            ended_ns = self.clock.wall_ns(session.ended_ns)
            self.note("is", client_id, session.owner, session.expiry_seconds, ended_ns, session.last_id)
            self.note_places(session)

    def _snapshot(self, session: Session) -> dict[str, Any]:
        return snapshot(session, self._delivered(), self.written(), self.clock.wall_ns(session.ended_ns))

    def _note_snapshot(self, session: Session) -> None:
        """Remember that the log has a session as it is now."""
        self._noted.add(session.client_id)
        for cursor, at in session.places(self._delivered()):
            cursor.noted = at

    def note_places(self, session: Session) -> None:
        """Note the positions of a session that have changed."""
        for cursor, at in session.places(self._delivered()):
            if at != cursor.noted:
                self.note_at(session, cursor, at)

    def note_at(self, session: Session, cursor: Cursor, position: Position) -> None:
        """Note the position of a cursor."""
        self.note("at", session.client_id, cursor.key, *position)
        cursor.noted = position
        cursor.forget_before(position)

    def note_sub(self, session: Session, name: str, sub: Sub, *, shared: bool = False) -> None:
        """Note a subscription. Consecutive subscriptions become one event."""
        if session.client_id not in self._noted:
            return
        begins = ["subs", session.client_id, shared, list(sub.since)]
        last = self._events[-1] if self._events else []
        if last[:4] == begins and len(last[4]) < _SUBS_MAX:
            last[4].append(sub_entry(name, sub))
        else:
            self.note(*begins, [sub_entry(name, sub)])
        self._pending_bytes += len(name) + ENTRY_BYTES

    def note_replay(self, session: Session, cursor: Cursor) -> None:
        """Note a subscription to the past."""
        if session.client_id in self._noted:
            begins = ["replays", session.client_id, list(cursor.next)]
            last = self._events[-1] if self._events else []
            for sub in cursor.subs.values():
                entry = sub_entry(cursor.key, sub)
                if last[:3] == begins and len(last[3]) < _SUBS_MAX:
                    last[3].append(entry)
                else:
                    self.note(*begins, [entry])
                self._pending_bytes += len(cursor.key) + ENTRY_BYTES
            cursor.noted = cursor.next

    def note_unsub(self, session: Session, name: str) -> None:
        """Note the end of a subscription."""
        if session.client_id not in self._noted:
            return
        last = self._events[-1] if self._events else []
        if last[:2] == ["unsub", session.client_id] and len(last[2]) < _SUBS_MAX:
            last[2].append(name)
        else:
            self.note("unsub", session.client_id, [name])
        self._pending_bytes += len(name) + ENTRY_BYTES

    def note_retained(self, topic: str, message: StoredMessage | None) -> None:
        """Note the retained message of a topic, or that it has none."""
        if message is None:
            self.note("unretain", topic)
        else:
            self.note(*retained_event(topic, message))

    def learn(self, batch: MessageBatch) -> None:
        """Take in the consequences of messages that the log of messages had at the start."""
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
        """Note that all messages were learned."""
        self._let_go.clear()
        self._has_learned = True

    def retain(self, message: StoredMessage) -> StoredMessage | None:
        """Retain a message, or remove the one of its topic if it is empty; returns what is retained.

        Whether there is room was checked before the message was written as one to retain.
        """
        self.retained.release(message.topic)
        if not message.payload:
            self.retained.remove(message.topic)
            return None
        self.retained.add(message)
        return message

    def forget_expired(self, seconds_left: Callable[[StoredMessage], int | None]) -> None:
        """Remove retained messages that have expired. Each call checks the next few."""
        some = self.retained.after(self._looked_at, _LOOKED_AT)
        self._looked_at = some[-1].topic if some else None
        for message in some:
            if seconds_left(message) == 0:
                self.retained.remove(message.topic)
                self.note_retained(message.topic, None)

    # -- the state log's side

    def _enumerate(self, log: Enumeration) -> None:
        """Write a snapshot of everything, in small parts, so that the event loop isn't blocked."""

        def write(kind: str, key: Any) -> None:
            if kind == "session" and (session := self.sessions.get(key)) is not None and session.durable:
                log.update(["session", self._snapshot(session)])
                self._note_snapshot(session)
                self._new.discard(key)
            elif kind == "retain" and (message := self.retained.get(key)) is not None:
                log.update([*retained_event(key, message)])
            elif kind == "group" and (position := self.groups.get(key)) is not None:
                log.update(["group", key, *position])

        def write_all(some: list[tuple[str, Any]]) -> None:
            if not self.is_ill:
                self.flush()  # earlier changes come first
            else:  # the snapshot includes them
                now = {one for one in some if self._exists(*one)}
                self._events = [event for event in self._events if subject(event) not in now]
            for kind, key in some:
                write(kind, key)

        keys: list[tuple[str, Any]] = []

        def list_all() -> None:
            keys.extend(("session", key) for key in self.sessions)
            keys.extend(("retain", key) for key in self.retained)
            keys.extend(("group", key) for key in self.groups)
            known.append(self.written())

        def end() -> None:
            """Write how far messages are known: last, when everything else is written."""
            if not self.is_ill:
                self.flush()
                known.append(self.known_ns)
            log.update(["known", max(known)])

        known: list[int] = []
        self._run(list_all)
        for some in in_parts(keys, self._weight):
            self._run(functools.partial(write_all, some))
        self._run(end)

    def _weight(self, kind: str, key: str) -> int:
        """Estimated bytes of a thing in a snapshot."""
        if kind == "session":
            return 0 if (session := self.sessions.get(key)) is None else session.held_bytes
        message = self.retained.get(key) if kind == "retain" else None
        return 0 if message is None else len(message.payload)

    def replay(self, event: list[Any]) -> None:
        """Apply an event of the log."""
        kind, *rest = event
        if kind == "let go":  # also if the session's snapshot comes later
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
            topic, time_ns, payload, *properties = rest
            self.retained.add(StoredMessage(time_ns, topic, payload, dict(*properties, retain=True)))
        elif kind == "unretain":
            self.retained.remove(rest[0])
        elif kind == "group":
            self.groups[rest[0]] = Position(*rest[1:])
        elif kind == "ungroup":
            self.groups.pop(rest[0], None)
        elif kind == "known":
            self.known_ns = rest[0]
        elif (found := self.sessions.get(rest[0])) is not None:
            apply_change(found, kind, rest[1:])
            if kind == "subs":
                self._begin_groups(found, (entry[0] for entry in rest[3]))

    def _begin_groups(self, session: Session, names: Iterable[str]) -> None:
        """A group starts where its first member subscribed, unless its position is known."""
        for name in names:
            if name in session.groups:
                self.groups.setdefault(name, session.groups[name].since)
