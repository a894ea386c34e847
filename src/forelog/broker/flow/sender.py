"""Messages as packets to one client, or to one member of a group.

Rows of a batch become packets in one call of the kernel, which clients that get the same share. Whatever isn't
plain goes one by one, a limited number at a time, so that nobody waits long for it.

A message that can't be made into a packet for a client, whatever the reason, is dropped for that client alone: it
is logged and counted, and the client gets all others.
"""

from __future__ import annotations

import logging
import time
from array import array
from itertools import islice
from typing import TYPE_CHECKING

from forelog import kernel
from forelog.broker.flow.batches import RETAIN, SLOW, Batch, Stored
from forelog.broker.flow.clock import MessageClock
from forelog.broker.flow.outgoing import packet_of
from forelog.broker.mqtt import PACKET_ID_MAX, ReasonCode
from forelog.broker.sessions.groups import Group, Readers
from forelog.broker.sessions.memory import Memory
from forelog.broker.sessions.session import Cursor, Sent, Session, Verdict, judge
from forelog.errors import ForelogError
from forelog.log.position import Position
from forelog.serving.notices import text

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["Parts", "Sender"]

logger = logging.getLogger("forelog")

SINGLY_MAX = 64
"""Messages that are made one by one for a client, before others have their turn."""
TOGETHER_BYTES_MAX = 4 << 20
"""Of subscription identifiers in packets that are made together: each message has those of all that match."""
OUT_BYTES_MAX = 8 << 20
"""Of packets that wait for a flush: with more of them there is one at once."""
RIGHTS_MAX = 20_000
"""Times that a member's rights to a topic may be looked at in one step."""
_DROPS_LOGGED_SECONDS = 10.0

Parts = list[tuple["array[int]", Verdict]]
"""Rows of a batch, and what becomes of them."""


class Sender:
    """Sends rows of batches. Nothing leaves before `flush`."""

    def __init__(self, memory: Memory, clock: MessageClock, moved: dict[Group, None]) -> None:
        self._memory = memory
        self._clock = clock
        self._moved = moved
        self._out: list[tuple[Connection, bytes]] = []
        self._out_bytes = 0
        self._shared: dict[tuple[int, int, bytes], tuple[array[int], bytes]] = {}
        """Packets that several get, by which rows they are; the rows are kept so that their id stays theirs."""
        self.delivered = 0
        self.dropped = 0
        """Messages that couldn't be sent to somebody."""
        self._drop_logged = -_DROPS_LOGGED_SECONDS
        self._drops_unlogged = 0

    def begin(self) -> None:
        """Another batch comes: what was shared of the last one isn't shared any more."""
        self._shared.clear()

    def flush(self) -> None:
        """Send what was prepared, after what has to be remembered of it is."""
        self._out_bytes = 0
        try:
            self._memory.flush()
        except (OSError, ForelogError) as error:
            logger.error("broker: what is sent couldn't be noted, its subscribers are disconnected: %s", error)
            out, self._out = self._out, []
            for connection, _ in out:
                connection.refuse(ReasonCode.QUOTA_EXCEEDED, f"the log can't be written: {error}")
            return
        out, self._out = self._out, []
        for connection, data in out:
            try:
                connection.send(data)
            except Exception:
                logger.exception("broker: %s is disconnected: its socket has failed", connection.peer)
                connection.abort()

    def _put_out(self, connection: Connection, data: bytes) -> None:
        """Packets that are to be sent. What all get of a batch isn't kept until the last one has it."""
        self._out.append((connection, data))
        self._out_bytes += len(data)
        if self._out_bytes > OUT_BYTES_MAX:
            self._shared.clear()
            self.flush()

    def drop(self, who: str, what: str, error: Exception) -> None:
        """A message can't be sent to somebody: it is left out, and that is logged, now and then."""
        self.dropped += 1
        now = time.monotonic()
        if now - self._drop_logged < _DROPS_LOGGED_SECONDS:
            self._drops_unlogged += 1
            return
        logger.error(
            "broker: a message can't be sent and is dropped: client=%s message=%.200s (and %d more before it)",
            text(who), what, self._drops_unlogged, exc_info=error,
        )  # fmt: skip
        self._drop_logged, self._drops_unlogged = now, 0

    # -- who can take something

    def can_take(self, session: Session) -> bool:
        """Whether a client takes messages of any QoS now."""
        connection = session.connection
        return connection is not None and connection.ready and not session.resending and session.room() > 0

    def has_taker(self, cursor: Cursor) -> bool:
        """Whether there is a client that takes what is read at a cursor now."""
        if isinstance(cursor, Group):
            if cursor.waits_for is not None:
                return self._has_reader(cursor, cursor.waits_for)
            while cursor.ready:
                member = next(iter(cursor.ready))
                if self.can_take(member):
                    return True
                cursor.has_no_room(member)
            return False
        return cursor.session is not None and self.can_take(cursor.session)

    def _has_reader(self, group: Group, readers: frozenset[Session]) -> bool:
        """Whether one of the members that may read a group's next message can take it now."""
        for member in readers:
            if member in group.ready:
                if self.can_take(member):
                    return True
                group.has_no_room(member)
        return False

    # -- one cursor

    def give(self, cursor: Cursor, batch: Batch, parts: Parts) -> bool:
        """Rows of a batch to whoever reads at a cursor; False if it fell behind on the way."""
        if len(parts) > 1:
            return self._give_mixed(cursor, batch, parts)
        rows, verdict = parts[0]
        taken = self.give_rows(cursor, batch, rows, verdict)
        if taken < len(rows):
            cursor.fall_behind(batch.position(rows[taken]))
            return False
        return True

    def _give_mixed(self, cursor: Cursor, batch: Batch, parts: Parts) -> bool:
        """Where topics have different verdicts: still in the order of the log, run by run, some runs at a time."""
        ordered = sorted((row, verdict) for rows, verdict in parts for row in rows)
        at = 0
        for _ in range(SINGLY_MAX):
            if at == len(ordered):
                return True
            verdict, end = ordered[at][1], at + 1
            while end < len(ordered) and ordered[end][1] == verdict:
                end += 1
            cursor.next = batch.position(ordered[at][0])  # if this fails, all before it were given
            if not self.give(cursor, batch, [(array("q", [row for row, _ in ordered[at:end]]), verdict)]):
                return False
            at = end
        if at < len(ordered):
            cursor.fall_behind(batch.position(ordered[at][0]))
        return at == len(ordered)

    def give_rows(self, cursor: Cursor, batch: Batch, rows: array[int], verdict: Verdict) -> int:
        """How many of the rows were taken."""
        if isinstance(cursor, Group):
            return self._share(cursor, batch, rows)
        session = cursor.session
        assert session is not None
        return self._send(session, cursor, batch, rows, verdict)

    def _share(self, group: Group, batch: Batch, rows: array[int]) -> int:
        """Each row to one member: as many to each as it has room for, in turns."""
        taken = 0
        self._moved[group], group.waits_for = None, None
        if not group.reads_all():
            rows = rows[: max(RIGHTS_MAX // (1 + len(group.holders)), 1)]
            codes, topics = batch.topics
            wanted = {topics[codes[row]] for row in rows}
            if not all(group.readers(topic).all for topic in wanted):
                return self._share_by_rights(group, batch, rows)
        while taken < len(rows) and (member := group.next_member()) is not None:
            if not self.can_take(member):
                group.has_no_room(member)
                continue
            share = -(-(len(rows) - taken) // len(group.ready))
            verdict = judge([group.members[member]])
            assert verdict is not None
            member.shares[group] = None
            got = self._send(member, group, batch, rows[taken : taken + share], verdict)
            taken += got
            if got < share and self.can_take(member):
                break  # it has had as much as anybody gets at a time
        return taken

    def _share_by_rights(self, group: Group, batch: Batch, rows: array[int]) -> int:
        """Where not every member may read every topic: each row by itself, some at a time.

        What only a member may read whose client isn't here waits for it. What no member may read is passed over.
        """
        codes, topics = batch.topics
        most = max(min(SINGLY_MAX, RIGHTS_MAX // (1 + len(group.ready))), 1)
        for taken, row in enumerate(islice(rows, most)):
            readers = group.readers(topics[codes[row]])
            if not readers.all and not readers.some:
                if readers.away:
                    group.waits_for = readers.some
                    return taken
            elif not self._share_one(group, batch, row, readers):
                group.waits_for = None if readers.all else readers.some
                return taken
        return min(len(rows), most)

    def _share_one(self, group: Group, batch: Batch, row: int, readers: Readers) -> bool:
        """A row to a member that may read it; False if none has room."""
        for _ in range(len(group.ready)):
            member = group.next_member()
            if member is None or not (readers.all or member in readers.some):
                continue
            if not self.can_take(member):
                group.has_no_room(member)
                continue
            verdict = judge([group.members[member]])
            assert verdict is not None
            member.shares[group] = None
            if self._send(member, group, batch, array("q", [row]), verdict):
                return True
        return False

    def _send(self, session: Session, cursor: Cursor, batch: Batch, rows: array[int], verdict: Verdict) -> int:
        connection = session.connection
        if connection is None or not connection.ready or session.resending:
            return 0
        if verdict.no_local and batch.sender == session.client_id:
            return len(rows)
        if (
            connection.particular
            or verdict.no_local
            or cursor.done
            or (cursor.replays and connection.version == 5)
        ):
            return self._send_singly(session, connection, cursor, batch, rows, verdict)
        slow = SLOW | RETAIN if verdict.retain_as_published else SLOW
        if batch.flags_all & slow:
            return self._send_runs(session, connection, cursor, batch, rows, verdict, slow)
        return self._send_plain(session, connection, cursor, batch, rows, verdict)

    def _send_plain(
        self,
        session: Session,
        connection: Connection,
        cursor: Cursor,
        batch: Batch,
        rows: array[int],
        verdict: Verdict,
    ) -> int:
        """All at once. If there is one among them that can't be sent, one by one, to find out which."""
        qos = min(verdict.qos, batch.flags_all & 3)
        if len(verdict.properties) * len(rows) > TOGETHER_BYTES_MAX:
            rows = rows[: max(TOGETHER_BYTES_MAX // len(verdict.properties), 1)]
        try:
            if qos == 0:
                key = (connection.version, id(rows), verdict.properties)
                shared = self._shared.get(key)
                if shared is None:
                    data, _ = self._packets(connection.version, batch, rows, 0, 1, verdict.properties)
                    shared = self._shared[key] = rows, data
                data = shared[1]
            else:
                rows = rows[: session.room()]
                if not rows:
                    return 0
                first = session.next_id()
                data, used = self._packets(connection.version, batch, rows, verdict.qos, first, verdict.properties)
                session.take_ids(used)
                self._note_sent(session, cursor, batch, rows, verdict.qos, first)
        except ValueError:
            return self._send_singly(session, connection, cursor, batch, rows, verdict)
        self._put_out(connection, data)
        self.delivered += len(rows)
        return len(rows)

    def _send_runs(
        self,
        session: Session,
        connection: Connection,
        cursor: Cursor,
        batch: Batch,
        rows: array[int],
        verdict: Verdict,
        slow: int,
    ) -> int:
        """Where some of the messages aren't plain: those one by one, what lies between them all at once."""
        taken, flags = 0, batch.flags
        for _ in range(SINGLY_MAX):
            if taken == len(rows):
                break
            is_slow, end = bool(flags[rows[taken]] & slow), taken + 1
            while end < len(rows) and bool(flags[rows[end]] & slow) == is_slow:
                end += 1
            cursor.next = batch.position(rows[taken])  # if this fails, all before it were sent
            run = rows if end - taken == len(rows) else rows[taken:end]
            send = self._send_singly if is_slow else self._send_plain
            got = send(session, connection, cursor, batch, run, verdict)
            taken += got
            if got < len(run):
                break
        return taken

    def _packets(
        self, version: int, batch: Batch, rows: array[int], qos: int, first: int, properties: bytes
    ) -> tuple[bytes, int]:
        found: tuple[bytes, int] = kernel.mqtt_deliver(
            version,
            batch.data,
            rows,
            batch.topic_starts,
            batch.topic_ends,
            batch.payload_starts,
            batch.payload_ends,
            batch.flags,
            qos,
            first,
            properties,
        )
        return found

    def _note_sent(
        self, session: Session, cursor: Cursor, batch: Batch, rows: array[int], qos_max: int, first: int
    ) -> None:
        """What is under way now. Of QoS 2, that is to be known after a crash too."""
        packet_id, flags, in_flight = first, batch.flags, session.in_flight
        segment, base, starts = batch.segment, batch.base, batch.starts
        twice: list[tuple[int, int, int, str]] = []
        for row in rows:
            qos = min(flags[row] & 3, qos_max)
            if qos:
                position = Position(segment, base + starts[row])
                in_flight[packet_id] = Sent(position, qos, cursor)
                if qos == 2:
                    twice.append((packet_id, *position, cursor.key))
                packet_id = packet_id % PACKET_ID_MAX + 1
        if isinstance(cursor, Group):
            while first != packet_id:
                cursor.sent(session, first, in_flight[first].position)
                first = first % PACKET_ID_MAX + 1
        if twice and session.durable:
            self._memory.note("out", session.client_id, twice)

    # -- what isn't plain

    def _send_singly(
        self,
        session: Session,
        connection: Connection,
        cursor: Cursor,
        batch: Batch,
        rows: array[int],
        v: Verdict,
    ) -> int:
        """One message at a time, for clients and messages that want something special; some, and no more now."""
        taken = 0
        for row in islice(rows, SINGLY_MAX):
            if not connection.ready:
                break
            qos = min(batch.flags[row] & 3, v.qos)
            position = batch.position(row)
            if qos and not session.room():
                break
            taken += 1
            try:
                message = batch.message(row)
                if (v.no_local and message.properties.get("from") == session.client_id) or (
                    qos == 2 and position in cursor.done
                ):
                    continue
                self._send_one(session, connection, cursor, message, position, qos, v, stored=False)
            except Exception as error:
                self.drop(session.client_id, str(position), error)
        return taken

    def _send_one(
        self,
        session: Session,
        connection: Connection,
        cursor: Cursor | None,
        message: Stored,
        position: Position,
        qos: int,
        verdict: Verdict,
        *,
        stored: bool,
        retain: bool = False,
    ) -> None:
        packet_id = session.next_id() if qos else 0
        retain = retain or (verdict.retain_as_published and bool(message.properties.get("retain")))
        logged = cursor is not None and cursor.replays
        data = packet_of(
            connection, message, qos, packet_id, self._clock,
            retain=retain, identifiers=verdict.properties, logged=logged,
        )  # fmt: skip
        if data is None:  # expired, or larger than the client takes: it counts as sent
            return
        if qos:
            session.take_ids(1)
            session.in_flight[packet_id] = Sent(position, qos, cursor, message if stored else None)
            if isinstance(cursor, Group):
                cursor.sent(session, packet_id, position)
            if qos == 2 and session.durable and cursor is not None and not stored:
                self._memory.note("out", session.client_id, [(packet_id, *position, cursor.key)])
        self._put_out(connection, data)
        self.delivered += 1

    def send_retained(self, session: Session, message: Stored, verdict: Verdict) -> None:
        """A message that was kept for whoever subscribes, to a client that can take one."""
        connection = session.connection
        if connection is None or not session.rights.may_read(message.topic):
            return
        qos, place = min(message.qos, verdict.qos), Position(0, 0)
        try:
            self._send_one(session, connection, None, message, place, qos, verdict, stored=True, retain=True)
        except Exception as error:
            self.drop(session.client_id, message.topic, error)
        self.flush()  # or a socket that takes no more would be noticed too late
