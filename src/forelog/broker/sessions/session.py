"""What the broker knows of a client: its subscriptions, its positions in the log, its messages in flight.

A session has cursors, each with subscriptions and a position: one cursor for all plain subscriptions, and one for
each replay. Everything before a cursor's position was sent. Messages that were sent and aren't acknowledged are in
flight, by packet id. No message is queued for a client: one that is a week behind costs a position.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from forelog.broker.access.rights import NOTHING, Rights
from forelog.broker.limits import NEVER
from forelog.broker.log.batch import StoredMessage
from forelog.broker.mqtt.aliases import OutboundAliases
from forelog.broker.mqtt.ids import PACKET_ID_MAX
from forelog.broker.mqtt.packets import Connect, PacketType, Will
from forelog.broker.mqtt.properties import property_bytes
from forelog.broker.mqtt.shapes import Shapes
from forelog.broker.notices import Visit
from forelog.broker.sessions.windows import Window
from forelog.log.position import Position

_CACHE_MAX, _GROUP_CACHE_MAX = 1024, 64
"""Topics whose verdicts are cached for a client that reads on, and for a group."""
_FEW_SUBS = 64
_CACHED_BYTES_MAX = 256
"""The longest topic, with its identifiers, whose verdict is cached."""


class Sub(NamedTuple):
    """A subscription to a filter."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    since: Position = Position(0, 0)
    """The end of the log when it was made. Messages from there on match."""


class Verdict(NamedTuple):
    """How a topic's messages are delivered, by all subscriptions of a cursor that match."""

    qos: int
    properties: bytes
    """The identifiers of those subscriptions as an encoded property, for MQTT 5."""
    retain_as_published: bool
    no_local: bool
    """Whether messages of the client itself are left out."""


def judge(subs: list[Sub]) -> Verdict | None:
    """The verdict of subscriptions: once, at the highest QoS, with all identifiers. None without any."""
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
    """A position in the log, and the subscriptions that are served from there on."""

    def __init__(self, key: str, session: Session | None, position: Position) -> None:
        self.key = key
        """The filter of a replay or a group, as it was sent; empty for the plain subscriptions of a session."""
        self.session = session
        self.next = position
        """Everything before it was sent. For a live cursor: where it became live, or later."""
        self.live = False
        """Whether it has been given everything, and is given new messages as they are written."""
        self.pumping = False
        """Whether messages are being read for it, or soon will be."""
        self.replays = bool(key) and session is not None
        """Whether it replays the past, so that messages say when they were logged."""
        self.subs: dict[str, Sub] = {}
        self.noted: Position | None = None
        """The cursor's position as the log of sessions has it."""
        self.done: set[Position] = set()
        """Messages of QoS 2 after its position that were received: they aren't sent again after a crash."""
        self._shapes = Shapes()
        self._edition = 0
        """The edition of the rights that cached verdicts are of."""
        self._cache: dict[bytes, Verdict | None] = {}
        self._begins: list[Position] = []
        """The positions at which subscriptions start, sorted. May include subscriptions that are gone."""

    def add(self, filter: str, sub: Sub) -> Sub | None:  # noqa: A002
        """Subscribe; returns the subscription that is replaced."""
        before = self.subs.get(filter)
        self.subs[filter] = sub
        if before is None:
            self._shapes.add(filter)
        if not self._begins or self._begins[-1] != sub.since:
            insort(self._begins, sub.since)
            if len(self._begins) > 2 * len(self.subs) + 16:  # drop those of subscriptions that are gone
                self._begins = sorted({one.since for one in self.subs.values()})
        self._cache.clear()
        return before

    def remove(self, filter: str) -> Sub | None:  # noqa: A002
        """Unsubscribe; returns the subscription that was removed."""
        sub = self.subs.pop(filter, None)
        if sub is not None:
            self._shapes.remove(filter)
            self._cache.clear()
        return sub

    def verdict(self, topic: bytes, position: Position) -> Verdict | None:
        """How a message of a topic at a position is delivered; None if it isn't wanted."""
        if self._begins and position < self._begins[-1]:
            return self._judge(topic, position)
        if self.session is not None and self.session.rights.edition != self._edition:
            self._edition = self.session.rights.edition
            self._cache.clear()
        if topic in self._cache:
            return self._cache[topic]
        found = self._judge(topic, position)
        if len(topic) + (0 if found is None else len(found.properties)) <= _CACHED_BYTES_MAX:
            most = _GROUP_CACHE_MAX if self.session is None else _CACHE_MAX // len(self.session.cursors)
            if len(self._cache) >= most:  # a limit on all cursors of a client together
                self._cache.clear()
            self._cache[topic] = found
        return found

    def _judge(self, topic: bytes, position: Position) -> Verdict | None:
        text = topic.decode()
        if self.session is not None and not self.session.rights.may_read(text):
            return None
        found = [self.subs[name] for name in self._shapes.matching(text) if name in self.subs]
        return judge([sub for sub in found if sub.since <= position])

    def candidates(self, topics: list[bytes], codes: Sequence[int]) -> Sequence[int]:
        """Which of these topics, given by their numbers, a subscription may match."""
        if len(self._shapes) or len(self.subs) > _FEW_SUBS:
            return codes
        names = {name.encode() for name in self.subs}
        return [code for code in codes if topics[code] in names]

    def judge_again(self) -> None:
        """Forget verdicts, because the rights of the client have changed."""
        self._cache.clear()

    def effort(self) -> int:
        """The number of lookups for a topic without a cached verdict."""
        return 1 + len(self._shapes)

    def next_change(self, position: Position) -> Position | None:
        """Where the next subscription starts after a position; None if all have started."""
        at = bisect_right(self._begins, position)
        return self._begins[at] if at < len(self._begins) else None

    def forget_before(self, position: Position) -> None:
        """Forget what is before a position up to which everything is acknowledged."""
        if self.done:
            before = len(self.done)
            self.done = {one for one in self.done if one >= position}
            if self.session is not None:
                self.session.done_count -= before - len(self.done)

    def fall_behind(self, position: Position) -> None:
        """Stop being live: messages from a position on are read from the log."""
        self.live = False
        self.next = position
        if self.session is not None:
            self.session.behind[self] = None

    def go_live(self, end: Position) -> None:
        """Become live: everything up to the end of the log was given."""
        self.live = True
        self.next = end
        if self.session is not None:
            self.session.behind.pop(self, None)

    def wants(self, topics: Set[bytes]) -> bool:
        """Whether a subscription matches any of these topics. Safe from any thread."""
        subs, shapes = self.subs, self._shapes
        if not len(shapes) and len(subs) <= len(topics):
            return any(name.encode() in topics for name in tuple(subs))
        return any(name in subs for topic in tuple(topics) for name in shapes.matching(topic.decode()))


class Kept:
    """A retained message, until another one replaces it: who has it in flight keeps nothing alive."""

    __slots__ = ("message",)

    def __init__(self, message: StoredMessage) -> None:
        self.message: StoredMessage | None = message


class Sent(NamedTuple):
    """A message in flight: its position in the log, or the message itself if it was a retained one."""

    position: Position
    qos: int
    cursor: Cursor | None
    kept: Kept | None = None


class Session:
    """A client, connected or not."""

    def __init__(self, client_id: str, position: Position, in_flight_max: int) -> None:
        self.client_id = client_id
        self.owner: str | None = None
        """The user whose client created it: empty for clients without a name, None if names aren't checked."""
        self.rights: Rights = NOTHING
        """What its client may do, by the rules of the moment."""
        self.connection: Link | None = None
        self.expiry_seconds = 0
        self.ended_ns: int | None = None
        """When its client disconnected, by the store's clock; None while it is connected."""
        self.main = Cursor("", self, position)
        self.cursors: dict[str, Cursor] = {"": self.main}
        self.groups: dict[str, Sub] = {}
        """Shared subscriptions, by filter as it was sent, `$share/` included."""
        self.in_flight: dict[int, Sent] = {}
        self.in_flight_max = in_flight_max
        self.released: dict[int, None] = {}
        """Packet ids of QoS 2 that wait for PUBCOMP."""
        self.received: dict[int, int] = {}
        """Packet ids of QoS 2 that the client has published and not released, with the times of their messages."""
        self.done_count = 0
        """Messages in `done`, of all cursors."""
        self.window, self.window_in = Window(), Window()
        """How many messages may be in flight to the client, and from it."""
        self.will: Will | None = None
        self.retained_left: dict[str, Iterator[StoredMessage | None] | None] = {}
        """Filters whose retained messages aren't all sent, each with the walk through them once it has begun."""
        self.retained_sending = False
        """Whether retained messages are being sent."""
        self.behind: OrderedDict[Cursor, None] = OrderedDict()
        """The session's cursors that aren't live; the next read is for the first of them."""
        self.pumping = False
        """Whether messages are being read for them, or soon will be."""
        self.waiting: dict[Cursor, None] = {}
        """Groups that skip it until it has room."""
        self.shares: dict[Cursor, None] = {}
        """Groups with messages in flight to it, or recently acknowledged by it."""
        self.held_by = ""
        """The user whose quota it counts for."""
        self.held_bytes = 0
        """Bytes that count for the quota; `held_base` of them are for the session itself and its will."""
        self.held_base = 0
        self.held_durable = 0
        """1 if it counts as a durable session."""
        self.resending = False
        """Whether messages in flight are being sent again, and nothing else may be sent."""
        self.unordered = False
        """Whether `in_flight` may be out of the log's order, as after a start."""
        self._waiter: asyncio.Future[None] | None = None
        self.last_id = 0
        """The packet id that was used last."""

    def let_go(self) -> None:
        """Forget what refers to it, so that its memory is freed at once: it has ended."""
        for cursor in self.cursors.values():
            cursor.session = None
        self.cursors.clear()
        self.behind.clear()

    async def wait(self) -> None:
        """Wait until something is acknowledged, or the connection is lost."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        """End the wait."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.expiry_seconds > 0

    def expires_ns(self) -> int | None:
        """When it expires; None if it is connected or never expires."""
        if self.ended_ns is None or self.expiry_seconds == NEVER:
            return None
        return self.ended_ns + self.expiry_seconds * 10**9

    def subscriptions(self) -> int:
        """The number of its subscriptions."""
        return len(self.main.subs) + len(self.cursors) - 1 + len(self.groups)

    # -- packet ids

    def room(self, wanted: int = 1) -> int:
        """How many of the wanted messages of QoS 1 and 2 may be sent now, with consecutive packet ids."""
        used, most = len(self.in_flight) + len(self.released), min(wanted, self.in_flight_max)
        if used:
            oldest = [next(iter(held)) for held in (self.in_flight, self.released) if held]
            span = max((self.last_id - packet_id) % PACKET_ID_MAX + 1 for packet_id in oldest)
            most = min(wanted, self.in_flight_max - used, PACKET_ID_MAX - span)
        return self.window.room(used + self.done_count, most) if most > 0 else 0

    def settle(self) -> None:
        """Give back what its windows don't need now."""
        self.window.settle(len(self.in_flight) + len(self.released) + self.done_count)
        self.window_in.settle(len(self.received))

    def next_id(self) -> int:
        """The packet id to use next; 1 follows 65,535."""
        return int(self.last_id % PACKET_ID_MAX + 1)

    def take_ids(self, count: int) -> None:
        """Note that the next so many packet ids were used."""
        if count:
            self.last_id = (self.last_id + count - 1) % PACKET_ID_MAX + 1

    # -- acknowledgements

    def acknowledge(self, packet_id: int) -> Sent | None:
        """PUBACK: a message of QoS 1 was received."""
        sent = self.in_flight.get(packet_id)
        if sent is None or sent.qos != 1:
            return None
        return self.in_flight.pop(packet_id)

    def receive(self, packet_id: int) -> Sent | None:
        """PUBREC: a message of QoS 2 was received. None if that was known."""
        sent = self.in_flight.get(packet_id)
        if sent is None or sent.qos != 2:
            return None
        del self.in_flight[packet_id]
        self.released[packet_id] = None
        if sent.cursor is not None and sent.cursor.session is not None and sent.kept is None:
            self.done_count -= len(sent.cursor.done)
            sent.cursor.done.add(sent.position)
            self.done_count += len(sent.cursor.done)
        return sent

    def complete(self, packet_id: int) -> bool:
        """PUBCOMP: the packet id of a message of QoS 2 is free. False if it was."""
        return self.released.pop(packet_id, 0) is None

    def forget_done(self, end: Position) -> None:
        """Forget messages of QoS 2 that were received, up to where everything is acknowledged."""
        if self.done_count:
            for cursor, at in self.places(end):
                if at != cursor.noted:
                    cursor.noted = at
                    cursor.forget_before(at)

    def places(self, end: Position) -> Iterator[tuple[Cursor, Position]]:
        """All cursors with their `at`, in one pass over the messages in flight."""
        if len(self.cursors) == 1:
            yield self.main, self.at(self.main, end)
            return
        lowest: dict[Cursor, Position] = {}
        for sent in self.in_flight.values():
            if sent.cursor is not None and sent.kept is None:
                lowest[sent.cursor] = min(lowest.get(sent.cursor, sent.position), sent.position)
        for cursor in self.cursors.values():
            at = end if cursor.live else cursor.next
            yield cursor, min(at, lowest.get(cursor, at))

    def at(self, cursor: Cursor, end: Position) -> Position:
        """The position up to which everything of a cursor is acknowledged."""
        at = end if cursor.live else cursor.next
        for sent in self.in_flight.values():
            if sent.cursor is cursor and sent.kept is None:
                at = min(at, sent.position)
                if not self.unordered:
                    break
        else:
            self.unordered = self.unordered and bool(self.in_flight)
        return at


class Link(Protocol):
    """An open connection of a client, as everything behind it sees it. `Connection` is the real one."""

    transport: asyncio.Transport
    version: int
    """The version of MQTT that the client speaks; UNKNOWN before its CONNECT."""
    session: Session | None
    """None until its CONNECT is accepted."""
    client_id: str
    """Empty until its CONNECT is accepted."""
    user: str | None
    visit: Visit
    ready: bool
    """Whether it takes messages: its CONNECT was accepted, and its socket keeps up."""
    own_packets: bool
    """Whether its messages are encoded one by one, because it uses topic aliases or limits the size of packets."""
    aliases: OutboundAliases | None
    packet_bytes_max: int
    """The largest packet that the client takes."""
    keep_alive: int
    heard: float
    """When the client last sent something, by the monotonic clock."""
    normal_end: bool
    """Whether the client said goodbye, so that its will isn't published."""
    owner: str
    """The client's user, or its address if it has none: the owner of its shares."""
    properties: tuple[bytes, bytes]
    """The properties that the log keeps of its plain messages, at QoS 0 and 1."""

    @property
    def peer(self) -> str:
        """The address and port of the client."""

    @property
    def peer_host(self) -> str:
        """The address of the client, without its port."""

    def send(self, data: bytes) -> None:
        """Send bytes."""

    def send_packet(self, packet: Any) -> None:
        """Send a packet, unless it is larger than the client takes."""

    def refuse(self, reason: int, why: str) -> None:
        """Disconnect the client because of what it did, with a reason code and an explanation."""

    def fail(self, error: Exception) -> None:
        """Disconnect the client because of an error of the broker."""

    def close(self) -> None:
        """Disconnect once everything is sent."""

    def linger(self) -> None:
        """Disconnect once everything is sent, and leave the client some time to read it."""

    def abort(self) -> None:
        """Disconnect at once."""

    def hold(self, awaited: Future[Any]) -> None:
        """Handle no more packets until `resume`. `awaited` is cancelled if the connection is lost before."""

    def resume(self, work: Callable[[], None] | None = None) -> None:
        """Do what `hold` waited for, then handle packets again."""

    def accept(self, session: Session, connect: Connect) -> None:
        """Serve a session from now on, as its CONNECT asks for."""
