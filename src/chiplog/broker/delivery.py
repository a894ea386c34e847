"""From the log to who subscribed.

A cursor that is live gets what was just written, straight from memory. One whose client doesn't keep up, because
its socket takes no more or too much of it is unacknowledged, falls behind at the first message that it didn't get,
and nobody waits for it: later it reads on from there, until it has everything and is live again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from chiplog import kernel
from chiplog.broker.batches import RETAIN, SLOW, Batch, Stored
from chiplog.broker.history import History
from chiplog.broker.memory import Memory
from chiplog.broker.mqtt import PACKET_ID_MAX, ReasonCode
from chiplog.broker.outgoing import packet_of
from chiplog.broker.routes import Group, Routes
from chiplog.broker.sessions import Cursor, Sent, Session, Verdict, judge
from chiplog.errors import ChiplogError
from chiplog.log.position import Position

if TYPE_CHECKING:
    from chiplog.broker.connection import Connection

__all__ = ["Delivery"]

logger = logging.getLogger("chiplog")

STEPS_PER_TURN = 16
"""Batches that one cursor may catch up by, before others have their turn."""


class Delivery:
    """Sends messages on."""

    def __init__(
        self, routes: Routes, history: History, memory: Memory, executor: Executor, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.routes = routes
        self.history = history
        self.memory = memory
        self._executor = executor
        self._loop = loop
        self._out: list[tuple[Connection, bytes]] = []
        self._shared: dict[tuple[int, int, bytes], tuple[array[int], bytes]] = {}
        """Packets that several get, by which rows they are; the rows are kept so that their id stays theirs."""
        self.delivered = 0

    # -- what was just written

    def dispatch(self, batch: Batch) -> None:
        """To everyone who is live. Nothing is sent before `flush`."""
        self.history.add(batch)
        codes, topics = batch.topics
        self._shared.clear()
        if len(topics) == 1:
            route = self.routes.of(topics[0])
            if route:
                rows = array("q", range(len(batch)))
                for cursor, verdict in route:
                    if cursor.live:
                        self._give(cursor, batch, [(rows, verdict)])
            return
        parts: dict[Cursor, list[tuple[array[int], Verdict]]] = {}
        wanted = bytearray(len(topics))
        for code, topic in enumerate(topics):
            route = self.routes.of(topic)
            if route:
                wanted[code] = 1
                rows = kernel.active.rows_where(codes, bytes(wanted))
                wanted[code] = 0
                for cursor, verdict in route:
                    if cursor.live:
                        parts.setdefault(cursor, []).append((rows, verdict))
        for cursor, those in parts.items():
            self._give(cursor, batch, those)

    def flush(self) -> None:
        """Send what was prepared, after what has to be remembered of it is."""
        try:
            self.memory.flush()
        except (OSError, ChiplogError) as error:
            logger.error("broker: what is sent couldn't be noted, its subscribers are disconnected: %s", error)
            out, self._out = self._out, []
            for connection, _ in out:
                connection.refuse(ReasonCode.QUOTA_EXCEEDED, f"the log can't be written: {error}")
            return
        out, self._out = self._out, []
        for connection, data in out:
            connection.send(data)

    # -- one cursor

    def _give(self, cursor: Cursor, batch: Batch, parts: list[tuple[array[int], Verdict]]) -> bool:
        """Rows of a batch to whoever reads at a cursor; False if it fell behind on the way."""
        if len(parts) > 1:
            verdicts = {verdict for _, verdict in parts}
            if len(verdicts) == 1:
                parts = [(array("q", sorted(row for rows, _ in parts for row in rows)), parts[0][1])]
            else:
                return self._give_mixed(cursor, batch, parts)
        rows, verdict = parts[0]
        taken = self._give_rows(cursor, batch, rows, verdict)
        if taken < len(rows):
            cursor.fall_behind(batch.position(rows[taken]))
            return False
        return True

    def _give_mixed(self, cursor: Cursor, batch: Batch, parts: list[tuple[array[int], Verdict]]) -> bool:
        """Where topics have different verdicts: in the order of the log all the same, run by run."""
        ordered = sorted((row, verdict) for rows, verdict in parts for row in rows)
        at = 0
        while at < len(ordered):
            verdict, end = ordered[at][1], at + 1
            while end < len(ordered) and ordered[end][1] == verdict:
                end += 1
            if not self._give(cursor, batch, [(array("q", [row for row, _ in ordered[at:end]]), verdict)]):
                return False
            at = end
        return True

    def _give_rows(self, cursor: Cursor, batch: Batch, rows: array[int], verdict: Verdict) -> int:
        """How many of the rows were taken."""
        if isinstance(cursor, Group):
            return self._share(cursor, batch, rows)
        session = cursor.session
        assert session is not None
        return self._send(session, cursor, batch, rows, verdict)

    def _share(self, group: Group, batch: Batch, rows: array[int]) -> int:
        """Each row to one member: as many to each as it has room for, in turns."""
        members = [member for member in group.in_turn() if self._can_take(member)]
        group.waits_for = None
        if not all(member.rights.reads_all for member in group.members):
            codes, topics = batch.topics
            wanted = {topics[codes[row]] for row in rows}
            if not all(group.readers(topic, self.memory.sessions).all for topic in wanted):
                return self._share_by_rights(group, batch, rows, members)
        taken = 0
        while members and taken < len(rows):
            share = -(-(len(rows) - taken) // len(members))
            member = members.pop(0)
            sub = group.members[member]
            verdict = judge([sub])
            assert verdict is not None
            taken += self._send(member, group, batch, rows[taken : taken + share], verdict)
        return taken

    def _share_by_rights(self, group: Group, batch: Batch, rows: array[int], members: list[Session]) -> int:
        """Where not every member may read every topic: each row by itself.

        What only a member may read whose client isn't here waits for it. What no member may read is passed over.
        """
        codes, topics = batch.topics
        for taken, row in enumerate(rows):
            readers = group.readers(topics[codes[row]], self.memory.sessions)
            if not readers.all and not readers.some:
                if readers.away:
                    group.waits_for = readers.some
                    return taken
                continue
            for member in members:
                if readers.all or member in readers.some:
                    verdict = judge([group.members[member]])
                    assert verdict is not None
                    if self._send(member, group, batch, array("q", [row]), verdict):
                        members.append(members.pop(members.index(member)))
                        break
            else:
                group.waits_for = None if readers.all else readers.some
                return taken
        return len(rows)

    def _can_take(self, session: Session) -> bool:
        connection = session.connection
        return connection is not None and connection.ready and not session.resending and session.room() > 0

    def _send(self, session: Session, cursor: Cursor, batch: Batch, rows: array[int], verdict: Verdict) -> int:
        connection = session.connection
        if connection is None or not connection.ready or session.resending:
            return 0
        if verdict.no_local and batch.sender == session.client_id:
            return len(rows)
        slow = SLOW | RETAIN if verdict.retain_as_published else SLOW
        if connection.particular or verdict.no_local or batch.flags_all & slow or cursor.done:
            return self._send_singly(session, connection, cursor, batch, rows, verdict)
        qos = min(verdict.qos, batch.flags_all & 3)
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
        self._out.append((connection, data))
        self.delivered += len(rows)
        return len(rows)

    def _packets(
        self, version: int, batch: Batch, rows: array[int], qos: int, first: int, properties: bytes
    ) -> tuple[bytes, int]:
        found: tuple[bytes, int] = kernel.active.mqtt_deliver(
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
        if twice and session.durable:
            self.memory.note("out", session.client_id, twice)

    # -- what isn't plain

    def _send_singly(
        self,
        session: Session,
        connection: Connection,
        cursor: Cursor,
        batch: Batch,
        rows: Iterable[int],
        v: Verdict,
    ) -> int:
        """One message at a time, for clients and messages that want something special."""
        now_ns = time.time_ns()
        taken = 0
        for row in rows:
            if not connection.ready:
                break
            qos = min(batch.flags[row] & 3, v.qos)
            position = batch.position(row)
            if qos and not session.room():
                break
            taken += 1
            message = batch.message(row)
            if (v.no_local and message.properties.get("from") == session.client_id) or (
                qos == 2 and position in cursor.done
            ):
                continue
            self._send_one(session, connection, cursor, message, position, qos, v, now_ns, stored=False)
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
        now_ns: int,
        *,
        stored: bool,
        retain: bool = False,
    ) -> None:
        packet_id = session.next_id() if qos else 0
        retain = retain or (verdict.retain_as_published and bool(message.properties.get("retain")))
        data = packet_of(
            connection, message, qos, packet_id, now_ns, retain=retain, identifiers=verdict.properties
        )
        if data is None:  # expired, or larger than the client takes: it counts as sent
            return
        if qos:
            session.take_ids(1)
            session.in_flight[packet_id] = Sent(position, qos, cursor, message if stored else None)
            if qos == 2 and session.durable and cursor is not None and not stored:
                self.memory.note("out", session.client_id, [(packet_id, *position, cursor.key)])
        self._out.append((connection, data))
        self.delivered += 1

    def send_retained(self, session: Session, message: Stored, verdict: Verdict) -> bool:
        """A message that was kept for who subscribes; False if there is no room for it now."""
        connection = session.connection
        if not session.rights.may_read(message.topic):
            return True
        qos = min(message.qos, verdict.qos)
        if connection is None or not connection.ready or (qos and not session.room()):
            return False
        place = Position(0, 0)
        self._send_one(
            session, connection, None, message, place, qos, verdict, time.time_ns(), stored=True, retain=True
        )
        self.flush()  # or a socket that takes no more would be noticed too late
        return True

    # -- catching up

    def pump(self, cursor: Cursor) -> None:
        """Have a cursor that is behind read on, as far as it can now."""
        for _ in range(STEPS_PER_TURN):
            if cursor.live or cursor.reading or not self._has_taker(cursor):
                return
            if isinstance(cursor, Group) and cursor.returned:
                self._fetch_returned(cursor)
                return
            if cursor.next >= self.history.end:
                cursor.live = True
                return
            batch = self.history.recent(cursor.next)
            if batch is None:
                cursor.reading = True
                self._loop.create_task(self._read(cursor))
                return
            self._catch_up(cursor, batch)
            self.flush()
        self._loop.call_soon(self.pump, cursor)

    def _has_taker(self, cursor: Cursor) -> bool:
        if isinstance(cursor, Group):
            takers = cursor.members if cursor.waits_for is None else cursor.waits_for
            return any(self._can_take(member) for member in takers)
        return cursor.session is not None and self._can_take(cursor.session)

    def _catch_up(self, cursor: Cursor, batch: Batch) -> None:
        """A batch that a cursor's position is in or before: what it wants of it, as far as there is room."""
        first = batch.row_of(cursor.next)
        codes, topics = batch.topics
        place = batch.position(first)
        verdicts = [cursor.verdict(topic, place) for topic in topics]
        after, last = Position(batch.segment, batch.end), len(batch)
        changes = cursor.next_change(place)
        if changes is not None and changes < after:  # another subscription begins within the batch
            after, last = changes, batch.row_of(changes)
        if not any(verdicts):
            cursor.next = after
            return
        parts = []
        for verdict in {verdict for verdict in verdicts if verdict is not None}:
            wanted = bytes(1 if one == verdict else 0 for one in verdicts)
            rows = kernel.active.rows_where(codes, wanted, first)
            if last < len(batch):
                rows = rows[: bisect_left(rows, last)]
            if rows:
                parts.append((rows, verdict))
        self._shared.clear()
        if not parts or self._give(cursor, batch, parts):
            cursor.next = after
        cursor.live = False

    async def _read(self, cursor: Cursor) -> None:
        try:
            while not cursor.live and self._has_taker(cursor):
                position = cursor.next
                batch, after = await self._loop.run_in_executor(
                    self._executor, self.history.read, cursor, position
                )
                if cursor.next != position or cursor.live:
                    continue  # it was moved meanwhile
                if batch is None:
                    cursor.next = max(after, position)
                    break
                self._catch_up(cursor, batch)
                self.flush()
                if cursor.next == position:
                    break  # there is no room
        except Exception as error:
            logger.exception("a subscriber's messages can't be read from the log: %s", error)
            session = cursor.session
            if session is not None and session.connection is not None:
                session.connection.fail(error)
            return
        finally:
            cursor.reading = False
        self.pump(cursor)

    def _fetch_returned(self, group: Group) -> None:
        group.reading = True
        self._loop.create_task(self._read_returned(group))

    async def _read_returned(self, group: Group) -> None:
        try:
            batch: Batch | None = None
            while group.returned and self._has_taker(group):
                position = group.returned[0]
                batch, row = await self._find(batch, position)
                if batch is not None:
                    rows = array("q", [row])
                    if not self._give_rows(group, batch, rows, Verdict(2, b"", False, False)):
                        break
                    self.flush()
                group.returned.remove(position)
        finally:
            group.reading = False
        if not group.returned:
            self.pump(group)

    async def _find(self, batch: Batch | None, position: Position) -> tuple[Batch | None, int]:
        """The message at a position: in a batch that is at hand, in memory, or in the log. None if it is gone."""
        for found in (batch, self.history.recent(position)):
            if found is None or (row := found.row_of(position)) == len(found):
                continue
            if found.position(row) == position:
                return found, row
        found = await self._loop.run_in_executor(self._executor, self.history.read_from, position)
        return (found, 0) if found is not None and found.position(0) == position else (None, 0)

    # -- again, after a client was away

    async def resend(self, session: Session, connection: Connection) -> None:
        """What was under way when the connection broke, under the same ids.

        Whoever calls this has set `resending`: nothing may be sent before it begins.
        """
        try:
            for packet_id in session.released:
                connection.send(b"\x62\x02" + packet_id.to_bytes(2, "big"))
            batch: Batch | None = None
            again: set[int] = set()
            for packet_id, sent in list(session.in_flight.items()):
                while len(again) >= session.in_flight_max:  # it may take fewer at once than it did
                    await session.wait()
                    if session.connection is not connection:
                        return
                    again = {one for one in again if one in session.in_flight or one in session.released}
                message = sent.message
                if message is None:
                    batch, row = await self._find(batch, sent.position)
                    message = None if batch is None else batch.message(row)
                if session.connection is not connection:
                    return
                if session.in_flight.get(packet_id) is not sent:
                    continue  # it has arrived meanwhile
                data = None
                if message is not None and session.rights.may_read(message.topic):
                    data = packet_of(connection, message, sent.qos, packet_id, time.time_ns(), dup=True)
                if data is None:
                    del session.in_flight[packet_id]  # expired, taken by retention, or not for it any more
                else:
                    connection.send(data)
                    again.add(packet_id)
        finally:
            if session.connection is connection:
                session.resending = False
