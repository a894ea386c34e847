"""Delivers new messages to live cursors.

A live cursor is given what was just written, from memory. A client doesn't keep up if its socket is full or too
many of its messages are unacknowledged. Its cursor then falls behind at the first message that it wasn't given,
and no other cursor waits for it. It reads on from there until it is live again (`catchup`).

A batch with many topics or subscribers is delivered in slices, and later batches wait. A client that disconnects
or subscribes meanwhile falls behind at the first message that it wasn't given; `given` returns that position.
After an error the remaining cursors fall behind in the same way, so no message is lost.

What many subscribers get of a large batch isn't sent to all of them before the next batch: some fall behind too.

A publisher waits with its next messages while its last ones are still being delivered. Otherwise the messages of
other publishers would wait behind everything that it sends.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from forelog import kernel
from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.sender import Parts, Sender
from forelog.broker.flow.slices import Slices
from forelog.broker.log.batch import MessageBatch
from forelog.broker.log.history import History
from forelog.broker.sessions.presence import Presence
from forelog.broker.sessions.session import Cursor, Verdict
from forelog.log.position import Position

logger = logging.getLogger("forelog")

ROWS_MAX = 4096
"""Rows of a batch that are delivered together: finding the rows of more topics would take too long."""
CURSORS_PER_STEP = 32
STEP_BYTES = 1 << 20
"""Bytes that are sent in a step, unless a single subscriber gets more."""
TOGETHER_BYTES_MAX = 16 << 20
"""Bytes of a part of a batch that are sent to subscribers before anything else is delivered.

A subscriber that hasn't received its share by then reads it from the log, when its turn comes.
"""
LATER_PER_STEP = 512
SMALL_CURSORS_MAX = 128
SMALL_BYTES_MAX = 4 << 20
"""Subscribers that receive a batch without a pause, and the bytes that all of them receive."""
_WAITING_BYTES_MAX = 16 << 20


class Delivery:
    """Gives batches to cursors."""

    def __init__(
        self,
        routes: Routes,
        history: History,
        sender: Sender,
        catchup: CatchUp,
        slices: Slices,
        presence: Presence,
    ) -> None:
        self._routes = routes
        self._history = history
        self._sender = sender
        self._catchup = catchup
        self._slices = slices
        self._presence = presence
        self._waiting: deque[MessageBatch] = deque()
        """Batches that aren't delivered yet; the first is being delivered."""
        self._waiting_bytes = 0
        self._dispatched = 0
        """The number of batches so far."""
        self._publishers: list[Callable[[], None]] = []
        """Resume the publishers that wait until their messages are delivered."""
        self._first = self._last = Position(0, 0)
        """The part of the first batch that is being delivered."""
        self._order: Sequence[tuple[Cursor, object]] | None = None
        """The cursors that get something of that part; None until they are known."""
        self._at = 0
        """How many of them have been given it."""

    def dispatch(self, batch: MessageBatch) -> None:
        """Give a batch that was just written to all live cursors."""
        self._history.add(batch)
        self._dispatched += 1
        if not self._waiting and self._deliver_small(batch):
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.weight
        if len(self._waiting) == 1:
            self._first = self._history.delivering = Position(batch.segment, batch.base)
            self._order = None
            self._slices.start_urgent(self._delivering())
            self._sender.flush()
        elif self._waiting_bytes > _WAITING_BYTES_MAX:
            self.abandon()

    def _deliver_small(self, batch: MessageBatch) -> bool:
        """Deliver a batch at once if it has one topic, with a known route to few cursors. Most batches do."""
        topics = batch.topics[1]
        route = self._routes.known(topics[0]) if len(topics) == 1 and len(batch) <= ROWS_MAX else None
        if route is None or len(route) > SMALL_CURSORS_MAX or len(route) * batch.weight > SMALL_BYTES_MAX:
            return False
        if route:
            self._sender.begin()
            start, rows = Position(batch.segment, batch.base), array("q", range(len(batch)))
            give = self._sender.give
            for cursor, verdict in route:
                if cursor.live:
                    cursor.next = start
                    try:
                        if not give(cursor, batch, [(rows, verdict)]):
                            self._fell_behind(cursor)
                    except Exception:
                        self._failed(cursor)
        self._sender.flush()
        return True

    @property
    def is_behind(self) -> bool:
        """Whether a batch is still being delivered."""
        return bool(self._waiting)

    @property
    def turn(self) -> int:
        """The number of the batch that is written next."""
        return self._dispatched + 1

    def owes(self, turn: int) -> bool:
        """Whether messages of this turn, or of an earlier one, still have to be delivered."""
        return bool(self._waiting) and turn > self._dispatched - len(self._waiting)

    def when_delivered(self, action: Callable[[], None]) -> None:
        """Call this when the next batch has been delivered."""
        self._publishers.append(action)

    def given(self, cursor: Cursor) -> Position:
        """The position up to which a live cursor has been given everything."""
        if not self._waiting:
            return self._history.end
        if cursor.next > self._first:  # it became live after this batch
            return cursor.next
        return self._first if self._order is None or cursor in self._left() else self._last

    def _left(self) -> set[Cursor]:
        """The cursors that haven't been given the current part yet."""
        return {cursor for cursor, _ in (self._order or ())[self._at :]}

    def settle(self, cursor: Cursor) -> None:
        """Before a cursor's subscriptions change: it reads what it wasn't given yet from the log."""
        if self._waiting and cursor.live:
            cursor.fall_behind(self.given(cursor))

    def abandon(self) -> None:
        """Stop delivering what waits: cursors read it from the log."""
        if not self._waiting:
            return  # every live cursor has been given everything
        left, has_begun = self._left(), self._order is not None
        for cursor in self._presence.cursors():
            if cursor.live:
                given = self._last if has_begun and cursor not in left else self._first
                cursor.fall_behind(max(given, cursor.next))
                self._catchup.resume(cursor)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._history.delivering = None
        self._resume_publishers()

    def _delivering(self) -> Iterator[None]:
        """Deliver what waits, batch by batch, in parts."""
        while self._waiting:
            batch = self._waiting[0]
            try:
                last = 0
                while last < len(batch):
                    first, last = last, batch.part(last, ROWS_MAX)
                    self._first, self._last = batch.position(first), batch.position(last)
                    self._history.delivering = self._first
                    self._order, self._at = None, 0
                    for _ in self._deliver_part(batch, first, last):
                        self._sender.flush()
                        yield
                        if not self._waiting or self._waiting[0] is not batch:
                            break  # it was abandoned
                    else:
                        continue
                    break
                else:
                    self._finished(batch)
            except Exception:
                logger.exception(
                    "broker: delivering new messages failed; subscribers read them from the log instead"
                )
                self.abandon()
            self._sender.flush()

    def _finished(self, batch: MessageBatch) -> None:
        self._waiting.popleft()
        self._waiting_bytes -= batch.weight
        self._first = Position(batch.segment, batch.end)
        self._history.delivering = self._first if self._waiting else None
        self._order = None
        self._resume_publishers()

    def _resume_publishers(self) -> None:
        publishers, self._publishers = self._publishers, []
        for action in publishers:
            action()

    def _deliver_part(self, batch: MessageBatch, first: int, last: int) -> Iterator[None]:
        """Give rows of a batch to all cursors that want them."""
        codes, topics = batch.topics
        self._sender.begin()
        if len(topics) == 1:
            route = self._routes.known(topics[0])
            if route is None:
                route = yield from self._routes.find(topics[0])
            if route:
                rows = array("q", range(first, last))
                yield from self._give_all(batch, route, lambda verdict: [(rows, verdict)])
            return
        wanted: dict[Cursor, dict[Verdict, list[int]]] = {}
        effort = 0
        for code in range(len(topics)) if last - first == len(batch) else sorted(set(codes[first:last])):
            route = self._routes.known(topics[code])
            if route is None:
                route = yield from self._routes.find(topics[code])
                effort += 10
            for cursor, verdict in route:
                if cursor.live:
                    wanted.setdefault(cursor, {}).setdefault(verdict, []).append(code)
            effort += 1 + len(route)
            if effort >= 500:
                effort = 0
                yield
        rows_of = _Rows(codes, len(topics), first, last)
        yield from self._give_all(batch, tuple(wanted.items()), rows_of.parts)

    def _give_all(
        self, batch: MessageBatch, order: Sequence[tuple[Cursor, object]], parts_of: Callable[..., Parts]
    ) -> Iterator[None]:
        """Give each cursor its rows. A failure for one doesn't affect the others."""
        self._order, start = order, self._first
        is_late, sender = self._slices.is_urgent, self._sender
        begun = first = sender.sent_bytes
        for number, (cursor, what) in enumerate(order):
            self._at = number
            if not cursor.live or (is_late and cursor.next > start):
                continue
            if sender.sent_bytes - first >= TOGETHER_BYTES_MAX:  # the others take their turns
                cursor.fall_behind(start)
                self._catchup.resume(cursor)
                if number % LATER_PER_STEP == LATER_PER_STEP - 1:
                    self._at, is_late = number + 1, True
                    yield
                continue
            self._give(cursor, batch, parts_of(what), start)
            if number % CURSORS_PER_STEP == CURSORS_PER_STEP - 1 or sender.sent_bytes - begun >= STEP_BYTES:
                self._at, is_late = number + 1, True
                yield
                begun = sender.sent_bytes
        self._at = len(order)

    def _give(self, cursor: Cursor, batch: MessageBatch, parts: Parts, start: Position) -> None:
        """Give one cursor its rows. What it can't be given now it reads from the log."""
        cursor.next = start
        try:
            if not self._sender.give(cursor, batch, parts):
                self._fell_behind(cursor)
        except Exception:
            self._failed(cursor)

    def _fell_behind(self, cursor: Cursor) -> None:
        """Resume a cursor that still has room: it got as many messages as one call gives."""
        if self._sender.has_taker(cursor):
            self._catchup.resume(cursor)

    def _failed(self, cursor: Cursor) -> None:
        """Have a cursor read from the log what it wasn't given because of an error."""
        logger.exception("broker: delivering to a subscriber failed; it reads the messages from the log instead")
        cursor.fall_behind(cursor.next)
        self._catchup.resume(cursor)


class _Rows:
    """The rows of topics in a batch, found once for all cursors that want the same topics."""

    def __init__(self, codes: array[int], topics: int, first: int, last: int) -> None:
        self._codes, self._topics = codes, topics
        self._first, self._last = first, last
        self._found: dict[tuple[int, ...], array[int]] = {}

    def parts(self, wanted: dict[Verdict, list[int]]) -> Parts:
        """The rows of the topics of each verdict."""
        return [(self._rows(tuple(codes)), verdict) for verdict, codes in wanted.items()]

    def _rows(self, codes: tuple[int, ...]) -> array[int]:
        rows = self._found.get(codes)
        if rows is None:
            flags = bytearray(self._topics)
            for code in codes:
                flags[code] = 1
            rows = kernel.rows_where(self._codes, bytes(flags), self._first)
            if self._last < len(self._codes):
                rows = rows[: bisect_left(rows, self._last)]
            self._found[codes] = rows
        return rows
