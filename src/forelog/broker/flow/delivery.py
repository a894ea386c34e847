"""From the log to who subscribed.

A cursor that is live gets what was just written, straight from memory. One whose client doesn't keep up, because
its socket takes no more or too much of it is unacknowledged, falls behind at the first message that it didn't get,
and nobody waits for it: later it reads on from there, until it has everything and is live again (catchup.py).

A batch with many topics, or for many subscribers, is delivered in slices. Until it is through, what was written
next waits; a client that goes or subscribes meanwhile falls behind at the first message that it hasn't got, which
`given` knows. The same happens to whoever was to get something when an error comes in between: nothing is lost.

A publisher whose last messages are still being delivered waits with its next ones. Otherwise those of others
would wait behind all that it sends.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from forelog import kernel
from forelog.broker.flow.batches import Batch
from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.history import History
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.sender import Parts, Sender
from forelog.broker.flow.slices import Slices
from forelog.broker.sessions.session import Cursor, Verdict
from forelog.log.position import Position

__all__ = ["Delivery"]

logger = logging.getLogger("forelog")

ROWS_MAX = 4096
"""Rows of a batch that are delivered together: with more topics than that, rows would be sought for too long."""
CURSORS_PER_STEP = 32
SMALL_CURSORS_MAX = 128
"""Subscribers that get a batch without a break."""
_WAITING_BYTES_MAX = 16 << 20


class Delivery:
    """Sends on what was written."""

    def __init__(
        self,
        routes: Routes,
        history: History,
        sender: Sender,
        catchup: CatchUp,
        slices: Slices,
        live: Callable[[], Iterable[Cursor]],
    ) -> None:
        self._routes = routes
        self._history = history
        self._sender = sender
        self._catchup = catchup
        self._slices = slices
        self._live = live
        """All cursors that may be live."""
        self._waiting: deque[Batch] = deque()
        """What was written and isn't delivered yet: the first of them is under way."""
        self._waiting_bytes = 0
        self._dispatched = 0
        """How many batches there were."""
        self._publishers: list[Callable[[], None]] = []
        """Those who wait until their messages are delivered."""
        self._first = self._last = Position(0, 0)
        """The part of the first one that is under way."""
        self._order: Sequence[tuple[Cursor, object]] | None = None
        """Who gets something of that part; None while that is being found out."""
        self._at = 0
        """How many of these have got it."""

    # -- what was just written

    def dispatch(self, batch: Batch) -> None:
        """To everyone who is live."""
        self._history.add(batch)
        self._dispatched += 1
        if not self._waiting and self._deliver_small(batch):
            return
        self._waiting.append(batch)
        self._waiting_bytes += batch.weight
        if len(self._waiting) == 1:
            self._first = Position(batch.segment, batch.base)
            self._order = None
            self._slices.start_urgent(self._delivering())
            self._sender.flush()
        elif self._waiting_bytes > _WAITING_BYTES_MAX:
            self.abandon()

    def _deliver_small(self, batch: Batch) -> bool:
        """All at once, if that is little: one topic that is known, for few. Most batches are."""
        topics = batch.topics[1]
        route = self._routes.known(topics[0]) if len(topics) == 1 and len(batch) <= ROWS_MAX else None
        if route is None or len(route) > SMALL_CURSORS_MAX:
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
        """Whether something that was written is still being delivered."""
        return bool(self._waiting)

    @property
    def turn(self) -> int:
        """The number of the batch that is written next."""
        return self._dispatched + 1

    def owes(self, turn: int) -> bool:
        """Whether messages of this turn, or of an earlier one, still have to be delivered."""
        return bool(self._waiting) and turn > self._dispatched - len(self._waiting)

    def when_through(self, action: Callable[[], None]) -> None:
        """Do this when one more batch is delivered."""
        self._publishers.append(action)

    @property
    def end(self) -> Position:
        """Up to here everybody who is live has been given everything."""
        return self._first if self._waiting else self._history.end

    def given(self, cursor: Cursor) -> Position:
        """Up to where a live cursor has been given everything."""
        if not self._waiting:
            return self._history.end
        if cursor.next > self._first:  # it has read further by itself
            return cursor.next
        return self._first if self._order is None or cursor in self._left() else self._last

    def _left(self) -> set[Cursor]:
        """Who is still to get something of the part that is under way."""
        return {cursor for cursor, _ in (self._order or ())[self._at :]}

    def settle(self, cursor: Cursor) -> None:
        """What a cursor wants is about to change: what it hasn't been given yet, it reads from the log."""
        if self._waiting and cursor.live:
            cursor.fall_behind(self.given(cursor))

    def abandon(self) -> None:
        """Deliver nothing more of what waits: whoever was to get some of it reads it from the log."""
        left, has_begun = self._left(), self._order is not None
        for cursor in self._live():
            if cursor.live:
                given = self._last if has_begun and cursor not in left else self._first
                cursor.fall_behind(max(given, cursor.next))
                self._catchup.resume(cursor)
        self._waiting.clear()
        self._waiting_bytes = 0
        self._go_on()

    def _delivering(self) -> Iterator[None]:
        """What waits, batch by batch, in parts."""
        while self._waiting:
            batch = self._waiting[0]
            try:
                for first in range(0, len(batch), ROWS_MAX):
                    last = min(first + ROWS_MAX, len(batch))
                    self._first, self._last = batch.position(first), batch.position(last)
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
                    self._through(batch)
            except Exception:
                logger.exception(
                    "broker: messages couldn't be delivered at once: subscribers read them from the log"
                )
                self.abandon()
            self._sender.flush()

    def _through(self, batch: Batch) -> None:
        self._waiting.popleft()
        self._waiting_bytes -= batch.weight
        self._first = Position(batch.segment, batch.end)
        self._order = None
        self._go_on()

    def _go_on(self) -> None:
        publishers, self._publishers = self._publishers, []
        for action in publishers:
            action()

    def _deliver_part(self, batch: Batch, first: int, last: int) -> Iterator[None]:
        """Rows of a batch, to all who want them."""
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
        self, batch: Batch, order: Sequence[tuple[Cursor, object]], parts_of: Callable[..., Parts]
    ) -> Iterator[None]:
        """To each what is for it. What fails for one doesn't keep it from the others."""
        self._order, start = order, self._first
        is_late = self._slices.is_urgent
        for number, (cursor, what) in enumerate(order):
            self._at = number
            if not cursor.live or (is_late and cursor.next > start):
                continue
            self._give(cursor, batch, parts_of(what), start)
            if number % CURSORS_PER_STEP == CURSORS_PER_STEP - 1:
                self._at, is_late = number + 1, True
                yield
        self._at = len(order)

    def _give(self, cursor: Cursor, batch: Batch, parts: Parts, start: Position) -> None:
        """To one. What fails for it, or goes no further now, it reads from the log."""
        cursor.next = start
        try:
            if not self._sender.give(cursor, batch, parts):
                self._fell_behind(cursor)
        except Exception:
            self._failed(cursor)

    def _fell_behind(self, cursor: Cursor) -> None:
        """If it had room, it got as much as anybody gets at a time, and goes on soon."""
        if self._sender.has_taker(cursor):
            self._catchup.resume(cursor)

    def _failed(self, cursor: Cursor) -> None:
        """What it wasn't given because of an error it reads from the log."""
        logger.exception("broker: a subscriber couldn't be given a batch, and reads it from the log")
        cursor.fall_behind(cursor.next)
        self._catchup.resume(cursor)


class _Rows:
    """The rows of some topics of a batch, found once for all who want the same topics."""

    def __init__(self, codes: array[int], topics: int, first: int, last: int) -> None:
        self._codes, self._topics = codes, topics
        self._first, self._last = first, last
        self._found: dict[tuple[int, ...], array[int]] = {}

    def parts(self, wanted: dict[Verdict, list[int]]) -> Parts:
        """For each verdict the rows of its topics."""
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
