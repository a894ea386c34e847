"""Delivers older messages to cursors that are behind, until they are live again.

The cursors of a client take turns, a part of a batch each, in slices that leave time for all other clients. What
isn't in memory any more is read from disk on another thread, for one cursor of a client at a time, and for a
limited number of clients. The groups that have the same first member take turns as if they were one client.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Hashable, Iterator
from concurrent.futures import Executor
from heapq import heappop, heappush

from forelog import kernel
from forelog.broker.flow.reads import Reads
from forelog.broker.flow.sender import Sender
from forelog.broker.flow.slices import Slices
from forelog.broker.flow.translation import packet_of
from forelog.broker.log.batch import MessageBatch, StoredMessage
from forelog.broker.log.clock import MessageClock
from forelog.broker.log.history import History
from forelog.broker.sessions.group import Group
from forelog.broker.sessions.session import Cursor, Link, Sent, Session, Verdict
from forelog.log.position import Position
from forelog.serving.notices import text

logger = logging.getLogger("forelog")

ROWS_MAX = 4096
EFFORT_MAX = 20_000
"""Lookups that one step may cost, if every message has a topic of its own."""
SINGLES_PER_TURN = 32
"""Messages that are looked up one by one before other clients have their turn."""


class CatchUp:
    """Reads for cursors that are behind."""

    def __init__(
        self,
        sender: Sender,
        history: History,
        clock: MessageClock,
        slices: Slices,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sender = sender
        self._history = history
        self._clock = clock
        self._slices = slices
        self._executor = executor
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads = Reads()

    def pump(self, owner: Session | Group) -> None:
        """Read for the cursors of a client, or for a group, as far as there is room."""
        if not owner.pumping:
            owner.pumping = True
            self._slices.start(_turn_of(owner), self._pumping(owner))

    def resume(self, cursor: Cursor) -> None:
        """Read for the owner of a cursor, soon."""
        owner = cursor if isinstance(cursor, Group) else cursor.session
        if owner is not None and not owner.pumping:
            owner.pumping = True
            self._slices.add(_turn_of(owner), self._pumping(owner))

    def stop(self) -> None:
        """Read nothing more from disk: the broker stops."""
        self._reads.stop()
        for task in list(self._tasks):
            task.cancel()

    def _pumping(
        self,
        owner: Session | Group,
        cursor: Cursor | None = None,
        batch: MessageBatch | None = None,
        reader: Hashable = None,
    ) -> Iterator[None]:
        """Send a part of a batch in each step. A batch that `reader` has read from disk comes first."""
        turn = _turn_of(owner)
        read: Callable[[Hashable], Coroutine[None, None, None]] | None = None
        try:
            while cursor is not None or (cursor := self._next(owner)) is not None:
                if not self._sender.has_taker(cursor):
                    return
                if isinstance(cursor, Group) and cursor.returned:
                    read = functools.partial(self._read_returned, cursor)
                    return
                if cursor.next >= self._history.end:
                    cursor.go_live(self._history.end)
                else:
                    if batch is None:
                        batch = self._history.recent(cursor.next)
                    if batch is None:
                        read = functools.partial(self._read, owner, cursor)
                        return
                    if not self._read_on(cursor, batch):
                        return
                    yield
                    if batch.covers(cursor.next) and not cursor.live:
                        continue  # use up what was read for it before another cursor's turn
                cursor = batch = None
        finally:
            batch = None
            if reader is not None:
                self._reads.end(reader)
            if read is None:
                owner.pumping = False
            else:
                self._reads.begin(turn, lambda: self._later(read(turn)))

    def _next(self, owner: Session | Group) -> Cursor | None:
        """The cursor whose turn it is."""
        if isinstance(owner, Group):
            return None if owner.live else owner
        if not owner.behind:
            return None
        cursor = next(iter(owner.behind))
        owner.behind.move_to_end(cursor)
        return cursor

    def _read_on(self, cursor: Cursor, batch: MessageBatch) -> bool:
        """Send a part of a batch; False if there is no room. If that raises, one message is dropped."""
        before = cursor.next
        rows_max = max(min(ROWS_MAX, EFFORT_MAX // cursor.effort()), 1)
        try:
            self._catch_up(cursor, batch, rows_max)
        except Exception as error:
            try:
                self._catch_up(cursor, batch, 1)
            except Exception:
                row = batch.row_of(cursor.next)
                self._sender.drop(cursor.key or _client_id(cursor), str(batch.position(row)), error)
                cursor.next = batch.position(row + 1)
        self._sender.flush()
        return cursor.next != before

    def _catch_up(self, cursor: Cursor, batch: MessageBatch, rows_max: int) -> None:
        """Send what a cursor wants of some rows, from its position on, as far as there is room."""
        first = batch.row_of(cursor.next)
        codes, topics = batch.topics
        place = batch.position(first)
        last = batch.part(first, rows_max)
        changes = cursor.next_change(place)
        if changes is not None and changes < batch.position(last):  # another subscription starts there
            last = batch.row_of(changes)
        is_whole = last - first == len(batch)
        some = range(len(topics)) if is_whole else sorted(set(codes[first:last]))
        wanted: dict[Verdict, bytearray] = {}
        for code in cursor.candidates(topics, some):
            verdict = cursor.verdict(topics[code], place)
            if verdict is not None:
                if verdict not in wanted:
                    wanted[verdict] = bytearray(len(topics))
                wanted[verdict][code] = 1
        parts = []
        for verdict, flags in wanted.items():
            rows = kernel.rows_where(codes, bytes(flags), first)
            if last < len(batch):
                rows = rows[: bisect_left(rows, last)]
            if rows:
                parts.append((rows, verdict))
        self._sender.begin()
        if not parts or self._sender.give(cursor, batch, parts):
            cursor.next = batch.position(last)
        cursor.live = False

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, owner: Session | Group, cursor: Cursor, reader: Hashable) -> None:
        """Read the next messages of a cursor from disk, then go on."""
        batch: MessageBatch | None = None
        try:
            position = cursor.next
            batch, after = await self._loop.run_in_executor(
                self._executor, self._history.read, cursor.wants, position
            )
            if cursor.next != position or cursor.live:
                batch = None  # the cursor was moved meanwhile
            elif batch is None:
                cursor.next = max(after, position)
        except Exception as error:
            self._reads.end(reader)
            owner.pumping = False
            logger.exception("broker: the messages of a subscriber can't be read from the log: %s", error)
            session = cursor.session
            if session is not None and session.connection is not None:
                session.connection.fail(error)
            return
        work = self._pumping(owner, cursor if batch is not None else None, batch, reader)
        self._slices.start(_turn_of(owner), work)

    # -- messages that members left unacknowledged

    async def _read_returned(self, group: Group, reader: Hashable) -> None:
        """Send messages that members left unacknowledged to other members."""
        count = 0
        try:
            batch: MessageBatch | None = None
            while group.returned and self._sender.has_taker(group):
                position = group.fetching = heappop(group.returned)
                taken = 1
                try:
                    batch, row = await self._find(batch, position)
                    if batch is not None:
                        rows = array("q", [row])
                        taken = self._sender.give_rows(group, batch, rows, Verdict(2, b"", False, False))
                        self._sender.flush()
                finally:
                    group.fetching = None
                    if not taken:
                        heappush(group.returned, position)
                count += 1
                if count % SINGLES_PER_TURN == 0:
                    await asyncio.sleep(0)
        except Exception:
            logger.exception(
                "broker: messages that members of %s left unacknowledged can't be read", text(group.key)
            )
        finally:
            self._reads.end(reader)
            group.pumping = False
        if not group.live and self._sender.has_taker(group):
            self.pump(group)

    async def _find(self, batch: MessageBatch | None, position: Position) -> tuple[MessageBatch | None, int]:
        """The batch and row of a position: from the given batch, memory or disk. None if the message is gone."""
        for found in (batch, self._history.recent(position)):
            if found is None or (row := found.row_of(position)) == len(found):
                continue
            if found.position(row) == position:
                return found, row
        found = await self._loop.run_in_executor(self._executor, self._history.read_from, position)
        return (found, 0) if found is not None and found.position(0) == position else (None, 0)

    # -- messages in flight when a client reconnects

    async def resend(self, session: Session, connection: Link) -> None:
        """Send messages in flight again, with their packet ids.

        The caller has set `session.resending`, so that nothing else is sent before.
        """
        try:
            for packet_id in session.released:
                connection.send(b"\x62\x02" + packet_id.to_bytes(2, "big"))
            batch: MessageBatch | None = None
            again: set[int] = set()
            for number, (packet_id, sent) in enumerate(list(session.in_flight.items())):
                if number % SINGLES_PER_TURN == 0:
                    await asyncio.sleep(0)
                while len(again) >= session.in_flight_max or not connection.ready:
                    # The client may take fewer at once than before, and its socket may be full.
                    await session.wait()
                    if session.connection is not connection:
                        return
                    again = {one for one in again if one in session.in_flight or one in session.released}
                batch, message = await self._sent(batch, sent)
                if session.connection is not connection:
                    return
                if session.in_flight.get(packet_id) is not sent:
                    continue  # it was acknowledged meanwhile
                data = None
                if message is not None and session.rights.may_read(message.topic):
                    data = self._again(session, connection, packet_id, message)
                if data is None:  # expired, replaced, removed by retention, or no longer allowed
                    self._sender.give_up(session, connection, packet_id)
                else:
                    connection.send(data)
                if packet_id in session.in_flight or packet_id in session.released:
                    again.add(packet_id)
        finally:
            if session.connection is connection:
                session.resending = False

    async def _sent(
        self, batch: MessageBatch | None, sent: Sent
    ) -> tuple[MessageBatch | None, StoredMessage | None]:
        """A message in flight, and the batch that it was read from; None if the message is gone."""
        if sent.kept is not None:
            return batch, sent.kept.message
        batch, row = await self._find(batch, sent.position)
        return batch, None if batch is None else batch.message(row)

    def _again(self, session: Session, connection: Link, packet_id: int, message: StoredMessage) -> bytes | None:
        sent = session.in_flight[packet_id]
        logged = sent.cursor is not None and sent.cursor.replays
        try:
            return packet_of(connection, message, sent.qos, packet_id, self._clock, dup=True, logged=logged)
        except Exception as error:
            self._sender.drop(session.client_id, message.topic, error)
            return None


def _turn_of(owner: Session | Group) -> Hashable:
    """What takes turns for a client or a group. Groups with the same first member count as one."""
    return ("groups", next(iter(owner.members), None)) if isinstance(owner, Group) else owner


def _client_id(cursor: Cursor) -> str:
    return "" if cursor.session is None else cursor.session.client_id
