"""Messages that aren't plain: retained, of QoS 2, with properties, or from a client with limited rights.

Plain messages go from the connection to the intake in bulk. These are checked and written one by one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from forelog.broker.access.control import Access
from forelog.broker.flow.intake import Intake
from forelog.broker.flow.translation import kept_properties
from forelog.broker.flow.turns import Turns
from forelog.broker.limits import Limits
from forelog.broker.log.batch import StoredMessage
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, Puback, Publish, Pubrec
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.notices import ClientNotices, reason_text
from forelog.broker.sessions.session import Link, Session
from forelog.broker.sessions.store import SessionStore


@dataclass(eq=False, slots=True)
class Publications:
    """Takes single messages."""

    intake: Intake
    turns: Turns
    store: SessionStore
    access: Access
    notices: ClientNotices
    limits: Limits

    def publish(self, connection: Link, session: Session, packet: Publish) -> None:
        """PUBLISH: check a message, then put it into the log with this turn."""
        if packet.qos == 2 and packet.packet_id in session.received:
            # The message was sent before. It is in the log, or will be with this turn, so rights don't matter.
            self.turns.write()
            connection.send(encode(Pubrec(packet.packet_id), connection.version))
            return
        refused = self._refusal(connection, session, packet)
        answer: type[Puback] | type[Pubrec] = Puback if packet.qos == 1 else Pubrec
        if refused is not None:
            self._refuse(connection, packet, refused, f"it may not publish to {packet.topic!r:.100}")
            return
        if packet.qos == 2 and len(session.received) >= self.limits.receive_max:
            connection.refuse(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "too many messages of QoS 2 are in flight")
            return
        if packet.qos == 2 and not session.window_in.room(len(session.received)):
            self._refuse(connection, packet, ReasonCode.QUOTA_EXCEEDED, "too many messages of QoS 2 are in flight")
            return
        kept = kept_properties(
            packet.properties,
            packet.qos,
            sender=session.client_id,
            retain=packet.retain,
            packet_id=packet.packet_id if packet.qos == 2 else 0,
        )
        acks = encode(answer(packet.packet_id), connection.version) if packet.qos else b""
        self.put(packet.topic, packet.payload, kept, connection, acks, session)

    def _refuse(self, connection: Link, packet: Publish, reason: ReasonCode, why: str) -> None:
        """Refuse a message: with its answer if the client's version can, else by disconnecting it."""
        self.notices.refused("publish refused", connection, topic=packet.topic, reason=reason_text(reason))
        if connection.version != MQTT_5_0:
            connection.refuse(reason, why)
        elif packet.qos:
            answer = Puback if packet.qos == 1 else Pubrec
            connection.send_packet(answer(packet.packet_id, reason))

    def _refusal(self, connection: Link, session: Session, packet: Publish) -> ReasonCode | None:
        if packet.topic.startswith("$"):
            return ReasonCode.TOPIC_NAME_INVALID
        if not self.access.verdicts.may_publish(session.rights, packet.topic):
            return ReasonCode.NOT_AUTHORIZED
        can_answer = packet.qos and connection.version == MQTT_5_0
        if packet.retain and can_answer and not self._has_room(packet.topic, packet.payload, packet.properties):
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _has_room(self, topic: str, payload: bytes, properties: Any) -> bool:
        return self.store.retained.has_room(topic, payload, properties)

    def put(
        self,
        topic: str,
        payload: bytes,
        kept: dict[str, Any],
        connection: Link | None = None,
        acks: bytes = b"",
        session: Session | None = None,
    ) -> None:
        """Put one message into the log, with this turn."""
        if kept.get("retain") and not self._has_room(topic, payload, kept):
            del kept["retain"]  # it is still delivered; a publisher that could be answered was refused
            self.notices.warning("not retained", "", topic=topic, reason="quota exceeded")
        time_ns = self.intake.put(topic, payload, kept, connection, acks)
        if kept.get("retain"):
            message = StoredMessage(time_ns, topic, payload, kept)
            self.store.retained.reserve(message)
            self.intake.when_written(lambda: self._retain(message))
            self.intake.when_failed(functools.partial(self.store.retained.release, topic))
        packet_id = kept.get("id")
        if packet_id is not None and session is not None:
            session.received[packet_id] = time_ns
            self.store.taking[session] = None
            self.intake.when_failed(functools.partial(session.received.pop, packet_id, None))
        self.turns.soon()

    def _retain(self, message: StoredMessage) -> None:
        self.store.note_retained(message.topic, self.store.retain(message))
