"""What the broker does now and then.

It notes positions, closes what is overdue, forgets what has expired, and gives memory back to the system.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from forelog.broker.clients.acknowledgements import Acknowledgements
from forelog.broker.clients.groups import Groups
from forelog.broker.clients.lifecycle import Clients
from forelog.broker.connections.admission import Admission
from forelog.broker.flow.turns import Turns
from forelog.broker.log.clock import MessageClock
from forelog.broker.log.history import History
from forelog.broker.notices import ClientNotices
from forelog.broker.sessions.store import SessionStore
from forelog.errors import ForelogError
from forelog.serving.heap import Heap

TICK_SECONDS = 0.1
SWEEP_SECONDS = 1.0
KNOWN_SECONDS = 5.0
"""Seconds between two notes of how far the messages of the log are known."""


@dataclass(eq=False, slots=True)
class Upkeep:
    """Runs every tenth of a second."""

    store: SessionStore
    history: History
    clock: MessageClock
    turns: Turns
    acknowledgements: Acknowledgements
    groups: Groups
    clients: Clients
    admission: Admission
    notices: ClientNotices
    heap: Heap
    _swept: float = field(default=0.0, init=False)
    _known: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self.turns.now = time.monotonic()
            with contextlib.suppress(OSError, ForelogError):  # reported when a client depends on it
                self.note_progress()
            if now - self._swept >= SWEEP_SECONDS:
                self._swept = now
                self.admission.sweep(now)
                self.notices.sweep()
                self.clients.sweep(now)
                if self.store.clock.has_stepped():
                    self.clients.clock_was_set()
            self.store.forget_expired(self.clock.seconds_left)
            self.heap.tend()
            if now - self._known >= KNOWN_SECONDS:
                self._known = now
                self.store.note_known()

    def note_progress(self) -> None:
        """Note the positions of sessions and groups. After a crash, messages after them are sent again."""
        moved = self.acknowledgements.take_moved()
        end = self.history.delivered
        for session in moved:
            done = session.done_count
            if session.durable and session.client_id in self.store.sessions:
                self.store.note_places(session)
            else:
                session.forget_done(end)
            session.settle()
            if session.done_count < done:
                self.turns.resume(session)  # it may have had no room for more of them
            if session.shares:
                self.groups.acknowledged(session)
        self.groups.note_moved(end)
        self.store.flush()
