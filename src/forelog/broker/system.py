"""`$SYS` topics: figures about the broker, for any MQTT client.

The values are in memory only, not in the log. A subscriber gets the last values at once, as retained messages, and
new values every interval, at QoS 0. A client that doesn't keep up misses some.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from forelog.broker.figures import FIGURES, Figures
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.slices import Slices
from forelog.broker.flow.translation import packet_of
from forelog.broker.log.batch import StoredMessage
from forelog.broker.log.clock import MessageClock
from forelog.broker.log.history import History
from forelog.broker.mqtt.topics import matches
from forelog.broker.retention import Retention
from forelog.broker.sessions.group import Group
from forelog.broker.sessions.session import Cursor, Session, Verdict
from forelog.times import SECOND_NS, format_time

ROOT = "$SYS/broker/"
CURSORS_PER_STEP = 32
LOADS = {"1min": 60.0, "5min": 300.0, "15min": 900.0}
_LOAD_OF = {
    "messages/received": "messages_received",
    "messages/sent": "messages_sent",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
}


@dataclass(eq=False, slots=True)
class SystemTopics:
    """The last values, and their delivery."""

    figures: Figures
    interval_seconds: float
    retention: Retention
    history: History
    routes: Routes
    slices: Slices
    clock: MessageClock
    _values: dict[str, StoredMessage] = field(default_factory=dict, init=False)
    _loads: dict[str, float] = field(default_factory=dict, init=False)
    _before: dict[str, float] = field(default_factory=dict, init=False)
    _looked: float = field(init=False)

    def __post_init__(self) -> None:
        self._looked = self.figures.started

    async def run(self) -> None:
        """Publish values every interval; never if that is 0."""
        while self.interval_seconds:
            with contextlib.suppress(OSError):
                await self.retention.measure()
            self._publish(await asyncio.to_thread(self._look))  # on a thread, because it visits all sessions
            await asyncio.sleep(self.interval_seconds)

    def publish(self) -> None:
        """Publish values now."""
        self._publish(self._look())

    def _publish(self, values: dict[str, str]) -> None:
        now_ns = time.time_ns()
        self._values = {
            ROOT + name: StoredMessage(now_ns, ROOT + name, text.encode(), {}) for name, text in values.items()
        }
        self.slices.start(self, self._sending(list(self._values.values())))

    def retained(self, filter: str) -> list[StoredMessage]:  # noqa: A002
        """The last values of the topics that match a filter, for a new subscriber."""
        if not filter.startswith("$"):
            return []
        return [message for topic, message in self._values.items() if matches(filter, topic)]

    def _sending(self, messages: list[StoredMessage]) -> Iterator[None]:
        """Send each value to all its subscribers, and to one member of each group."""
        for message in messages:
            for number, (cursor, verdict) in enumerate(self.routes.of(message.topic.encode())):
                self._send(message, cursor, verdict)
                if number % CURSORS_PER_STEP == CURSORS_PER_STEP - 1 or isinstance(cursor, Group):
                    yield
            yield

    def _send(self, message: StoredMessage, cursor: Cursor, verdict: Verdict) -> None:
        takers: list[Session] = [] if cursor.session is None else [cursor.session]
        if isinstance(cursor, Group):
            readers = cursor.readers(message.topic.encode())
            takers = list(islice((one for one in cursor.ready if readers.all or one in readers.some), 1))
        for session in takers:
            connection = session.connection
            if connection is not None and connection.ready:
                data = packet_of(connection, message, 0, 0, self.clock, identifiers=verdict.properties)
                if data is not None:
                    connection.send(data)

    # -- values

    def _look(self) -> dict[str, str]:
        from forelog import __version__

        found = self.figures.read()
        values = {"version": f"forelog {__version__}", "timestamp": _time_text()}
        values |= {
            FIGURES[name].topic: f"{value:g}" if value % 1 else str(int(value)) for name, value in found.items()
        }
        values["uptime"] += " seconds"
        values["log/position"] = str(self.history.end)
        return values | self._load(found)

    def _load(self, found: dict[str, float]) -> dict[str, str]:
        """Messages and bytes per minute, as moving averages over the last minutes."""
        now = time.monotonic()
        passed = max(now - self._looked, 1e-9)
        values = {}
        for name, key in _LOAD_OF.items():
            rate = (found[key] - self._before.get(key, 0)) / passed * 60
            for span, seconds in LOADS.items():
                topic = f"load/{name}/{span}"
                keep = math.exp(-passed / seconds) if self._before else 0.0
                self._loads[topic] = keep * self._loads.get(topic, 0.0) + (1 - keep) * (
                    rate if self._before else 0
                )
                values[topic] = f"{self._loads[topic]:.2f}"
        self._before, self._looked = found, now
        return values


def _time_text() -> str:
    return format_time(time.time_ns() // SECOND_NS * SECOND_NS)
