"""Messages on their way into the log: what publishers sent since the last turn, and what each is to be answered.

All that the clients of one turn of the event loop have published is written with one write, and synced with one
sync if the policy says so. Only then is anybody answered, and only then is anything sent on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from forelog import kernel
from forelog.broker.flow.batches import Batch
from forelog.formats.messages import Messages
from forelog.log.appender import Appender

if TYPE_CHECKING:
    from forelog.broker.connections.connection import Connection

__all__ = ["Intake", "Written"]

_FORMAT = Messages()

Answers = list[tuple["Connection | None", bytes]]
Action = Callable[[], object]


class Written(NamedTuple):
    """What is in the log now, what is to be done because of that, and who is to be answered what."""

    batch: Batch
    actions: list[Action]
    answers: Answers


class Intake:
    """What is to be written."""

    def __init__(self, open_appender: Callable[[], Appender]) -> None:
        self._open_appender = open_appender
        self.appender = open_appender()
        self.inbox = kernel.Inbox()
        """Where the connections put what they receive."""
        self.messages = 0
        self._when_written: list[Action] = []
        self._when_failed: list[Action] = []
        self._failed: Answers = []
        self.written_ns = 0
        """The time of the last message in the log, or later."""

    def start(self) -> None:
        """From the end of the log on."""
        self.inbox.last_ns = self.written_ns = self.appender.next_time()

    def put(
        self, topic: str, payload: bytes, properties: dict[str, Any], connection: Connection | None, acks: bytes
    ) -> int:
        """One message that isn't plain; returns its time."""
        now = max(time.time_ns(), self.inbox.last_ns + 1)
        data = _FORMAT.encode(_FORMAT.item(topic, payload, properties), now)
        self.inbox.put(connection, data, now, acks)
        return now

    def when_written(self, action: Action) -> None:
        """Do this when what is there by now is in the log."""
        self._when_written.append(action)

    def when_failed(self, action: Action) -> None:
        """Do this if it can't be written."""
        self._when_failed.append(action)

    def write(self) -> Written:
        """All of it, with one write. If that fails it raises, and nothing of it is in the log."""
        taken = self.inbox.drain()
        actions, self._when_written = self._when_written, []
        instead, self._when_failed = self._when_failed, []
        try:
            positions = self.appender.append_encoded(taken.data, taken.starts)
        except BaseException:
            for action in instead:
                action()
            self._failed = taken.runs
            raise
        batch = Batch(
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

    def failed_connections(self) -> list[Connection]:
        """Whose messages the last write was to have."""
        found = {connection: None for connection, _ in self._failed if connection is not None}
        self._failed = []
        return list(found)

    def reopen(self) -> None:
        """After a failure that is final: look at what is really there, and go on."""
        self.appender.close()
        self.appender = self._open_appender()


def _sender(runs: Answers) -> str | None:
    """Who published all of it, if it was one client."""
    connection = runs[0][0] if len(runs) == 1 else None
    return None if connection is None or connection.session is None else connection.session.client_id
