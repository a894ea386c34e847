"""PUBACK, PUBREC, PUBREL and PUBCOMP: what clients say of messages that are under way, in both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from forelog.broker.mqtt import Pubcomp, Pubrec, Pubrel, ReasonCode
from forelog.broker.sessions.session import Session

if TYPE_CHECKING:
    from forelog.broker.broker import Broker

__all__ = ["Acknowledgements"]


class Acknowledgements:
    """Frees packet ids, and knows whose positions have moved."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._moved: dict[Session, None] = {}

    def take_moved(self) -> dict[Session, None]:
        """Sessions that have acknowledged something since this was asked last."""
        moved, self._moved = self._moved, {}
        return moved

    def acknowledged(self, session: Session, packet_ids: Iterable[int]) -> None:
        """PUBACKs."""
        for packet_id in packet_ids:
            session.acknowledge(packet_id)
        self._moved[session] = None
        self._broker.has_room(session)

    def received(self, session: Session, packet: Pubrec) -> None:
        """PUBREC: a message of QoS 2 has arrived, or isn't wanted."""
        connection = session.connection
        if connection is None:
            return
        if packet.reason_code >= 0x80:
            sent = session.in_flight.get(packet.packet_id)
            if sent is not None and sent.qos == 2:
                session.receive(packet.packet_id)
                session.complete(packet.packet_id)
                self._note_twice(session, "rec", packet.packet_id)
                self._note_twice(session, "comp", packet.packet_id)
            self._broker.has_room(session)
            return
        known = session.receive(packet.packet_id) is not None or packet.packet_id in session.released
        if known:
            self._note_twice(session, "rec", packet.packet_id)
            self._broker.memory.flush()  # before the client forgets it
        reason = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        connection.send_packet(Pubrel(packet.packet_id, reason))
        self._moved[session] = None

    def completed(self, session: Session, packet: Pubcomp) -> None:
        """PUBCOMP: and its id is free again."""
        if session.complete(packet.packet_id):
            self._note_twice(session, "comp", packet.packet_id)
        self._moved[session] = None
        self._broker.has_room(session)

    def _note_twice(self, session: Session, kind: str, packet_id: int) -> None:
        if session.durable:
            self._broker.memory.note(kind, session.client_id, [packet_id])

    def let_go(self, session: Session, packet: Pubrel) -> None:
        """PUBREL: a publisher won't send that message again."""
        connection = session.connection
        if connection is None:
            return
        if self._broker.intake.inbox:
            self._broker.turn()
        time_ns = session.received.pop(packet.packet_id, None)
        if time_ns is not None and session.durable:
            self._broker.memory.note("let go", session.client_id, packet.packet_id, time_ns)
            self._broker.memory.flush()
        reason = ReasonCode.SUCCESS if time_ns is not None else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        connection.send_packet(Pubcomp(packet.packet_id, reason))
