"""Clients come and go: CONNECT, takeover, DISCONNECT, and sessions that expire.

A session belongs to its user. A client of another user that comes with the same id is refused, whether or not the
session's own client is connected. If the user is no longer in the file of users, the session ends when another
client uses its id. A session without an owner, as in a broker without users, goes to the first user that comes for
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from forelog.broker.access.control import Access
from forelog.broker.clients.subscriptions import Subscriptions
from forelog.broker.clients.wills import Wills
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.slices import Slices
from forelog.broker.flow.turns import Turns
from forelog.broker.limits import NEVER, Limits
from forelog.broker.log.history import History
from forelog.broker.mqtt.packets import MQTT_5_0, Connack, Connect, Disconnect, Properties, Will
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.notices import ClientNotices, reason_text
from forelog.broker.sessions.presence import Presence
from forelog.broker.sessions.quotas import SessionQuotas
from forelog.broker.sessions.session import Link, Session
from forelog.broker.sessions.store import SessionStore
from forelog.errors import BadPacket, ForelogError
from forelog.formats.messages.msgpack import pack
from forelog.serving.tls import peer_name
from forelog.times import SECOND_NS


@dataclass(eq=False, slots=True)
class Clients:
    """Connects clients to sessions."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    access: Access
    store: SessionStore
    quotas: SessionQuotas
    presence: Presence
    history: History
    delivery: Delivery
    turns: Turns
    subscriptions: Subscriptions
    wills: Wills
    slices: Slices
    notices: ClientNotices
    is_full: Callable[[], bool]
    """Whether no more clients may be connected."""
    _timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict, init=False)

    def restore(self) -> None:
        """After a start: no client is connected, and sessions begin to expire now at the latest."""
        now_ns = self.store.clock.now_ns()
        for session in list(self.store.sessions.values()):
            if session.ended_ns is None:
                session.ended_ns = now_ns
                self.store.note_session(session)
            session.ended_ns = min(session.ended_ns, now_ns)  # the system's clock may have been set back
            self._expire_later(session)
            self._judge_away(session)
            self.quotas.restore(session)

    # -- coming

    def connect(self, connection: Link, packet: Connect) -> None:
        """CONNECT: accept or refuse a client. While its password is checked, its further packets wait."""
        access, visit = self.access, connection.visit
        secured = connection.transport.get_extra_info("ssl_object") if access.user_from_certificate else None
        if secured is not None:  # the certificate names the user, whatever name the client gives
            packet.user_name, packet.password = peer_name(secured), None
        visit.claims(packet)
        most = self.limits.name_bytes_max
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

        def checked(found: Future[ReasonCode | None]) -> None:
            if not found.cancelled():
                admit = functools.partial(self._admit, connection, packet, found.result())
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    self.loop.call_soon_threadsafe(connection.resume, admit)

        allowed.add_done_callback(checked)

    def _admit(self, connection: Link, packet: Connect, refused: ReasonCode | None) -> None:
        """Give a client its session. Raises BadPacket if it may not have one."""
        limits, visit = self.limits, connection.visit
        self._check(connection, packet, refused)
        self.turns.run()  # what was published before comes before
        answer: Properties = {}
        client_id = packet.client_id
        if not client_id:
            if packet.version != MQTT_5_0 and not packet.clean_start:
                raise BadPacket(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "a durable session needs a client id")
            client_id = answer["assigned_client_identifier"] = f"forelog-{secrets.token_hex(8)}"
        connection.user, visit.client_id = packet.user_name, client_id
        session, present = self._session(connection, client_id, packet)
        self._set_expiry(session, packet, answer)
        self._hold(session, self.access.owner(packet.user_name) or "", packet.will, present)
        session.will = packet.will
        session.in_flight_max = min(limits.in_flight_max, packet.properties.get("receive_maximum", 65_535))
        if packet.keep_alive > limits.keep_alive_max or (not packet.keep_alive and limits.keep_alive_max < 65_535):
            packet.keep_alive = limits.keep_alive_max
            answer["server_keep_alive"] = limits.keep_alive_max
        sender = {"from": client_id}
        connection.properties = (pack(sender), pack({"qos": 1, **sender}))
        session.owner = self.access.owner(packet.user_name)
        self._judge(session, connection)
        self._note(session, present)
        connection.accept(session, packet)
        session.connection, session.ended_ns = connection, None
        session.window.belong(connection.owner)
        session.window_in.belong(connection.owner)
        self.notices.happened(
            "connected",
            connection,
            version=packet.version,
            session="resumed" if present else "new",
            expiry=session.expiry_seconds,
            keep_alive=packet.keep_alive,
        )
        self._answer(connection, present, answer)
        self.subscriptions.join(session, connection)

    def _check(self, connection: Link, packet: Connect, refused: ReasonCode | None) -> None:
        """Raise BadPacket if a client may not come in."""
        access, visit = self.access, connection.visit
        if refused is None and access.password_of(packet.user_name) != visit.known:
            refused = ReasonCode.BAD_USER_NAME_OR_PASSWORD  # it has changed while the client waited
        if refused is not None:
            visit.event = "login refused"
            raise BadPacket(refused, reason_text(refused))
        known = self.store.sessions.get(packet.client_id)
        if self.is_full() and (known is None or known.connection is None):
            raise BadPacket(ReasonCode.SERVER_BUSY, "too many clients are connected")
        if packet.will is not None:
            topic = packet.will.topic
            if topic.startswith("$") or not access.may_publish(packet.user_name, packet.client_id, topic):
                raise BadPacket(ReasonCode.NOT_AUTHORIZED, "its will may not be published")
        if "authentication_method" in packet.properties:
            raise BadPacket(ReasonCode.BAD_AUTHENTICATION_METHOD, "extended authentication isn't supported")

    def _hold(self, session: Session, owner: str, will: Will | None, present: bool) -> None:
        """Count a session for its user. Raises BadPacket if that is too much; then nothing has changed."""
        if not self.quotas.begin(session, owner, will, durable=session.durable):
            if present:
                self._expire_later(session)
            else:
                self.end(session)
            raise BadPacket(ReasonCode.QUOTA_EXCEEDED, "there are too many sessions, or they are too large")
        self.quotas.settle(session)

    def _note(self, session: Session, present: bool) -> None:
        """Note that a client is connected, for after a crash. Raises BadPacket if that fails."""
        if not (session.durable or present):
            return
        store, ended_ns = self.store, session.ended_ns
        session.ended_ns = None
        store.note_session(session)
        try:
            store.flush()
        except (OSError, ForelogError) as error:
            session.will = None
            if present:
                session.ended_ns = ended_ns or store.clock.now_ns()
                store.note_session(session)
                self._expire_later(session)
            else:
                self.end(session)
            raise BadPacket(ReasonCode.SERVER_UNAVAILABLE, f"sessions can't be written: {error}") from None

    def _session(self, connection: Link, client_id: str, packet: Connect) -> tuple[Session, bool]:
        """The session of a client, and whether it existed before."""
        session = self._own(connection, client_id)
        if client_id in self._timers:
            self._timers.pop(client_id).cancel()
        if not packet.clean_start:
            self.wills.cancel(client_id)
        if session is not None and session.connection is not None:
            old = session.connection
            old.refuse(ReasonCode.SESSION_TAKEN_OVER, f"taken over from {connection.peer}")
            self.left(old, taken_over=not packet.clean_start)
            session = self.store.sessions.get(client_id)
        if session is not None and packet.clean_start:
            self.end(session)
            session = None
        if session is not None:
            return session, True
        session = Session(client_id, self.history.end, self.limits.in_flight_max)
        session.main.go_live(self.history.end)
        session.window, session.window_in = self.quotas.windows(connection.owner)
        self.store.sessions[client_id] = session
        return session, False

    def _own(self, connection: Link, client_id: str) -> Session | None:
        """The session of a client id. Raises BadPacket if it is another user's."""
        access, session = self.access, self.store.sessions.get(client_id)
        if session is None or access.may_take(connection.user, session.owner):
            return session
        if session.connection is not None or not access.is_orphan(session.owner):
            connection.visit.event = "takeover refused"
            raise BadPacket(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "the client id is another user's")
        self.end(session)
        return None

    def _set_expiry(self, session: Session, packet: Connect, answer: Properties) -> None:
        if packet.version == MQTT_5_0:
            wanted = packet.properties.get("session_expiry_interval", 0)
        else:
            wanted = 0 if packet.clean_start else NEVER
        session.expiry_seconds = min(wanted, self.limits.session_expiry_max)
        if session.expiry_seconds != wanted:
            answer["session_expiry_interval"] = session.expiry_seconds

    def _answer(self, connection: Link, present: bool, answer: Properties) -> None:
        limits = self.limits
        if connection.version == MQTT_5_0:
            answer["receive_maximum"] = min(limits.receive_max, 65_535)
            answer["maximum_packet_size"] = limits.packet_bytes_max
            answer["topic_alias_maximum"] = limits.topic_alias_max
        else:
            answer = {}
        connection.send_packet(Connack(present, 0, answer))

    # -- going

    def disconnect(self, connection: Link, packet: Disconnect) -> None:
        """DISCONNECT: a client says goodbye."""
        session = connection.session
        assert session is not None
        wanted = packet.properties.get("session_expiry_interval")
        if wanted is not None:
            if wanted and not session.expiry_seconds:
                raise BadPacket(
                    ReasonCode.PROTOCOL_ERROR,
                    "a session that was to end with its connection can't be made to last",
                )
            session.expiry_seconds = min(wanted, self.limits.session_expiry_max)
        connection.normal_end = packet.reason_code != ReasonCode.DISCONNECT_WITH_WILL_MESSAGE
        connection.visit.why = "disconnect" if connection.normal_end else "disconnect with will"
        connection.close()

    def left(self, connection: Link, *, taken_over: bool = False) -> None:
        """A connection is closed, for whatever reason."""
        self.presence.connections.discard(connection)
        session = connection.session
        if session is None or session.connection is not connection:
            return
        self.turns.run()
        session.connection, session.resending = None, False
        self.access.verdicts.forget(session.rights)
        self._judge_away(session)
        session.wake()
        self.subscriptions.leave(session)
        for cursor in session.cursors.values():
            if cursor.live:
                cursor.fall_behind(self.delivery.given(cursor))
        session.ended_ns = self.store.clock.now_ns()
        session.settle()
        self.notices.ended(connection)
        will, session.will = session.will, None
        if will is not None and not connection.normal_end:
            self.wills.left(session, connection, will, taken_over=taken_over)
        if not session.durable and not taken_over:
            self.end(session)
        else:
            self.store.note_session(session)
            self.store.try_flush()
            self._expire_later(session)

    def end(self, session: Session) -> None:
        """End a session, and forget it."""
        self.subscriptions.forget(session)
        if self.store.sessions.get(session.client_id) is session:
            del self.store.sessions[session.client_id]
            self.quotas.end(session)
            self.store.note("end", session.client_id)
            self.store.try_flush()
        self.wills.due(session.client_id)

    def _expire_later(self, session: Session) -> None:
        expires = session.expires_ns()
        if expires is not None:
            delay = min(max((expires - self.store.clock.now_ns()) / SECOND_NS, 0), 86_400)
            self._timers[session.client_id] = self.loop.call_later(delay, self._expire_in_turn, session)

    def clock_was_set(self) -> None:
        """Note anew when sessions ended, so that a start reckons with the time of day as it is now."""
        self.slices.add(self, self._noting_ends(list(self.store.sessions.values())))

    def _noting_ends(self, sessions: list[Session]) -> Iterator[None]:
        for session in sessions:
            if session.durable and session.expires_ns() is not None:
                if self.store.sessions.get(session.client_id) is session:
                    self.store.note_session(session)
                yield

    def _expire_in_turn(self, session: Session) -> None:
        """Expire a session in a slice, because many may expire at once."""
        self.slices.later(self, lambda: self._expire(session))

    def _expire(self, session: Session) -> None:
        self._timers.pop(session.client_id, None)
        if session.connection is not None or self.store.sessions.get(session.client_id) is not session:
            return
        expires = session.expires_ns()
        if expires is not None and expires <= self.store.clock.now_ns():
            self.notices.info("session expired", "", client=session.client_id, user=session.owner)
            self.end(session)
        else:
            self._expire_later(session)

    # -- rights

    def judge_again(self) -> None:
        """Users or rules have changed: disconnect clients that have lost their logins, and resume the others.

        Rights are those of now already. What takes longer with more clients is done in slices.
        """
        access = self.access
        gone: dict[Link, str] = {}
        for connection in self.presence.connections:
            if connection.session is None:
                continue  # its login is checked when it is admitted
            if not access.knows(connection.user):
                gone[connection] = "its user is gone"
            elif access.password_of(connection.user) != connection.visit.known:
                gone[connection] = "its user has another password"
            if connection in gone:
                connection.session.rights = access.no_rights()
        self.subscriptions.judge_again()
        self.slices.add(self, self._judging(gone, list(self.presence.connections)))

    def _judging(self, gone: dict[Link, str], connections: list[Link]) -> Iterator[None]:
        for connection, why in gone.items():
            connection.refuse(ReasonCode.ADMINISTRATIVE_ACTION, why)
            yield
        for connection in connections:
            if connection.session is not None and connection.session.connection is connection:
                self.turns.resume(connection.session)
            yield

    def _judge(self, session: Session, connection: Link) -> None:
        """Set the rights of a connected client."""
        session.rights = self.access.current_rights(connection.user, session.client_id)
        for cursor in session.cursors.values():
            cursor.judge_again()

    def _judge_away(self, session: Session) -> None:
        """Set the rights of a client that is away, if it has groups: nothing else needs them."""
        if session.groups:
            session.rights = self.access.current_rights_of_owner(session.owner, session.client_id)

    # -- keep alive

    def sweep(self, now: float) -> None:
        """Disconnect clients that have been silent for one and a half times their keep alive."""
        late = [
            connection
            for connection in self.presence.connections
            if connection.keep_alive and now - connection.heard > connection.keep_alive * 1.5
        ]
        if late:
            self.slices.add(self, self._disconnecting(late))

    def _disconnecting(self, late: list[Link]) -> Iterator[None]:
        why = "nothing was heard for one and a half keep alives"
        for connection in late:
            connection.refuse(ReasonCode.KEEP_ALIVE_TIMEOUT, why)
            self.left(connection)
            yield
