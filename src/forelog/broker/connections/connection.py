"""One client's connection: turns bytes from its socket into packets, and does what each packet asks for.

Plain messages aren't decoded. The kernel takes a whole read of them in one call, and returns bytes for the log and
acknowledgements. All other packets are decoded one by one, strictly. A packet that MQTT forbids ends the
connection, with the reason code of the standard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from forelog import kernel
from forelog.broker.connections.admission import Pending
from forelog.broker.connections.inputs import Input
from forelog.broker.connections.output import Output
from forelog.broker.connections.pace import RUNS_MAX, TOPICS_MAX, Pace
from forelog.broker.connections.peer import Peer
from forelog.broker.connections.services import Services
from forelog.broker.mqtt.aliases import InboundAliases, OutboundAliases
from forelog.broker.mqtt.decode import UNKNOWN, bad_frame, connect_level, decode
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    MQTT_5_0,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Properties,
    Puback,
    Publish,
)
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.notices import Visit
from forelog.broker.sessions.session import Session
from forelog.errors import BadPacket, ForelogError
from forelog.kernel.types import INCOMPLETE
from forelog.serving.tls import tls_hint

logger = logging.getLogger("forelog")

_CONNECT, _PUBLISH, _PUBACK, _PINGREQ = 0x10, 0x30, 0x40, 0xC0
_PINGREQS = re.compile(rb"(?:\xc0\x00)+")
_MQTT_5 = b"\x00\x04MQTT\x05"
_HELD_BYTES_MAX = 16 << 10
"""Bytes that a client may send while its password is checked; then its socket isn't read any more."""
_PINGRESP = b"\xd0\x00"
_REASONS_OF_CONNECT = (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
"""Reasons for which the version of a refused CONNECT is known well enough to answer it."""
_PACKET_BYTES_MAX = 0x1000_0004  # MQTT's own limit
_SMALL_BYTES = 4096
"""Incomplete packets up to this size aren't counted: nearly every read ends with one."""


class Connection(Peer, Input, Output):
    """The connection of a client. `sessions.session.Link` documents what other parts use of it."""

    def __init__(self, services: Services, *, plain: bool = False) -> None:
        self._services = services
        self._inputs = services.inputs
        self._plain = plain
        """Whether bytes go to the socket as they are: no TLS, no WebSocket."""
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.version = UNKNOWN
        self.session: Session | None = None
        self.client_id = ""
        self.user: str | None = None
        self.visit = Visit()
        self.ready = False
        self.own_packets = False
        self.aliases: OutboundAliases | None = None
        self.packet_bytes_max = _PACKET_BYTES_MAX
        self.keep_alive = 0
        self.heard = time.monotonic()
        self.normal_end = False
        self.properties = (b"\x80", b"\x80")
        self.pending: Pending | None = None
        """The connection's place among pending ones, until its CONNECT is accepted."""
        self.inside = self._closing = self._paused = False
        self.owner = ""
        """The client's user, or its address if it has none: the owner of its shares."""
        self._inbound = InboundAliases(0)
        self._rest = bytearray()
        self._need = 0
        self.packet_limit = services.limits.connect_bytes_max
        """The largest packet that the client may send now."""
        self._properties_max = services.limits.properties_bytes_max
        self._kept = 0
        """Bytes of an incomplete packet, as they are counted."""
        self.outside = 0
        """Bytes in the buffer of the client's WebSocket, as they are counted."""
        self.prepare_output(services)
        self._held: Future[Any] | None = None
        self._drained = 0
        self._singly = 0
        """Bytes of messages to take one by one, because not all of them may be published."""
        self._looked_up = 0
        """Bytes of messages whose topics were looked up while the client was held. They are handled next."""
        self._pace = Pace(services.slices, services.delivery, services.routes)
        self._timer: asyncio.TimerHandle | None = None

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=self._services.limits.out_bytes_max)
        file = self.prepare_socket()
        if self._plain:
            self._file = file
        self.owner = self.peer_host
        if self._services.admission.admit(self):
            self._services.presence.connections.add(self)
        else:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.visit.why:
            self.visit.why = "connection lost" if error is None else f"connection lost: {error}"
        self._closing = True
        self._file = -1
        self.ready = False
        if self._held is not None:
            self._held.cancel()
            self._held = None  # it may refer to this connection
        if self._timer is not None:
            self._timer.cancel()
        self.end_output()
        self._inputs.drop(self)
        self._services.admission.lingering.discard(self)
        self._services.buffers.unsent.drop(self)
        self._services.slices.soon(self, self._left)  # many may be closed at once

    def _left(self) -> None:
        self._services.buffers.partial.drop(self)
        self._services.clients.left(self)
        self._services.admission.left(self)

    def pause_writing(self) -> None:
        self.ready = False

    def resume_writing(self) -> None:
        if self._closing:
            return
        self.hold_back()
        if self._paused:
            self._paused = False
            self.go_on()
            if self._rest:
                self._services.loop.call_soon(self.data_received, b"")
        if self.session is not None:
            self.ready = True
            self._services.turns.resume(self.session)

    def data_received(self, data: bytes) -> None:
        services = self._services
        self.heard = services.turns.now
        services.traffic.received += len(data)
        if self._rest or self._held is not None:
            self._rest += data
            if self.waits():
                self.transport.pause_reading()
            if self._held is not None or len(self._rest) < self._need:
                self.count_kept()  # a large packet: not parsed again before it is complete
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

    def waits(self) -> bool:
        return self._paused or (self._held is not None and len(self._rest) > _HELD_BYTES_MAX)

    # -- bytes

    def count_kept(self) -> None:
        """Count the bytes of an incomplete packet. Past the limits of all clients, one of them is disconnected."""
        size = 0 if self._closing else len(self._rest) + self.outside
        self._kept = size = size if size > _SMALL_BYTES or self.pending is not None else 0
        if self.pending is not None:
            self._services.admission.holds(self.pending, size)
        else:
            self._services.buffers.keep(self, size)

    def _drain(self, size: int) -> None:
        """Drop bytes from a client that was disconnected, up to a limit."""
        self._drained += size
        if self._drained > self._services.limits.linger_bytes_max:
            self.abort()

    def _take(self, data: bytes) -> int:
        """Handle all complete packets; returns where the rest begins."""
        at, end = 0, len(data)
        limit = self.packet_limit
        self._need = runs = 0
        if self._singly and not self._pace.must_wait(self, _PUBLISH, 0):
            at, runs = self._take_singly(data, 0, min(self._singly, end), limit), RUNS_MAX
        while at < end and not (self._closing or self._paused) and self._held is None:
            if self._pace.must_wait(self, data[at], runs):
                break
            if self.version == UNKNOWN and data[at] != _CONNECT:  # whatever follows
                raise BadPacket(ReasonCode.PROTOCOL_ERROR, "the first packet isn't CONNECT")
            after = at if self.session is None else self._take_many(self.session, data, at, end, limit)
            if self._need or self._held is not None:
                return after
            if after != at:
                at, runs = after, runs + 1
                continue
            if (after := self._take_one(data, at, end, limit)) == at:
                return at
            at, runs = after, RUNS_MAX
        return at

    def _take_many(self, session: Session, data: bytes, at: int, end: int, limit: int) -> int:
        """Take consecutive plain messages, acknowledgements or pings; returns where they end."""
        if data[at] & 0xF0 == _PUBLISH:
            return self._take_bulk(data, at, end, limit)
        if data[at] == _PINGREQ and (pings := _PINGREQS.match(data, at, end)) is not None:
            self.send(_PINGRESP * ((pings.end() - at) // 2))
            return pings.end()
        if data[at] == _PUBACK:
            acks = kernel.mqtt_pubacks(data, at, end)
            if acks.packet_ids:
                self._services.acknowledgements.acknowledged(session, acks.packet_ids)
                return int(acks.end)
        return at

    def _take_bulk(self, data: bytes, at: int, end: int, limit: int) -> int:
        """Take consecutive plain messages; returns where they end. Sets `_need` if the next is incomplete."""
        assert self.session is not None
        intake, pace, verdicts = self._services.intake, self._pace, self._services.access.verdicts
        until = min(at + self._looked_up, end) if self._looked_up else end
        count, stopped, reason, need = intake.take(self, data, at, until, limit)
        rights = self.session.rights
        if count and not rights.publishes_all and not verdicts.may_publish_all(rights, intake.topics()):
            intake.undo()
            self._singly = stopped - at
            return self._take_singly(data, at, stopped, limit)
        if count and not (self._looked_up or pace.is_easy) and (new := pace.new(intake.topics())):
            if len(new) > TOPICS_MAX:
                intake.undo()
                count, stopped, reason, need = intake.take(self, data, at, end, limit, TOPICS_MAX)
                new = pace.new(intake.topics())
            if not pace.look_up(self, new):
                intake.undo()
                self._looked_up = stopped - at
                return at
        if count:
            self._looked_up = 0
            self._services.turns.soon()
        if reason == INCOMPLETE:
            self._need = end - stopped + need
        return int(stopped)

    def _take_singly(self, data: bytes, at: int, end: int, limit: int) -> int:
        """Take messages one by one, because some of them may not be published."""
        slices = self._services.slices
        while at < end and not self._closing:
            after = self._take_one(data, at, end, limit)
            self._singly, at = self._singly - (after - at), after
            if self._held is not None or not slices.has_time():
                break
        self._singly *= at < end
        return at

    def _take_one(self, data: bytes, at: int, end: int, limit: int) -> int:
        """Take one packet, as `_packet` does, and count the time for the slices of all clients."""
        begun = time.perf_counter()
        after = self._packet(data, at, end, limit)
        self._services.slices.use(time.perf_counter() - begun)
        return after

    def _packet(self, data: bytes, at: int, end: int, limit: int) -> int:
        """Take one packet; returns where it ends, or where it begins if it is incomplete."""
        if data[at] & 0xF0 != _PUBLISH:
            limit = min(limit, self._services.limits.control_bytes_max) if self.session is not None else limit
        split = kernel.mqtt_split(data, at, end, limit, 1)
        if not split.starts:
            if split.reason == INCOMPLETE:
                self._need = end - at + split.need
                return at
            if self.version == UNKNOWN and data.find(_MQTT_5, at + 2, at + 12) > 0:
                self.version = MQTT_5_0  # so that it can be told that its CONNECT is too large
            raise bad_frame(split.reason, limit)
        if data[at] == _CONNECT and self.version != UNKNOWN:  # even if it is malformed
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, "a second CONNECT")
        try:
            place = split.starts[0], split.bodies[0], split.ends[0]
            packet = decode(data, *place, self.version, properties_bytes_max=self._properties_max)
        except BadPacket as error:
            if self.version == UNKNOWN and error.reason_code in _REASONS_OF_CONNECT:
                self.version = 5 if connect_level(data, split.bodies[0], split.ends[0]) >= MQTT_5_0 else 4
            raise
        if isinstance(packet, Publish) and self.session is not None:
            self._inbound.apply(packet)
            new, may = self._pace.new([packet.topic.encode()]), self._services.access.verdicts.may_publish_all
            if new and not self._looked_up and may(self.session.rights, new) and not self._pace.look_up(self, new):
                self._looked_up = split.ends[0] - at
                return at
            self._looked_up = 0
        self._handle(packet)
        return int(split.ends[0])

    def _handle(self, packet: Packet) -> None:
        services, session = self._services, self.session
        if isinstance(packet, Connect):
            self.version = packet.version
            services.clients.connect(self, packet)
        elif session is None:
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, "a packet before the CONNECT was answered")
        elif isinstance(packet, Publish):
            services.publications.publish(self, session, packet)
        elif isinstance(packet, Puback):
            services.acknowledgements.acknowledged(session, (packet.packet_id,))
        elif isinstance(packet, Pingreq):
            self.send(_PINGRESP)
        elif isinstance(packet, Disconnect):
            services.clients.disconnect(self, packet)
        elif type(packet) in services.handlers:
            services.handlers[type(packet)](session, packet)
        else:
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, f"{packet.type.name} wasn't asked for")

    # -- for other parts of the broker

    def take_place(self, pending: Pending) -> None:
        """Take over the place that its socket got before the TLS handshake."""
        self.pending = pending

    def hold(self, awaited: Future[Any]) -> None:
        """Handle no more packets until `resume`. The socket is still read, to notice that the client closes it."""
        self._held = awaited
        if self.pending is not None:
            self.pending.held = True

    def resume(self, work: Callable[[], None] | None = None) -> None:
        """Do what `hold` waited for, then handle what has come meanwhile."""
        self._held = None
        if self.pending is not None:
            self.pending.held = False
        if self._closing:
            return
        try:
            if work is not None:
                work()
        except BadPacket as error:
            self.refuse(error.reason_code, str(error))
        except Exception as error:
            self.fail(error)
        if not (self._closing or self._held):
            rest, self._rest, self._need = bytes(self._rest), bytearray(), 0
            self.data_received(rest)
            if not self._closing:
                self.go_on()

    def accept(self, session: Session, connect: Connect) -> None:
        """Serve a session from now on, as its CONNECT asks for."""
        wanted, limits = connect.properties, self._services.limits
        self.session, self.client_id = session, session.client_id
        self._services.admission.entered(self)
        self.owner = self.peer_host if self.user is None else self.user
        self.packet_limit = limits.packet_bytes_max
        self.ready = True
        self.keep_alive = connect.keep_alive
        self._inbound = InboundAliases(limits.topic_alias_max, limits.alias_bytes_max)
        self.packet_bytes_max = wanted.get("maximum_packet_size", _PACKET_BYTES_MAX)
        if wanted.get("topic_alias_maximum"):
            self.aliases = OutboundAliases(wanted["topic_alias_maximum"], limits.alias_bytes_max)
        self.own_packets = self.aliases is not None or "maximum_packet_size" in wanted

    def send_packet(self, packet: Any) -> None:
        """Send a packet, unless it is larger than the client takes."""
        data = encode(packet, self.version if self.version != UNKNOWN else MQTT_5_0)
        if len(data) <= self.packet_bytes_max:
            self.send(data)

    def refuse(self, reason: int, why: str) -> None:
        """Disconnect the client because of what it did, and send it the reason if its version can."""
        if self._closing:
            return
        self.visit.why = self.visit.why or why
        if self.session is None:
            self._services.notices.refused(self.visit.event, self, reason=self.visit.why)
        properties: Properties = {"reason_string": why[:1000]}
        if self.session is None and self.version != UNKNOWN:
            self.send_packet(Connack(False, reason, properties if self.version == MQTT_5_0 else {}))
        elif self.session is not None and self.version == MQTT_5_0:
            self.send_packet(Disconnect(reason, properties))
        else:
            self.close()
            return
        self.linger()

    def fail(self, error: Exception) -> None:
        """Disconnect the client because of an error of the broker."""
        if isinstance(error, OSError | ForelogError):  # such as a full disk: no bug
            logger.error("broker: %s is disconnected: %s", self.peer, error)
            self.refuse(ReasonCode.QUOTA_EXCEEDED, "the log can't be written")
            return
        logger.error("broker: %s is disconnected", self.peer, exc_info=error)
        self.refuse(ReasonCode.UNSPECIFIED_ERROR, "the server has failed")

    def linger(self) -> None:
        """Close our side once everything is sent. The client has some time to read it and to close its side."""
        if self._closing:
            return
        services, limits = self._services, self._services.limits
        lingering = services.admission.lingering
        if not limits.linger_seconds or len(lingering) >= limits.unconnected_max:
            self.close()
            return
        self.flush()
        self._end()
        lingering.add(self)
        self._timer = services.loop.call_later(limits.linger_seconds, self.abort)
        with contextlib.suppress(OSError, RuntimeError):  # the socket is gone already
            self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
        services.slices.later(self, self._left)

    def close(self) -> None:
        """Close once everything is sent, or after a while if the client doesn't read it."""
        if not self._closing:
            self.flush()
            self._end()
            if self.transport.get_write_buffer_size():
                services = self._services
                self._timer = services.loop.call_later(services.limits.linger_seconds, self.abort)
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._end()
        self.transport.abort()

    def _end(self) -> None:
        self._closing = True
        self.ready = False
        self._rest = bytearray()
        if self._kept and self.pending is None:
            self._services.buffers.partial.drop(self)
