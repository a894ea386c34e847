"""Clients come and go: CONNECT, takeover, and sessions that end by themselves.

A session belongs to its user. A client of another user that comes with the same id is turned away, whether or not
the session's own client is connected. A session whose user is gone from the file is ended when somebody comes with
its id. One that nobody owns, as those of a broker without users, is the first user's that comes for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from forelog.broker.access.rights import NOTHING
from forelog.broker.connections.visits import reason_text
from forelog.broker.limits import NEVER
from forelog.broker.mqtt import (
    MQTT_5_0,
    BadPacket,
    Connack,
    Connect,
    Disconnect,
    Properties,
    ReasonCode,
    Will,
)
from forelog.broker.sessions.session import Session
from forelog.broker.sessions.wills import Wills
from forelog.errors import ForelogError
from forelog.formats.messages.msgpack import pack
from forelog.serving.tls import peer_name
from forelog.times import SECOND_NS

if TYPE_CHECKING:
    from forelog.broker.broker import Broker
    from forelog.broker.connections.connection import Connection

__all__ = ["Clients"]

logger = logging.getLogger("forelog")


class Clients:
    """Who is here, and who was."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.connections: set[Connection] = set()
        self.sessions = broker.memory.sessions
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._wills = Wills(broker)

    def restore(self) -> None:
        """After a start: everybody is away since now at the latest."""
        for session in list(self.sessions.values()):
            if session.ended_ns is None:
                session.ended_ns = time.time_ns()
                self._broker.memory.note_session(session)
            self._expire_later(session)
            self._judge_away(session)
            self._broker.holdings.restore(session)

    # -- coming

    def connect(self, connection: Connection, packet: Connect) -> None:
        """A CONNECT: whether it may come in. If that takes a while to find out, what it sends next waits."""
        access, visit = self._broker.access, connection.visit
        secured = connection.transport.get_extra_info("ssl_object") if access.user_from_certificate else None
        if secured is not None:  # whatever name the client gives: this one was checked
            packet.user_name, packet.password = peer_name(secured), None
        visit.claims(packet)
        most = self._broker.limits.name_bytes_max
        if len(packet.client_id.encode()) > most:
            raise BadPacket(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, f"the client id has more than {most} bytes")
        if packet.user_name is not None and len(packet.user_name.encode()) > most:
            raise BadPacket(ReasonCode.BAD_USER_NAME_OR_PASSWORD, f"the user name has more than {most} bytes")
        visit.known = access.password_of(packet.user_name)
        if secured is not None:
            named = packet.user_name is not None and access.knows(packet.user_name)
            self._admit(connection, packet, None if named else ReasonCode.NOT_AUTHORIZED)
            return
        allowed = access.admit(packet.user_name, packet.password, connection.peer_host)
        if not isinstance(allowed, Future):
            self._admit(connection, packet, allowed)
            return
        connection.hold(allowed)

        def found(told: Future[ReasonCode | None]) -> None:
            if not told.cancelled():
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    self._broker.loop.call_soon_threadsafe(connection.go_on, self._admit, packet, told.result())

        allowed.add_done_callback(found)

    def _admit(self, connection: Connection, packet: Connect, refused: ReasonCode | None) -> None:
        """A session for it, or a reason why not."""
        access, visit = self._broker.access, connection.visit
        if refused is None and access.password_of(packet.user_name) != visit.known:
            refused = ReasonCode.BAD_USER_NAME_OR_PASSWORD  # the users have changed while it waited
        if refused is not None:
            visit.event = "login refused"
            raise BadPacket(refused, reason_text(refused))
        broker, limits = self._broker, self._broker.limits
        known = self.sessions.get(packet.client_id)
        if not broker.door.has_room() and (known is None or known.connection is None):
            raise BadPacket(ReasonCode.SERVER_BUSY, "there are as many clients as there may be")
        if packet.will is not None:
            topic = packet.will.topic
            if topic.startswith("$") or not access.may_publish(packet.user_name, packet.client_id, topic):
                raise BadPacket(ReasonCode.NOT_AUTHORIZED, "its will may not be published")
        if "authentication_method" in packet.properties:
            raise BadPacket(
                ReasonCode.BAD_AUTHENTICATION_METHOD, "authentication in several steps isn't known here"
            )
        broker.turn()  # what was published before is before
        told: Properties = {}
        client_id = packet.client_id
        if not client_id:
            if packet.version != MQTT_5_0 and not packet.clean_start:
                raise BadPacket(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a session to be kept needs a client id")
            client_id = told["assigned_client_identifier"] = f"forelog-{secrets.token_hex(8)}"
        connection.user, visit.client_id = packet.user_name, client_id
        session, present = self._session(connection, client_id, packet)
        self._expiry(session, packet, told)
        self._hold(session, access.owner(packet.user_name) or "", packet.will, present)
        session.will = packet.will
        session.in_flight_max = min(limits.in_flight_max, packet.properties.get("receive_maximum", 65_535))
        if packet.keep_alive > limits.keep_alive_max or (not packet.keep_alive and limits.keep_alive_max < 65_535):
            packet.keep_alive = limits.keep_alive_max
            told["server_keep_alive"] = limits.keep_alive_max
        sender = {"from": client_id}
        connection.properties = (pack(sender), pack({"qos": 1, **sender}))
        session.owner = access.owner(packet.user_name)
        self._judge(session, connection)
        self._note(session, present)
        connection.accept(session, packet, session.rights.publishes_all)
        session.connection, session.ended_ns = connection, None
        broker.visits.happened(
            "connected",
            connection,
            version=packet.version,
            session="resumed" if present else "new",
            expiry=session.expiry_seconds,
            keep_alive=packet.keep_alive,
        )
        self._connack(connection, present, told)
        broker.subscriptions.join(session, connection)

    def _hold(self, session: Session, owner: str, will: Will | None, present: bool) -> None:
        """Count what a session takes. Raises BadPacket if that is too much: then it is as it was, or gone."""
        holdings = self._broker.holdings
        if not holdings.begin(session, owner, will, durable=session.durable):
            if present:
                self._expire_later(session)
            else:
                self.end(session)
            raise BadPacket(ReasonCode.QUOTA_EXCEEDED, "there are too many sessions, or they are too large")
        holdings.settle(session)

    def _note(self, session: Session, present: bool) -> None:
        """A client is here: that is known after a crash, too. If it can't be, there is no half of a session."""
        if not (session.durable or present):
            return
        memory, ended_ns = self._broker.memory, session.ended_ns
        session.ended_ns = None
        memory.note_session(session)
        try:
            memory.flush()
        except (OSError, ForelogError) as error:
            session.will = None
            if present:
                session.ended_ns = ended_ns or time.time_ns()
                memory.note_session(session)
                self._expire_later(session)
            else:
                self.end(session)
            raise BadPacket(ReasonCode.SERVER_UNAVAILABLE, f"sessions can't be written: {error}") from None

    async def resume(self, session: Session, connection: Connection) -> None:
        """What was under way first, then what comes after it."""
        await self._broker.catchup.resend(session, connection)
        self._broker.has_room(session)

    def _session(self, connection: Connection, client_id: str, packet: Connect) -> tuple[Session, bool]:
        """The session of a client: the one it had, or a new one; and whether it had one."""
        session = self._own(connection, client_id)
        if client_id in self._timers:
            self._timers.pop(client_id).cancel()
        if not packet.clean_start:
            self._wills.cancel(client_id)
        if session is not None and session.connection is not None:
            old = session.connection
            old.refuse(ReasonCode.SESSION_TAKEN_OVER, f"taken over from {connection.peer}")
            self.left(old, taken_over=not packet.clean_start)
            session = self.sessions.get(client_id)
        if session is not None and packet.clean_start:
            self.end(session)
            session = None
        if session is not None:
            return session, True
        session = Session(client_id, self._broker.history.end, self._broker.limits.in_flight_max)
        session.main.go_live(self._broker.history.end)
        self.sessions[client_id] = session
        return session, False

    def _own(self, connection: Connection, client_id: str) -> Session | None:
        """The session of a client id, if it is this user's. Raises BadPacket if it is another's."""
        access, session = self._broker.access, self.sessions.get(client_id)
        if session is None or access.may_take(connection.user, session.owner):
            return session
        if session.connection is not None or not access.is_orphan(session.owner):
            connection.visit.event = "takeover refused"
            raise BadPacket(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client id is another user's")
        self.end(session)
        return None

    def _expiry(self, session: Session, packet: Connect, told: Properties) -> None:
        if packet.version == MQTT_5_0:
            wanted = packet.properties.get("session_expiry_interval", 0)
        else:
            wanted = 0 if packet.clean_start else NEVER
        session.expiry_seconds = min(wanted, self._broker.limits.session_expiry_max)
        if session.expiry_seconds != wanted:
            told["session_expiry_interval"] = session.expiry_seconds

    def _connack(self, connection: Connection, present: bool, told: Properties) -> None:
        limits = self._broker.limits
        if connection.version == MQTT_5_0:
            told["receive_maximum"] = min(limits.receive_max, 65_535)
            told["maximum_packet_size"] = limits.packet_bytes_max
            told["topic_alias_maximum"] = limits.topic_alias_max
        else:
            told = {}
        connection.send_packet(Connack(present, 0, told))

    # -- going

    def disconnect(self, connection: Connection, packet: Disconnect) -> None:
        """A client says goodbye, as it should."""
        session = connection.session
        assert session is not None
        wanted = packet.properties.get("session_expiry_interval")
        if wanted is not None:
            if wanted and not session.expiry_seconds:
                raise BadPacket(
                    ReasonCode.PROTOCOL_ERROR, "a session that was to end with its connection can't last"
                )
            session.expiry_seconds = min(wanted, self._broker.limits.session_expiry_max)
        connection.normal_end = packet.reason_code != ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        connection.visit.why = "disconnect" if connection.normal_end else "disconnect with will"
        connection.close()

    def left(self, connection: Connection, *, taken_over: bool = False) -> None:
        """A connection is no more, however that came."""
        self.connections.discard(connection)
        session = connection.session
        if session is None or session.connection is not connection:
            return
        broker = self._broker
        broker.turn()
        session.connection, session.resending = None, False
        broker.access.verdicts.forget(session.rights)
        session.wake()
        broker.subscriptions.leave(session)
        for cursor in session.cursors.values():
            if cursor.live:
                cursor.fall_behind(broker.delivery.given(cursor))
        session.ended_ns = time.time_ns()
        broker.visits.ended(connection)
        will, session.will = session.will, None
        if will is not None and not connection.normal_end:
            self._wills.left(session, connection, will, taken_over=taken_over)
        if not session.durable and not taken_over:
            self.end(session)
        else:
            broker.memory.note_session(session)
            broker.memory.try_flush()
            self._expire_later(session)

    def end(self, session: Session) -> None:
        """Forget a session."""
        broker = self._broker
        broker.subscriptions.forget(session)
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
            broker.holdings.end(session)
            broker.memory.note("end", session.client_id)
            broker.memory.try_flush()
        self._wills.due(session.client_id)

    def _expire_later(self, session: Session) -> None:
        expires = session.expires_ns()
        if expires is not None:
            delay = min(max((expires - time.time_ns()) / SECOND_NS, 0), 86_400)
            self._timers[session.client_id] = self._broker.loop.call_later(delay, self._expires, session)

    def _expires(self, session: Session) -> None:
        """Many may expire in the same moment."""
        self._broker.slices.later(self, lambda: self._expire(session))

    def _expire(self, session: Session) -> None:
        self._timers.pop(session.client_id, None)
        if session.connection is not None or self.sessions.get(session.client_id) is not session:
            return
        expires = session.expires_ns()
        if expires is not None and expires <= time.time_ns():
            self._broker.visits.notices.info("session expired", "", client=session.client_id, user=session.owner)
            self.end(session)
        else:
            self._expire_later(session)

    # -- rights

    def judge_again(self) -> None:
        """Who may do what has changed."""
        access = self._broker.access
        gone: dict[Connection, str] = {}
        for session in self.sessions.values():  # all of them first: nothing is sent before each has its rights
            connection = session.connection
            if connection is None:
                self._judge_away(session)
                continue
            self._judge(session, connection)
            connection.publish_all = session.rights.publishes_all
            if not access.knows(connection.user):
                gone[connection] = "its user is gone"
            elif access.password_of(connection.user) != connection.visit.known:
                gone[connection] = "its user has another password"
            if connection in gone:
                session.rights, connection.publish_all = NOTHING, False
        self._broker.subscriptions.judge_again()
        for connection, why in gone.items():
            connection.refuse(ReasonCode.ADMINISTRATIVE_ACTION, why)
        for session in list(self.sessions.values()):
            if session.connection is not None:
                self._broker.has_room(session)

    def _judge(self, session: Session, connection: Connection) -> None:
        """What a client may do now."""
        session.rights = self._broker.access.rights(connection.user, session.client_id)
        for cursor in session.cursors.values():
            cursor.judge_again()

    def _judge_away(self, session: Session) -> None:
        """What the client of a session may do that isn't here: its groups need to know that, and nobody else."""
        if session.groups:
            session.rights = self._broker.access.rights_of_owner(session.owner, session.client_id)

    # -- looking after them

    def sweep(self, now: float) -> None:
        """Who hasn't been heard of for too long is gone."""
        late = [
            connection
            for connection in self.connections
            if connection.keep_alive and now - connection.heard > connection.keep_alive * 1.5
        ]
        if late:
            self._broker.slices.add(self, self._dismissing(late))

    def _dismissing(self, late: list[Connection]) -> Iterator[None]:
        why = "nothing was heard for one and a half keep alives"
        for connection in late:
            connection.refuse(ReasonCode.KEEP_ALIVE_TIMEOUT, why)
            self.left(connection)
            yield
