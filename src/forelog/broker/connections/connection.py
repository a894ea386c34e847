"""One client's connection: bytes from its socket to packets, and what each of them asks for.

Messages in bulk don't come as packets: a read full of them is taken by the kernel in one call, as bytes for the
log and acknowledgements. Everything else is decoded one by one, strictly: what MQTT forbids ends the connection,
with the reason that the standard names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from forelog import kernel
from forelog.broker.connections.door import Guest
from forelog.broker.connections.pace import RUNS_MAX, Pace
from forelog.broker.connections.peer import Peer
from forelog.broker.connections.visits import Visit
from forelog.broker.mqtt import (
    MQTT_5_0,
    UNKNOWN,
    BadPacket,
    Connack,
    Connect,
    Disconnect,
    InboundAliases,
    OutboundAliases,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Publish,
    ReasonCode,
    bad_frame,
    connect_level,
    decode,
    encode,
)
from forelog.broker.sessions.session import Session
from forelog.errors import ForelogError
from forelog.kernel.types import INCOMPLETE
from forelog.serving.tls import tls_hint

if TYPE_CHECKING:
    from forelog.broker.broker import Broker

__all__ = ["Connection"]

logger = logging.getLogger("forelog")

_CONNECT, _PUBLISH, _PUBACK = 0x10, 0x30, 0x40
_MQTT_5 = b"\x00\x04MQTT\x05"
_HELD_BYTES_MAX = 16 << 10
"""That a client may send while its password is checked, before its socket isn't read any more."""
_PINGRESP = b"\xd0\x00"
_REASONS_OF_CONNECT = (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
"""That both versions can tell a client whose CONNECT was never taken."""
_ANSWERS_MAX = 4
"""Times `out_bytes_max` that answers may add to what waits for a client."""
_PACKET_BYTES_MAX = 0x1000_0004  # whatever MQTT allows
_SMALL_BYTES = 4096
"""Parts of a packet that aren't counted: nearly every read ends with one."""


class Connection(Peer, asyncio.Protocol):
    """A connection, from its CONNECT to its end."""

    def __init__(self, broker: Broker, *, plain: bool = False) -> None:
        self.broker = broker
        self._plain = plain
        """Whether what is written to the socket is what the client gets: no TLS, no frames."""
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.version = UNKNOWN
        self.session: Session | None = None
        self.user: str | None = None
        self.visit = Visit()
        self.ready = False
        """Whether it takes messages: connected, and its socket keeps up."""
        self.particular = False
        """Whether its messages have to be made one by one: it wants aliases, or no large ones."""
        self.aliases: OutboundAliases | None = None
        self.packet_bytes_max = _PACKET_BYTES_MAX
        self.keep_alive = 0
        self.heard = time.monotonic()
        self.normal_end = False
        self.publish_all = False
        """Whether its messages may go to any topic: then none has to be looked at."""
        self.properties = (b"\x80", b"\x80")
        """What the log keeps of its plain messages, at QoS 0 and 1."""
        self.guest: Guest | None = None
        """Its place before the door, until its CONNECT is accepted."""
        self.inside = self._closing = self._paused = self._tight = False
        self.owner = ""
        """Whose it is, where clients share something: a user's, or an address's."""
        self._inbound = InboundAliases(0)
        self._rest = bytearray()
        self._need = 0
        self.packet_limit = broker.limits.connect_bytes_max
        """The largest packet that it may send now."""
        self._properties_max = broker.limits.properties_bytes_max
        self._kept = 0
        """Bytes of a packet that isn't whole, as far as they are counted."""
        self.outside = 0
        """Such bytes that a WebSocket has for it."""
        self._unsent = 0
        """Bytes that wait for its socket, as far as they are counted."""
        self._held: Future[Any] | None = None
        self._drained = 0
        self._singly = 0
        """Bytes of messages that are taken one by one, because not all of them may be published."""
        self._pace = Pace(self)
        self._timer: asyncio.TimerHandle | None = None
        self._file = -1
        """The socket's number, where bytes can be written to it as they are."""

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=self.broker.limits.out_bytes_max)
        found = transport.get_extra_info("socket")
        if found is not None:
            if self._plain:
                self._file = found.fileno()
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.broker.arrived(self)
        self.owner = self.peer_host

    def connection_lost(self, error: Exception | None) -> None:
        if not self.visit.why:
            self.visit.why = "connection lost" if error is None else f"connection lost: {error}"
        self._closing = True
        self._file = -1
        self.ready = False
        if self._held is not None:
            self._held.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self.broker.door.lingering.discard(self)
        self.broker.shared.unsent.drop(self)
        self.broker.left(self)

    def pause_writing(self) -> None:
        self.ready = False

    def resume_writing(self) -> None:
        if self._closing:
            return
        self.hold_back()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
            if self._rest:
                self.broker.loop.call_soon(self.data_received, b"")
        if self.session is not None:
            self.ready = True
            self.broker.has_room(self.session)

    def data_received(self, data: bytes) -> None:
        self.heard = self.broker.now
        self.broker.system.bytes_received += len(data)
        if self._rest or self._held is not None:
            self._rest += data
            if self._held is not None and len(self._rest) > _HELD_BYTES_MAX:
                self.transport.pause_reading()
            if self._held is not None or len(self._rest) < self._need:
                self.count_kept()  # of a packet that is large: not looked at again before it is there
                return
            data, self._rest = bytes(self._rest), bytearray()
        try:
            at = self._take(data)
        except BadPacket as error:
            self.refuse(error.reason_code, f"the client {hint}" if (hint := tls_hint(data)) else str(error))
            return
        except Exception as error:
            self.fail(error)
            return
        if at < len(data):
            if self._closing:
                self._drain(len(data) - at)
                return
            self._rest += memoryview(data)[at:]
        if self._kept or len(self._rest) > _SMALL_BYTES:
            self.count_kept()

    def eof_received(self) -> bool:
        return False

    # -- bytes

    def count_kept(self) -> None:
        """Note how much of a packet is here, which isn't whole. If all have too much, somebody has to go."""
        size = 0 if self._closing else len(self._rest) + self.outside
        self._kept = size = size if size > _SMALL_BYTES or self.guest is not None else 0
        broker = self.broker
        if self.guest is not None:
            broker.door.holds(self.guest, size)
            return
        broker.shared.keep(self, size)

    def _count_unsent(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self.broker.shared.unsent.set(self, self.owner, self._unsent)

    def hold_back(self) -> None:
        """Note how much waits for the socket. While there is much of it, it gets no more before that is sent."""
        self._count_unsent()
        tight = self.broker.shared.is_tight
        if tight != self._tight:
            self._tight = tight
            self.transport.set_write_buffer_limits(high=0 if tight else self.broker.limits.out_bytes_max)

    def _drain(self, size: int) -> None:
        """Bytes from a client that was told to go: nobody looks at them."""
        self._drained += size
        if self._drained > self.broker.limits.linger_bytes_max:
            self.abort()

    def _take(self, data: bytes) -> int:
        """Whatever is there as a whole; where the rest begins."""
        at, end = 0, len(data)
        limit = self.packet_limit
        self._need = 0
        runs = 0
        if self._singly and not self._pace.must_wait(_PUBLISH, 0):
            at, runs = self._take_singly(data, 0, min(self._singly, end), limit), RUNS_MAX
        while at < end and not (self._closing or self._paused) and self._held is None:
            first = data[at]
            if self._pace.must_wait(first, runs):
                break
            if self.version == UNKNOWN and first != _CONNECT:  # whatever it goes on with
                raise BadPacket(ReasonCode.PROTOCOL_ERROR, "the first packet is no CONNECT")
            after = at if self.session is None else self._take_many(self.session, data, at, end, limit)
            if self._need:
                return after
            if after != at:
                at, runs = after, runs + 1
                continue
            after = self._take_one(data, at, end, limit)
            if after == at:
                return at
            at, runs = after, RUNS_MAX
        return at

    def _take_many(self, session: Session, data: bytes, at: int, end: int, limit: int) -> int:
        """Plain messages or acknowledgements that follow each other; where they end."""
        if data[at] & 0xF0 == _PUBLISH:
            return self._take_bulk(data, at, end, limit)
        if data[at] == _PUBACK:
            acks = kernel.mqtt_pubacks(data, at, end)
            if acks.packet_ids:
                self.broker.acknowledgements.acknowledged(session, acks.packet_ids)
                return int(acks.end)
        return at

    def _take_bulk(self, data: bytes, at: int, end: int, limit: int) -> int:
        """Plain messages, all that follow each other; where they end. `_need` is set if one isn't all there."""
        assert self.session is not None
        inbox = self.broker.intake.inbox
        count, stopped, reason, need = inbox.take(
            self, data, at, end, self.version, limit, time.time_ns(), *self.properties
        )
        if count and not self.publish_all and not self._may_publish(self.session, inbox.topics()):
            inbox.undo()
            self._singly = stopped - at
            return self._take_singly(data, at, stopped, limit)
        if count:
            self.broker.turn_soon()
        if reason == INCOMPLETE:
            self._need = end - stopped + need
        return int(stopped)

    def _may_publish(self, session: Session, topics: list[bytes]) -> bool:
        """Whether messages may be published to all of these."""
        verdicts, rights = self.broker.access.verdicts, session.rights
        return all(verdicts.may_publish(rights, topic.decode()) for topic in topics)

    def _take_singly(self, data: bytes, at: int, end: int, limit: int) -> int:
        """Messages of which some may not be published: each gets its own answer."""
        slices = self.broker.slices
        while at < end and not self._closing:
            after = self._take_one(data, at, end, limit)
            self._singly, at = self._singly - (after - at), after
            if not slices.has_time():
                break
        self._singly *= at < end
        return at

    def _take_one(self, data: bytes, at: int, end: int, limit: int) -> int:
        """The same as `_packet`; and the time that it took is time that others didn't have."""
        begun = time.perf_counter()
        after = self._packet(data, at, end, limit)
        self.broker.slices.use(time.perf_counter() - begun)
        return after

    def _packet(self, data: bytes, at: int, end: int, limit: int) -> int:
        """One packet; where it ends, or where it begins if it isn't all there."""
        if data[at] & 0xF0 != _PUBLISH:
            limit = min(limit, self.broker.limits.control_bytes_max) if self.session is not None else limit
        split = kernel.mqtt_split(data, at, end, limit, 1)
        if not split.starts:
            if split.reason == INCOMPLETE:
                self._need = end - at + split.need
                return at
            if self.version == UNKNOWN and data.find(_MQTT_5, at + 2, at + 12) > 0:
                self.version = MQTT_5_0  # it can be told that its CONNECT is too large
            raise bad_frame(split.reason, limit)
        if data[at] == _CONNECT and self.version != UNKNOWN:  # whatever else may be wrong with it
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")
        try:
            place = split.starts[0], split.bodies[0], split.ends[0]
            packet = decode(data, *place, self.version, properties_bytes_max=self._properties_max)
        except BadPacket as error:
            if self.version == UNKNOWN and error.reason_code in _REASONS_OF_CONNECT:
                self.version = 5 if connect_level(data, split.bodies[0], split.ends[0]) >= MQTT_5_0 else 4
            raise
        self._handle(packet)
        return int(split.ends[0])

    def _handle(self, packet: Packet) -> None:
        broker, session = self.broker, self.session
        if isinstance(packet, Connect):
            self.version = packet.version
            broker.clients.connect(self, packet)
        elif session is None:
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, "a packet before the CONNECT was answered")
        elif isinstance(packet, Publish):
            self._publish(session, packet)
        elif isinstance(packet, Puback):
            broker.acknowledgements.acknowledged(session, (packet.packet_id,))
        elif isinstance(packet, Pingreq):
            self.send(_PINGRESP)
        elif isinstance(packet, Disconnect):
            broker.clients.disconnect(self, packet)
        elif type(packet) in broker.handlers:
            broker.handlers[type(packet)](session, packet)
        else:
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, f"{packet.type.name} is nothing that was asked for")

    def _publish(self, session: Session, packet: Publish) -> None:
        alias = packet.properties.pop("topic_alias", 0)
        if alias or not packet.topic:
            packet.topic = self._inbound.resolve(packet.topic, alias)
        self.broker.publish(self, session, packet)

    # -- for the broker

    def take_place(self, guest: Guest) -> None:
        """It has a place before the door, from before its TLS handshake."""
        self.guest = guest

    def hold(self, for_what: Future[Any]) -> None:
        """What comes next has to wait. Its socket is read on, or nobody would see that the client closed it."""
        self._held = for_what
        if self.guest is not None:
            self.guest.held = True

    def go_on(self, answer: Callable[..., None], packet: Connect | None, *found: Any) -> None:
        """What it waited for is known: answer, and take what has come meanwhile."""
        self._held = None
        if self.guest is not None:
            self.guest.held = False
        if self._closing:
            return
        try:
            answer(self, packet, *found)
        except BadPacket as error:
            self.refuse(error.reason_code, str(error))
        except Exception as error:
            self.fail(error)
        if not self._closing and self._held is None:
            rest, self._rest, self._need = bytes(self._rest), bytearray(), 0
            self.data_received(rest)
            waits = cast(Any, self)._held is not None and len(self._rest) > _HELD_BYTES_MAX
            if not (self._closing or self._paused or waits):
                self.transport.resume_reading()

    def accept(self, session: Session, connect: Connect, publish_all: bool) -> None:
        """It is this session's from now on."""
        wanted = connect.properties
        self.session = session
        self.broker.door.entered(self)
        self.owner = self.peer_host if self.user is None else self.user
        self.packet_limit = self.broker.limits.packet_bytes_max
        self.ready = True
        self.publish_all = publish_all
        self.keep_alive = connect.keep_alive
        limits = self.broker.limits
        self._inbound = InboundAliases(limits.topic_alias_max, limits.alias_bytes_max)
        self.packet_bytes_max = wanted.get("maximum_packet_size", _PACKET_BYTES_MAX)
        if wanted.get("topic_alias_maximum"):
            self.aliases = OutboundAliases(wanted["topic_alias_maximum"], limits.alias_bytes_max)
        self.particular = self.aliases is not None or "maximum_packet_size" in wanted

    def send(self, data: bytes) -> None:
        """Bytes to the client: at once what the socket takes, where a transport would wait for the loop."""
        if self._closing or self.transport.is_closing():
            return
        self.broker.system.bytes_sent += len(data)
        if self._file >= 0 and self.transport.get_write_buffer_size() == 0:
            try:
                sent = os.write(self._file, data)
            except OSError:  # the socket is full, or broken: the transport knows what to do
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self.transport.write(data)
        self.check_unsent()

    def check_unsent(self) -> None:
        """Something was written that may have to wait for the socket."""
        self._count_unsent()
        if self.broker.shared.is_tight:
            self.hold_back()
            self.broker.shared.relieve()
        if not (self.ready or self._paused or self._closing):
            # It gets no messages now, only answers: a client that doesn't read these either isn't read from.
            limit = 0 if self.broker.shared.is_tight else _ANSWERS_MAX * self.broker.limits.out_bytes_max
            if self._unsent > limit:
                self._paused = True
                self.transport.pause_reading()

    def send_packet(self, packet: Any) -> None:
        """A packet to the client; one larger than it takes is left out."""
        data = encode(packet, self.version if self.version != UNKNOWN else MQTT_5_0)
        if len(data) <= self.packet_bytes_max:
            self.send(data)

    def refuse(self, reason: int, why: str) -> None:
        """End the connection because of what the client did, and tell it why, if its version can."""
        if self._closing:
            return
        self.visit.why = self.visit.why or why
        if self.session is None:
            self.broker.visits.refused(self.visit.event, self, reason=self.visit.why)
        told: Properties = {"reason_string": why[:1000]}
        if self.session is None and self.version != UNKNOWN:
            self.send_packet(Connack(False, reason, told if self.version == MQTT_5_0 else {}))
        elif self.session is not None and self.version == MQTT_5_0:
            self.send_packet(Disconnect(reason, told))
        else:
            self.close()
            return
        self.linger()

    def fail(self, error: Exception) -> None:
        """End the connection because of what went wrong here."""
        if isinstance(error, OSError | ForelogError):  # a disk that is full, and the like: no defect of ours
            logger.error("broker: %s is disconnected: %s", self.peer, error)
            self.refuse(ReasonCode.QUOTA_EXCEEDED, "the log can't be written")
            return
        logger.error("broker: %s is disconnected", self.peer, exc_info=error)
        self.refuse(ReasonCode.UNSPECIFIED_ERROR, "the server has failed")

    def linger(self) -> None:
        """Close our side, after what is to be sent is. The client has some time to read it and close its own."""
        if self._closing:
            return
        door, limits = self.broker.door, self.broker.limits
        if not limits.linger_seconds or len(door.lingering) >= limits.unconnected_max:
            self.close()
            return
        self._end()
        door.lingering.add(self)
        self._timer = self.broker.loop.call_later(limits.linger_seconds, self.abort)
        with contextlib.suppress(OSError, RuntimeError):  # the socket is gone already
            self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
        self.broker.loop.call_soon(self.broker.left, self)

    def close(self) -> None:
        """After what is to be sent is; a client that doesn't read it doesn't keep it for long."""
        if not self._closing:
            self._end()
            if self.transport.get_write_buffer_size():
                self._timer = self.broker.loop.call_later(self.broker.limits.linger_seconds, self.abort)
            self.transport.close()

    def abort(self) -> None:
        """At once."""
        self._end()
        self.transport.abort()

    def _end(self) -> None:
        self._closing = True
        self.ready = False
        self._rest = bytearray()
        if self._kept and self.guest is None:
            self.broker.shared.partial.drop(self)
