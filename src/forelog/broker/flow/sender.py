"""Sends messages as packets to one client, or to members of a group.

The kernel turns the rows of a batch into packets in one call. Clients that get the same packets share them.
Messages that aren't plain are encoded one by one, a limited number at a time, so that other clients don't wait
long.

If a message can't be encoded for a client, for whatever reason, it is dropped for that client alone. That is
logged and counted, and the client gets all other messages.
"""

from __future__ import annotations

import logging
import time
from array import array
from itertools import islice

from forelog import kernel
from forelog.broker.flow.translation import packet_of
from forelog.broker.log.batch import RETAIN, SLOW, MessageBatch, StoredMessage
from forelog.broker.log.clock import MessageClock
from forelog.broker.mqtt.ids import PACKET_ID_MAX
from forelog.broker.mqtt.packets import Pubrel
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.sessions.group import Group, Readers
from forelog.broker.sessions.session import Cursor, Link, Sent, Session, Verdict, judge
from forelog.broker.sessions.store import SessionStore
from forelog.errors import ForelogError
from forelog.log.position import Position
from forelog.serving.notices import text

logger = logging.getLogger("forelog")

SINGLY_MAX = 64
"""Messages that are encoded one by one for a client before the next client's turn."""
TOGETHER_BYTES_MAX = 4 << 20
"""Bytes of subscription identifiers in packets that are encoded together: each message has all that match."""
OUT_BYTES_MAX = 8 << 20
"""Bytes of prepared packets; with more of them they are flushed at once."""
RIGHTS_MAX = 20_000
"""Checks of a member's rights to a topic in one step."""
_DROPS_LOGGED_SECONDS = 10.0

Parts = list[tuple["array[int]", Verdict]]
"""Rows of a batch, and how they are delivered."""


class Sender:
    """Sends rows of batches. Nothing leaves before `flush`."""

    def __init__(self, store: SessionStore, clock: MessageClock) -> None:
        self._store = store
        self._clock = clock
        self._out: list[tuple[Link, bytes]] = []
        self._out_bytes = 0
        self.moved_groups: dict[Group, None] = {}
        """Groups whose positions may have changed since they were last noted."""
        self._shared: dict[tuple[int, int, bytes], tuple[array[int], bytes]] = {}
        """Packets that clients share, by the id of their rows; rows are kept so that ids aren't reused."""
        self.sent_bytes = 0
        """Bytes of packets so far."""
        self.delivered = 0
        """Messages that were sent."""
        self.dropped = 0
        """Messages that couldn't be sent to a client."""
        self._drop_logged = -_DROPS_LOGGED_SECONDS
        self._drops_unlogged = 0

    def begin(self) -> None:
        """Begin another batch, which shares no packets with the last one."""
        self._shared.clear()

    def flush(self) -> None:
        """Send the prepared packets, after the store has noted what it must of them."""
        self._out_bytes = 0
        try:
            self._store.flush()
        except (OSError, ForelogError) as error:
            logger.error("broker: messages can't be noted as sent, their subscribers are disconnected: %s", error)
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

    def _prepare(self, connection: Link, data: bytes) -> None:
        """Prepare packets for `flush`. Past a limit, flush at once, and forget shared packets."""
        self._out.append((connection, data))
        self._out_bytes += len(data)
        self.sent_bytes += len(data)
        if self._out_bytes > OUT_BYTES_MAX:
            self._shared.clear()
            self.flush()

    def drop(self, client: str, message: str, error: Exception) -> None:
        """Count a message that can't be sent to a client, and log it, not too often."""
        self.dropped += 1
        now = time.monotonic()
        if now - self._drop_logged < _DROPS_LOGGED_SECONDS:
            self._drops_unlogged += 1
            return
        logger.error(
            "broker: a message can't be sent and is dropped: client=%s message=%.200s (and %d more before it)",
            text(client), message, self._drops_unlogged, exc_info=error,
        )  # fmt: skip
        self._drop_logged, self._drops_unlogged = now, 0

    # -- who has room

    def can_take(self, session: Session) -> bool:
        """Whether a client takes messages of every QoS now."""
        connection = session.connection
        return connection is not None and connection.ready and not session.resending and session.room() > 0

    def has_taker(self, cursor: Cursor) -> bool:
        """Whether a client takes messages of a cursor now."""
        if isinstance(cursor, Group):
            if cursor.waits_for is not None:
                return self._has_reader(cursor, cursor.waits_for)
            while cursor.ready:
                member = next(iter(cursor.ready))
                if self.can_take(member):
                    return True
                cursor.skip(member)
            return False
        return cursor.session is not None and self.can_take(cursor.session)

    def _has_reader(self, group: Group, readers: frozenset[Session]) -> bool:
        """Whether one of some members can take a group's next message now."""
        for member in readers:
            if member in group.ready:
                if self.can_take(member):
                    return True
                group.skip(member)
        return False

    # -- one cursor

    def give(self, cursor: Cursor, batch: MessageBatch, parts: Parts) -> bool:
        """Send rows of a batch to the readers of a cursor. False if it fell behind."""
        if len(parts) > 1:
            return self._give_mixed(cursor, batch, parts)
        rows, verdict = parts[0]
        taken = self.give_rows(cursor, batch, rows, verdict)
        if taken < len(rows):
            cursor.fall_behind(batch.position(rows[taken]))
            return False
        return True

    def _give_mixed(self, cursor: Cursor, batch: MessageBatch, parts: Parts) -> bool:
        """Send rows with different verdicts in the order of the log, run by run, some runs at a time."""
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

    def give_rows(self, cursor: Cursor, batch: MessageBatch, rows: array[int], verdict: Verdict) -> int:
        """Send rows with one verdict; returns how many were taken."""
        if isinstance(cursor, Group):
            return self._share(cursor, batch, rows)
        session = cursor.session
        assert session is not None
        return self._send(session, cursor, batch, rows, verdict)

    def _share(self, group: Group, batch: MessageBatch, rows: array[int]) -> int:
        """Send each row to one member. Each gets an equal share, as far as it has room."""
        taken = 0
        self.moved_groups[group], group.waits_for = None, None
        if not group.reads_all():
            rows = rows[: max(RIGHTS_MAX // (1 + len(group.holders)), 1)]
            codes, topics = batch.topics
            wanted = {topics[codes[row]] for row in rows}
            if not all(group.readers(topic).all for topic in wanted):
                return self._share_by_rights(group, batch, rows)
        while taken < len(rows) and (member := group.next_member()) is not None:
            if not self.can_take(member):
                group.skip(member)
                continue
            share = -(-(len(rows) - taken) // len(group.ready))
            verdict = judge([group.members[member]])
            assert verdict is not None
            member.shares[group] = None
            got = self._send(member, group, batch, rows[taken : taken + share], verdict)
            taken += got
            if got < share and self.can_take(member):
                break  # it got as many messages as one call sends
        return taken

    def _share_by_rights(self, group: Group, batch: MessageBatch, rows: array[int]) -> int:
        """Share rows that not every member may read: one by one, some at a time.

        A message that only absent members may read waits for them. One that no member may read is skipped.
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

    def _share_one(self, group: Group, batch: MessageBatch, row: int, readers: Readers) -> bool:
        """Send a row to a member that may read it; False if none has room."""
        for _ in range(len(group.ready)):
            member = group.next_member()
            if member is None or not (readers.all or member in readers.some):
                continue
            if not self.can_take(member):
                group.skip(member)
                continue
            verdict = judge([group.members[member]])
            assert verdict is not None
            member.shares[group] = None
            if self._send(member, group, batch, array("q", [row]), verdict):
                return True
        return False

    def _send(
        self, session: Session, cursor: Cursor, batch: MessageBatch, rows: array[int], verdict: Verdict
    ) -> int:
        connection = session.connection
        if connection is None or not connection.ready or session.resending:
            return 0
        if verdict.no_local and batch.sender == session.client_id:
            return len(rows)
        if (
            connection.own_packets
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
        connection: Link,
        cursor: Cursor,
        batch: MessageBatch,
        rows: array[int],
        verdict: Verdict,
    ) -> int:
        """Send rows at once; one by one if that fails, to find the one that can't be sent."""
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
                rows = rows[: session.room(len(rows))]
                if not rows:
                    return 0
                first = session.next_id()
                data, used = self._packets(connection.version, batch, rows, verdict.qos, first, verdict.properties)
                session.take_ids(used)
                self._note_sent(session, cursor, batch, rows, verdict.qos, first)
        except ValueError:
            return self._send_singly(session, connection, cursor, batch, rows, verdict)
        self._prepare(connection, data)
        self.delivered += len(rows)
        return len(rows)

    def _send_runs(
        self,
        session: Session,
        connection: Link,
        cursor: Cursor,
        batch: MessageBatch,
        rows: array[int],
        verdict: Verdict,
        slow: int,
    ) -> int:
        """Send rows some of which aren't plain: those one by one, the others in runs."""
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
        self, version: int, batch: MessageBatch, rows: array[int], qos: int, first: int, properties: bytes
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
        self, session: Session, cursor: Cursor, batch: MessageBatch, rows: array[int], qos_max: int, first: int
    ) -> None:
        """Note messages as in flight. Those of QoS 2 are noted in the store too, for after a crash."""
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
            self._store.note("out", session.client_id, twice)

    # -- one by one

    def _send_singly(
        self,
        session: Session,
        connection: Link,
        cursor: Cursor,
        batch: MessageBatch,
        rows: array[int],
        v: Verdict,
    ) -> int:
        """Send messages one by one, for clients and messages that aren't plain; a limited number in one call."""
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
        connection: Link,
        cursor: Cursor | None,
        message: StoredMessage,
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
            session.in_flight[packet_id] = Sent(
                position, qos, cursor, self._store.retained.kept(message) if stored else None
            )
            if isinstance(cursor, Group):
                cursor.sent(session, packet_id, position)
            if qos == 2 and session.durable and cursor is not None and not stored:
                self._store.note("out", session.client_id, [(packet_id, *position, cursor.key)])
        self._prepare(connection, data)
        self.delivered += 1

    def give_up(self, session: Session, connection: Link, packet_id: int) -> None:
        """Free the packet id of a message in flight that can't be sent again.

        A client may have received the message and remember its packet id, at QoS 2 until PUBREL. It would take the
        next message of that id for the same one.
        """
        if session.in_flight[packet_id].qos != 2:
            del session.in_flight[packet_id]
            return
        session.receive(packet_id)
        if session.durable:
            self._store.note("rec", session.client_id, [packet_id])
            self._store.flush()
        connection.send_packet(Pubrel(packet_id))

    def send_retained(self, session: Session, message: StoredMessage, verdict: Verdict) -> None:
        """Send a retained message to a client that can take one."""
        connection = session.connection
        if connection is None or not session.rights.may_read(message.topic):
            return
        qos, place = min(message.qos, verdict.qos), Position(0, 0)
        try:
            self._send_one(session, connection, None, message, place, qos, verdict, stored=True, retain=True)
        except Exception as error:
            self.drop(session.client_id, message.topic, error)
        self.flush()  # at once, to notice when the socket is full
