"""Topic aliases: numbers that stand for topics while a connection lasts. MQTT 5 only.

The sender introduces an alias by sending it with the topic, and leaves the topic out from then on. Each direction
has its own aliases, and each side says how many it accepts.

>>> inbound = InboundAliases(10)
>>> inbound.resolve("sensors/attic", 3), inbound.resolve("", 3)
('sensors/attic', 'sensors/attic')
>>> outbound = OutboundAliases(1)
>>> outbound.shorten("sensors/attic"), outbound.shorten("sensors/attic"), outbound.shorten("sensors/cellar")
(('sensors/attic', 1), ('', 1), ('sensors/cellar', 0))
"""

from __future__ import annotations

from forelog.broker.mqtt.packets import Publish
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.errors import BadPacket


class InboundAliases:
    """The topics of the other side's aliases, of which it may use up to `maximum`."""

    __slots__ = ("_bytes", "_bytes_max", "_maximum", "_topics")

    def __init__(self, maximum: int, bytes_max: int = 1 << 20) -> None:
        self._maximum = maximum
        self._bytes, self._bytes_max = 0, bytes_max
        self._topics: dict[int, str] = {}

    def apply(self, packet: Publish) -> None:
        """Replace the alias of a PUBLISH by its topic."""
        alias = packet.properties.pop("topic_alias", 0)
        if alias or not packet.topic:
            packet.topic = self.resolve(packet.topic, alias)

    def resolve(self, topic: str, alias: int) -> str:
        """The topic of a PUBLISH with an alias, and with a topic or an empty one."""
        if not 1 <= alias <= self._maximum:
            raise BadPacket(
                ReasonCode.TOPIC_ALIAS_INVALID, f"the topic alias is {alias}: expected 1 to {self._maximum}"
            )
        if topic:
            self._bytes += len(topic) - len(self._topics.get(alias, ""))
            if self._bytes > self._bytes_max:
                raise BadPacket(
                    ReasonCode.QUOTA_EXCEEDED, f"topic aliases stand for more than {self._bytes_max} bytes"
                )
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise BadPacket(ReasonCode.PROTOCOL_ERROR, f"the topic alias {alias} has no topic yet")
        return known


class OutboundAliases:
    """Our own aliases: the first topics get one, up to the maximum that the other side accepts."""

    __slots__ = ("_aliases", "_bytes", "_bytes_max", "_maximum")

    def __init__(self, maximum: int, bytes_max: int = 1 << 20) -> None:
        self._maximum = maximum
        self._bytes, self._bytes_max = 0, bytes_max
        self._aliases: dict[str, int] = {}

    def shorten(self, topic: str) -> tuple[str, int]:
        """What to send for a topic: the topic or nothing, and its alias or 0. It must then be sent, in order."""
        alias = self._aliases.get(topic)
        if alias is not None:
            return "", alias
        if len(self._aliases) >= self._maximum or self._bytes + len(topic) > self._bytes_max:
            return topic, 0
        alias = self._aliases[topic] = len(self._aliases) + 1
        self._bytes += len(topic)
        return topic, alias

    def withdraw(self, topic: str) -> None:
        """Undo the last alias, of this topic, because it wasn't sent."""
        del self._aliases[topic]
        self._bytes -= len(topic)
