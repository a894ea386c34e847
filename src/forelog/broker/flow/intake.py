"""Messages on their way into the log: what publishers sent since the last turn, and their acknowledgements.

Everything that was published in one turn of the event loop is written with one write, and with one sync if the
policy asks for it. Only then is it acknowledged and delivered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from forelog import kernel
from forelog.broker.log.batch import MessageBatch
from forelog.broker.sessions.session import Link
from forelog.formats.messages import Messages
from forelog.log.appender import Appender

_FORMAT = Messages()

Acknowledgements = list[tuple[Link | None, bytes]]
"""Publishers, and the acknowledgements to send them."""
Action = Callable[[], object]


class Written(NamedTuple):
    """The result of a write."""

    batch: MessageBatch
    actions: list[Action]
    """What to do now that the batch is written."""
    acknowledgements: Acknowledgements


class Intake:
    """Collects messages, and writes them. `open` opens the log."""

    appender: Appender

    def __init__(self, open_appender: Callable[[], Appender]) -> None:
        self._open_appender = open_appender
        self.inbox = kernel.Inbox()
        """Where connections put plain messages."""
        self.messages = 0
        """Messages that were written."""
        self.failures = 0
        """Writes that failed."""
        self._when_written: list[Action] = []
        self._when_failed: list[Action] = []
        self._failed: Acknowledgements = []
        self.written_ns = 0
        """The time of the last message in the log, or later."""

    def open(self) -> None:
        """Open the log for appending."""
        self.appender = self._open_appender()

    def start(self) -> None:
        """Continue the times of messages after the last one in the log."""
        self.inbox.last_ns = self.written_ns = self.appender.next_time()

    def take(
        self, link: Link, data: bytes, start: int, stop: int, packet_bytes_max: int, packets_max: int = 4096
    ) -> tuple[int, int, int, int]:
        """Add a run of plain messages: their number, where the rest begins, why it is left, and what it needs."""
        found: tuple[int, int, int, int] = self.inbox.take(
            link, data, start, stop, link.version, packet_bytes_max, time.time_ns(), *link.properties, packets_max
        )
        return found

    def topics(self) -> list[bytes]:
        """The topics of the run that was taken last, each once."""
        found: list[bytes] = self.inbox.topics()
        return found

    def undo(self) -> None:
        """Take the last run back."""
        self.inbox.undo()

    def put(
        self, topic: str, payload: bytes, properties: dict[str, Any], connection: Link | None, acks: bytes
    ) -> int:
        """Add one message that isn't plain; returns its time."""
        now = max(time.time_ns(), self.inbox.last_ns + 1)
        data = _FORMAT.encode(_FORMAT.item(topic, payload, properties), now)
        self.inbox.put(connection, data, now, acks)
        return now

    def when_written(self, action: Action) -> None:
        """Have `action` called once everything that was added so far is in the log."""
        self._when_written.append(action)

    def when_failed(self, action: Action) -> None:
        """Have `action` called if what was added so far can't be written."""
        self._when_failed.append(action)

    def write(self) -> Written:
        """Write everything with one write. If that raises, nothing of it is in the log."""
        taken = self.inbox.drain()
        actions, self._when_written = self._when_written, []
        instead, self._when_failed = self._when_failed, []
        try:
            positions = self.appender.append_encoded(taken.data, taken.starts)
        except BaseException:
            self.failures += 1
            for action in instead:
                action()
            self._failed = taken.runs
            raise
        batch = MessageBatch(
            taken.data,
            taken.starts,
            (taken.topic_starts, taken.topic_ends),
            (taken.payload_starts, taken.payload_ends),
            taken.flags,
            _sender(taken.runs),
        )
        batch.placed(*positions[0])
        self.messages += len(taken.starts)
        self.written_ns = self.inbox.last_ns
        return Written(batch, actions, taken.runs)

    def failed_connections(self) -> list[Link]:
        """The publishers of the messages that the last write lost."""
        found = {connection: None for connection, _ in self._failed if connection is not None}
        self._failed = []
        return list(found)

    def reopen(self) -> None:
        """Open the log again after a final failure, and continue at its real end."""
        self.appender.close()
        self.appender = self._open_appender()


def _sender(runs: Acknowledgements) -> str | None:
    """The id of the client that published everything; None if there are several."""
    connection = runs[0][0] if len(runs) == 1 else None
    return None if connection is None else connection.client_id or None
