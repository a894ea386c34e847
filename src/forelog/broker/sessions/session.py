"""What a broker knows of a client: what it wants, how far it has got, and what is under way to it.

A session has cursors, each with subscriptions and a position in the log: one for all that it subscribed to, and
one for each replay. Up to its position a cursor has sent everything; what isn't acknowledged yet is in flight,
each message with the packet id that it was sent under. That is all: a client that is a week behind is a position.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from forelog.broker.access.rights import NOTHING, Rights
from forelog.broker.flow.batches import Stored
from forelog.broker.limits import NEVER
from forelog.broker.mqtt import PACKET_ID_MAX, PacketType, Shapes, Will, property_bytes
from forelog.log.position import Position

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["Cursor", "Sent", "Session", "Sub", "Verdict"]

_CACHE_MAX = 1024
_CACHED_BYTES_MAX = 256
"""Of a topic and its identifiers: longer ones would be most of the memory, and hardly come twice."""


class Sub(NamedTuple):
    """What a client wants of a filter."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    since: Position = Position(0, 0)
    """Where the log ended when it subscribed: it gets what comes after."""


class Verdict(NamedTuple):
    """What becomes of a topic's messages, by all subscriptions of a cursor that match."""

    qos: int
    properties: bytes
    """In MQTT 5: the identifiers of those subscriptions."""
    retain_as_published: bool
    no_local: bool
    """Whether those of the client itself are left out."""


def judge(subs: list[Sub]) -> Verdict | None:
    """Once, at the highest QoS, with all identifiers."""
    if not subs:
        return None
    identifiers = sorted({sub.identifier for sub in subs if sub.identifier})
    properties = property_bytes({"subscription_identifiers": identifiers}, PacketType.PUBLISH, from_server=True)
    return Verdict(
        max(sub.qos for sub in subs),
        properties if identifiers else b"",
        any(sub.retain_as_published for sub in subs),
        all(sub.no_local for sub in subs),
    )


class Cursor:
    """A place in the log, and who is to get what from there on."""

    def __init__(self, key: str, session: Session | None, position: Position) -> None:
        self.key = key
        """Which of a session's it is: empty, or what was subscribed to for a replay or a group."""
        self.session = session
        self.next = position
        """What lies before it has been sent. Of a live cursor, where it became live, or later."""
        self.live = False
        """Whether it has everything, and gets what comes as it comes."""
        self.pumping = False
        """Whether it is being read for, or about to be."""
        self.replays = bool(key) and session is not None
        """Whether somebody asked for the past, and wants to know when its messages were logged."""
        self.subs: dict[str, Sub] = {}
        self.noted: Position | None = None
        """The position that the log of sessions has for it."""
        self.done: set[Position] = set()
        """Messages of QoS 2 past its position that are through: after a crash they aren't sent again."""
        self._shapes = Shapes()
        self._cache: dict[bytes, Verdict | None] = {}
        self._begins: list[Position] = []
        """Where subscriptions begin, sorted; also some that are gone."""

    def add(self, filter: str, sub: Sub) -> Sub | None:  # noqa: A002
        """Subscribe; what was there before."""
        before = self.subs.get(filter)
        self.subs[filter] = sub
        if before is None:
            self._shapes.add(filter)
        if not self._begins or self._begins[-1] != sub.since:
            insort(self._begins, sub.since)
            if len(self._begins) > 2 * len(self.subs) + 16:  # of subscriptions that are gone
                self._begins = sorted({one.since for one in self.subs.values()})
        self._cache.clear()
        return before

    def remove(self, filter: str) -> Sub | None:  # noqa: A002
        """Unsubscribe; what it was."""
        sub = self.subs.pop(filter, None)
        if sub is not None:
            self._shapes.remove(filter)
            self._cache.clear()
        return sub

    def verdict(self, topic: bytes, position: Position) -> Verdict | None:
        """What becomes of a message there; None if it isn't wanted."""
        if self._begins and position < self._begins[-1]:
            return self._judge(topic, position)
        if topic in self._cache:
            return self._cache[topic]
        found = self._judge(topic, position)
        if len(topic) + (0 if found is None else len(found.properties)) <= _CACHED_BYTES_MAX:
            most = _CACHE_MAX if self.session is None else _CACHE_MAX // len(self.session.cursors)
            if len(self._cache) >= most:  # what a client's cursors remember together is bounded
                self._cache.clear()
            self._cache[topic] = found
        return found

    def _judge(self, topic: bytes, position: Position) -> Verdict | None:
        text = topic.decode()
        if self.session is not None and not self.session.rights.may_read(text):
            return None
        found = [self.subs[name] for name in self._shapes.matching(text) if name in self.subs]
        return judge([sub for sub in found if sub.since <= position])

    def judge_again(self) -> None:
        """Its client has other rights now."""
        self._cache.clear()

    def effort(self) -> int:
        """How many filters have to be tried for a topic that wasn't seen before."""
        return 1 + len(self._shapes)

    def next_change(self, position: Position) -> Position | None:
        """Where, after a position, the next of its subscriptions begins; None if all have."""
        at = bisect_right(self._begins, position)
        return self._begins[at] if at < len(self._begins) else None

    def forget_before(self, position: Position) -> None:
        """Everything before it has been acknowledged."""
        if self.done:
            self.done = {one for one in self.done if one >= position}

    def fall_behind(self, position: Position) -> None:
        """It doesn't get any more as it comes: the first that it hasn't got is here."""
        self.live = False
        self.next = position
        if self.session is not None:
            self.session.behind[self] = None

    def go_live(self, end: Position) -> None:
        """It has everything up to the end of the log, and gets what comes as it comes."""
        self.live = True
        self.next = end
        if self.session is not None:
            self.session.behind.pop(self, None)

    def wants(self, topics: list[bytes]) -> bool:
        """Whether any of these topics may be wanted."""
        subs, shapes = self.subs, self._shapes
        return any(name in subs for topic in topics for name in shapes.matching(topic.decode()))


class Sent(NamedTuple):
    """A message that is under way: where it is in the log, or itself, if it was retained."""

    position: Position
    qos: int
    cursor: Cursor | None
    message: Stored | None = None


class Session:
    """A client, connected or not."""

    def __init__(self, client_id: str, position: Position, in_flight_max: int) -> None:
        self.client_id = client_id
        self.owner: str | None = None
        """The user whose client made it: empty for clients without a name, None if nobody checked names."""
        self.rights: Rights = NOTHING
        """What its client may do, by the rules of now. Nothing while it isn't here."""
        self.connection: Connection | None = None
        self.expiry_seconds = 0
        self.ended_ns: int | None = None
        """When it was last disconnected, if it is."""
        self.main = Cursor("", self, position)
        self.cursors: dict[str, Cursor] = {"": self.main}
        self.groups: dict[str, Sub] = {}
        """Shared subscriptions, by what was subscribed to."""
        self.in_flight: dict[int, Sent] = {}
        self.in_flight_max = in_flight_max
        self.released: dict[int, None] = {}
        """Packet ids of QoS 2 that the client has received, and that it is to be told to forget."""
        self.received: dict[int, int] = {}
        """Packet ids of QoS 2 that the client has sent and not released, with the times of their messages."""
        self.will: Will | None = None
        self.retained_left: dict[str, Iterator[Stored | None] | None] = {}
        """Filters whose retained messages aren't all sent yet, and the walk through them, if it has begun."""
        self.retained_sending = False
        """Whether that is under way."""
        self.behind: OrderedDict[Cursor, None] = OrderedDict()
        """Its cursors that aren't live, beginning with the one whose turn it is to read on."""
        self.pumping = False
        """Whether these are being read for, or about to be."""
        self.waiting: dict[Cursor, None] = {}
        """Groups that have left it out because it had no room."""
        self.shares: dict[Cursor, None] = {}
        """Groups by which something is under way to it, or was until a moment ago."""
        self.held_by = ""
        """Whose its bytes are; these, those of itself and its will alone, and whether it counts as durable."""
        self.held_bytes = self.held_base = self.held_durable = 0
        self.resending = False
        self.unordered = False
        """Whether what is in flight may not be in the order of the log, as after a start."""
        self._waiter: asyncio.Future[None] | None = None
        self.last_id = 0
        """The packet id that was given out last."""

    async def wait(self) -> None:
        """Until something was acknowledged, or the connection is lost."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        """That has come to pass."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_seconds > 0

    def expires_ns(self) -> int | None:
        """When it will be forgotten; None if it won't."""
        if self.ended_ns is None or self.expiry_seconds == NEVER:
            return None
        return self.ended_ns + self.expiry_seconds * 10**9

    def subscriptions(self) -> int:
        """How many it has."""
        return len(self.main.subs) + len(self.cursors) - 1 + len(self.groups)

    # -- packet ids

    def room(self) -> int:
        """How many messages of QoS 1 and 2 may be sent to it now, under ids that follow each other."""
        used = len(self.in_flight) + len(self.released)
        if not used:
            return self.in_flight_max
        oldest = [next(iter(held)) for held in (self.in_flight, self.released) if held]
        span = max((self.last_id - packet_id) % PACKET_ID_MAX + 1 for packet_id in oldest)
        return int(max(min(self.in_flight_max - used, PACKET_ID_MAX - span), 0))

    def next_id(self) -> int:
        """The packet id to be given out next; after 65,535 comes 1."""
        return int(self.last_id % PACKET_ID_MAX + 1)

    def take_ids(self, count: int) -> None:
        """So many ids, from the next one on, have been given out."""
        if count:
            self.last_id = (self.last_id + count - 1) % PACKET_ID_MAX + 1

    # -- what comes back

    def acknowledge(self, packet_id: int) -> Sent | None:
        """A message of QoS 1 has arrived."""
        sent = self.in_flight.get(packet_id)
        if sent is None or sent.qos != 1:
            return None
        return self.in_flight.pop(packet_id)

    def receive(self, packet_id: int) -> Sent | None:
        """A message of QoS 2 has arrived, for the first time."""
        sent = self.in_flight.get(packet_id)
        if sent is None or sent.qos != 2:
            return None
        del self.in_flight[packet_id]
        self.released[packet_id] = None
        if sent.cursor is not None and sent.cursor.session is not None and sent.message is None:
            sent.cursor.done.add(sent.position)
        return sent

    def complete(self, packet_id: int) -> bool:
        """And the client has forgotten its packet id."""
        return self.released.pop(packet_id, 0) is None

    def places(self, end: Position) -> Iterator[tuple[Cursor, Position]]:
        """The same as `at` for all of its cursors; what is in flight is looked at once, however many there are."""
        if len(self.cursors) == 1:
            yield self.main, self.at(self.main, end)
            return
        lowest: dict[Cursor, Position] = {}
        for sent in self.in_flight.values():
            if sent.cursor is not None and sent.message is None:
                lowest[sent.cursor] = min(lowest.get(sent.cursor, sent.position), sent.position)
        for cursor in self.cursors.values():
            at = end if cursor.live else cursor.next
            yield cursor, min(at, lowest.get(cursor, at))

    def at(self, cursor: Cursor, end: Position) -> Position:
        """Up to where everything of a cursor has been acknowledged."""
        at = end if cursor.live else cursor.next
        for sent in self.in_flight.values():
            if sent.cursor is cursor and sent.message is None:
                at = min(at, sent.position)
                if not self.unordered:
                    break
        else:
            self.unordered = self.unordered and bool(self.in_flight)
        return at
