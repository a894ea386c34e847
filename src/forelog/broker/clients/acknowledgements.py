"""PUBACK, PUBREC, PUBREL and PUBCOMP, for messages in both directions."""

from __future__ import annotations

from collections.abc import Iterable

from forelog.broker.flow.turns import Turns
from forelog.broker.mqtt.packets import Pubcomp, Pubrec, Pubrel
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.sessions.session import Session
from forelog.broker.sessions.store import SessionStore


class Acknowledgements:
    """Frees packet ids, and knows the sessions whose positions have moved."""

    def __init__(self, store: SessionStore, turns: Turns) -> None:
        self._store = store
        self._turns = turns
        self._moved: dict[Session, None] = {}

    def take_moved(self) -> dict[Session, None]:
        """The sessions that have acknowledged something since the last call."""
        moved, self._moved = self._moved, {}
        return moved

    def acknowledged(self, session: Session, packet_ids: Iterable[int]) -> None:
        """PUBACK: a subscriber received messages of QoS 1."""
        for packet_id in packet_ids:
            session.acknowledge(packet_id)
        self._moved[session] = None
        self._turns.resume(session)

    def received(self, session: Session, packet: Pubrec) -> None:
        """PUBREC: a subscriber received a message of QoS 2, or refuses it."""
        connection = session.connection
        if connection is None:
            return
        if packet.reason_code >= 0x80:
            sent = session.in_flight.get(packet.packet_id)
            if sent is not None and sent.qos == 2:
                session.receive(packet.packet_id)
                session.complete(packet.packet_id)
                self._note(session, "rec", packet.packet_id)
                self._note(session, "comp", packet.packet_id)
                self._moved[session] = None
            self._turns.resume(session)
            return
        known = session.receive(packet.packet_id) is not None or packet.packet_id in session.released
        if known:
            self._note(session, "rec", packet.packet_id)
            self._store.flush()  # before PUBREL lets the client forget the packet id
        reason = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        connection.send_packet(Pubrel(packet.packet_id, reason))
        self._moved[session] = None

    def completed(self, session: Session, packet: Pubcomp) -> None:
        """PUBCOMP: the packet id of a message of QoS 2 is free again."""
        if session.complete(packet.packet_id):
            self._note(session, "comp", packet.packet_id)
        self._moved[session] = None
        self._turns.resume(session)

    def _note(self, session: Session, kind: str, packet_id: int) -> None:
        if session.durable:
            self._store.note(kind, session.client_id, [packet_id])

    def released(self, session: Session, packet: Pubrel) -> None:
        """PUBREL: a publisher won't send a message of QoS 2 again."""
        connection = session.connection
        if connection is None:
            return
        self._turns.write()  # the message may be in this turn
        time_ns = session.received.pop(packet.packet_id, None)
        if not session.received:
            session.window_in.settle(0)
        if time_ns is not None and session.durable:
            self._store.note("let go", session.client_id, packet.packet_id, time_ns)
            self._store.flush()
        reason = ReasonCode.SUCCESS if time_ns is not None else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        connection.send_packet(Pubcomp(packet.packet_id, reason))
