"""`$SYS` topics: how the broker is, for any MQTT client to see.

Their values are in memory only: nothing of them is in the log. Who subscribes gets the last ones at once, as
retained messages, and then new ones every interval, at QoS 0; a client that doesn't keep up misses some.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from forelog.broker.figures import FIGURES, figures_of
from forelog.broker.flow.batches import Stored
from forelog.broker.flow.outgoing import packet_of
from forelog.broker.mqtt import matches
from forelog.broker.sessions.groups import Group

if TYPE_CHECKING:
    from forelog.broker.broker import Broker
    from forelog.broker.sessions.session import Cursor, Session, Verdict

__all__ = ["System"]

ROOT = "$SYS/broker/"
CURSORS_PER_STEP = 32
LOADS = {"1min": 60.0, "5min": 300.0, "15min": 900.0}
_LOAD_OF = {
    "messages/received": "messages_received",
    "messages/sent": "messages_sent",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
}


class System:
    """The values, and who gets them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._interval = broker.limits.system_interval_seconds
        self.started = time.monotonic()
        self.clients_max = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self._values: dict[str, Stored] = {}
        self._loads: dict[str, float] = {}
        self._before: dict[str, float] = {}
        self._looked = self.started

    async def run(self) -> None:
        """Look every interval; not at all if that is 0."""
        while self._interval:
            with contextlib.suppress(OSError):
                await self._broker.keeping.measure()
            # On a thread, because it looks at all sessions.
            self._publish(await self._broker.loop.run_in_executor(None, self._look))
            await asyncio.sleep(self._interval)

    def publish(self) -> None:
        """Look now, and send what there is to who subscribed."""
        self._publish(self._look())

    def _publish(self, values: dict[str, str]) -> None:
        now_ns = time.time_ns()
        self._values = {
            ROOT + name: Stored(now_ns, ROOT + name, text.encode(), {}) for name, text in values.items()
        }
        self._broker.slices.start(self, self._sending(list(self._values.values())))

    def retained(self, filter: str) -> list[Stored]:  # noqa: A002
        """The last values of the topics that match a filter: a new subscriber gets them at once."""
        if not filter.startswith("$"):
            return []
        return [message for topic, message in self._values.items() if matches(filter, topic)]

    def _sending(self, messages: list[Stored]) -> Iterator[None]:
        """Each value to everyone who wants it, and of a group to one."""
        for message in messages:
            for number, (cursor, verdict) in enumerate(self._broker.routes.of(message.topic.encode())):
                self._send(message, cursor, verdict)
                if number % CURSORS_PER_STEP == CURSORS_PER_STEP - 1 or isinstance(cursor, Group):
                    yield
            yield

    def _send(self, message: Stored, cursor: Cursor, verdict: Verdict) -> None:
        takers: list[Session] = [] if cursor.session is None else [cursor.session]
        if isinstance(cursor, Group):
            readers = cursor.readers(message.topic.encode())
            takers = list(islice((one for one in cursor.ready if readers.all or one in readers.some), 1))
        for session in takers:
            connection = session.connection
            if connection is not None and connection.ready:
                data = packet_of(connection, message, 0, 0, self._broker.clock, identifiers=verdict.properties)
                if data is not None:
                    connection.send(data)

    # -- values

    def _look(self) -> dict[str, str]:
        from forelog import __version__

        found = figures_of(self._broker)
        values = {"version": f"forelog {__version__}", "timestamp": _clock()}
        values |= {
            FIGURES[name].topic: f"{value:g}" if value % 1 else str(int(value)) for name, value in found.items()
        }
        values["uptime"] += " seconds"
        values["log/position"] = str(self._broker.history.end)
        return values | self._load(found)

    def _load(self, found: dict[str, float]) -> dict[str, str]:
        """How much comes and goes, by the minute: averages over the last minutes, the latest counting most."""
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


def _clock() -> str:
    from forelog.times import SECOND_NS, format_time

    return format_time(time.time_ns() // SECOND_NS * SECOND_NS)
