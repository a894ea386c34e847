"""Turns: what was published since the last turn is written, then acknowledged, then delivered.

Everything of a turn happens on the event loop, without a pause. Under `sync="always"` a turn waits for a moment,
so that clients that shared the last sync share the next one too.
"""

from __future__ import annotations

import asyncio
import logging
import time

from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.intake import Intake, Written
from forelog.broker.flow.retained import RetainedDelivery
from forelog.broker.flow.sender import Sender
from forelog.broker.limits import Limits
from forelog.broker.log.clock import MessageClock
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.sessions.group import Group
from forelog.broker.sessions.session import Session
from forelog.errors import AppenderFailed, ForelogError

logger = logging.getLogger("forelog")

GROUPS_PER_TURN = 64
"""Groups that one turn resumes for a client that has room again."""
PATIENCE_SECONDS_MAX = 0.001
"""The longest wait for clients that shared the last sync."""


class Turns:
    """Runs a turn when there is something to write, or a client has room again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        intake: Intake,
        clock: MessageClock,
        delivery: Delivery,
        catchup: CatchUp,
        retained: RetainedDelivery,
        sender: Sender,
        limits: Limits,
        *,
        syncs: bool,
    ) -> None:
        """`syncs` says that every write is synced."""
        self._loop = loop
        self._intake = intake
        self._inbox = intake.inbox
        self._clock = clock
        self._delivery = delivery
        self._catchup = catchup
        self._retained = retained
        self._sender = sender
        self._bytes_max = limits.turn_bytes_max
        self._syncs = syncs
        self.now = time.monotonic()
        """The monotonic time as of the last turn or tick."""
        self._is_due = False
        self._resumed: dict[Session, None] = {}
        """Sessions that have room again, to be resumed in the next turn."""
        self._share = 0
        """Publishers that shared the last write."""
        self._ended = self._patience = 0.0

    def soon(self) -> None:
        """Run a turn soon, because there is something to write."""
        if self._inbox.byte_count > self._bytes_max:
            self.run()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._due)

    def _due(self) -> None:
        now = time.monotonic()
        if len(self._inbox.runs) < self._share and now - self._ended < self._patience:
            self._loop.call_soon(self._due)  # clients that shared the last sync are about to share the next
            return
        self._is_due = False
        self.now = now
        self.run()
        if self._syncs:
            self._ended = time.monotonic()
            self._patience = min((self._ended - now) / 2, PATIENCE_SECONDS_MAX)

    def run(self) -> None:
        """Write what was published, acknowledge it, deliver it, and resume clients that have room again."""
        if self._inbox:
            try:
                written = self._intake.write()
            except (OSError, ForelogError) as error:
                self._failed(error)
            else:
                self._clock.wrote(self._intake.written_ns)
                self._acknowledge(written)
                self._delivery.dispatch(written.batch)
                self._share = len(written.acknowledgements)
        if self._resumed:
            resumed, self._resumed = self._resumed, {}
            for session in resumed:
                self._resume(session)

    def write(self) -> None:
        """Run a turn now if there is something to write."""
        if self._inbox:
            self.run()

    def _acknowledge(self, written: Written) -> None:
        """Do what follows from a write. A failure of one thing doesn't keep the others from happening."""
        for action in written.actions:
            try:
                action()
            except Exception:
                logger.exception("broker: a message was written, but an action that follows from it failed")
        for connection, acks in written.acknowledgements:
            if acks and connection is not None:
                try:
                    connection.send(acks)
                except Exception:
                    logger.exception("broker: %s is disconnected: its socket has failed", connection.peer)
                    connection.abort()

    def _failed(self, error: Exception) -> None:
        """Nothing of this turn is in the log: disconnect its publishers, without acknowledgements."""
        logger.error("broker: messages can't be written, their publishers are disconnected: %s", error)
        for connection in self._intake.failed_connections():
            connection.refuse(ReasonCode.QUOTA_EXCEEDED, f"the log can't be written: {error}")
        if isinstance(error, AppenderFailed):
            try:
                self._intake.reopen()
            except (OSError, ForelogError) as again:
                logger.error("broker: the log can't be opened again: %s", again)

    # -- clients that have room again

    def resume(self, session: Session) -> None:
        """A client may have room again: send it what waits for it, in the next turn."""
        session.wake()
        if session.connection is not None and (session.retained_left or session.behind or session.waiting):
            self._resumed[session] = None
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._due)

    def _resume(self, session: Session) -> None:
        self._retained.send(session)
        if session.behind:
            self._catchup.pump(session)
        for _ in range(min(len(session.waiting), GROUPS_PER_TURN)):
            group, _ = session.waiting.popitem()
            assert isinstance(group, Group)
            group.unskip(session)
            if not group.live:
                self._catchup.pump(group)
        if session.waiting and self._sender.can_take(session):
            self.resume(session)
