"""Retention: removes old files of the log, by age and by bytes.

A file that a session or a group still needs stays, however old it is, and a warning names the session. With
`retain_force` it is removed, and a warning says what is lost. The current file is finished after half of the
retention time, so that old messages don't stay forever when few are published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator
from dataclasses import dataclass, field

from forelog.broker.flow.intake import Intake
from forelog.broker.limits import Limits
from forelog.broker.log.history import History
from forelog.broker.sessions.presence import Presence
from forelog.broker.sessions.store import SessionStore
from forelog.errors import ForelogError, LockTimeout
from forelog.log.position import Position
from forelog.log.stream import Stream
from forelog.messages.retention import Retained, retain
from forelog.serving.notices import text
from forelog.times import SECOND_NS

logger = logging.getLogger("forelog")

SESSIONS_PER_STEP = 500
_LOCK_SECONDS = 10.0
"""How long a run of retention waits for readers of the log."""


@dataclass(eq=False, slots=True)
class Retention:
    """Removes old files, again and again."""

    stream: Stream
    limits: Limits
    store: SessionStore
    presence: Presence
    history: History
    intake: Intake
    _warned: str = field(default="", init=False)
    """The session or group that the last warning named."""
    removed: int = field(default=0, init=False)
    """Files that were removed."""
    overdue: int = field(default=0, init=False)
    """Files that would be removed if no session or group needed them."""
    size: tuple[int, int] = field(default=(0, 0), init=False)
    """The number of the log's files, and their bytes, as of the last measurement."""

    async def run(self) -> None:
        """Remove old files every `retain_interval_seconds`, until cancelled."""
        while True:
            try:
                await self.look()
            except LockTimeout:
                logger.info("broker: the log is being read without a pause, so its files stay for now")
            except (OSError, ForelogError) as error:
                logger.error("broker: old files can't be removed: %s", error)
            await asyncio.sleep(self.limits.retain_interval_seconds)

    async def look(self) -> Retained | None:
        """Remove old files now. Returns what was removed and what had to stay; None without limits on messages."""
        position, reader = await self.needed()
        done = await asyncio.to_thread(self._look, position)
        await self.measure()
        if done is None:
            return None
        self.removed += len(done.removed)
        self.overdue = len(done.kept)
        warned = reader if done.kept else ""
        if warned and warned != self._warned:
            logger.warning(
                "broker: %d files are kept beyond their time, because %s is at %s and needs them",
                len(done.kept), reader, position,
            )  # fmt: skip
        self._warned = warned
        return done

    async def needed(self) -> tuple[Position | None, str]:
        """The first position that a session or group still needs, and its name; None if nothing is needed.

        It looks with pauses. Positions only move forward meanwhile, so nothing that is needed is missed.
        """
        looking = self._looking()
        while True:
            try:
                next(looking)
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]
            await asyncio.sleep(0)

    def _looking(self) -> Generator[None, None, tuple[Position | None, str]]:
        end = self.history.delivered
        lowest, reader = end, ""
        for number, session in enumerate(list(self.store.sessions.values())):
            if number % SESSIONS_PER_STEP == SESSIONS_PER_STEP - 1:
                yield
            for cursor in session.cursors.values():
                if cursor.subs or session.in_flight:
                    position = session.at(cursor, end)
                    if position < lowest:
                        lowest, reader = position, f"the session of {text(session.client_id)}"
        for number, group in enumerate(list(self.presence.groups.values())):
            if number % SESSIONS_PER_STEP == SESSIONS_PER_STEP - 1:
                yield
            position = group.at(end)
            if position < lowest:
                lowest, reader = position, f"the group of {text(group.key)}"
        return (lowest, reader) if reader else (None, "")

    def _look(self, keep_from: Position | None) -> Retained | None:
        limits, done = self.limits, None
        seconds = limits.retain_seconds
        if seconds is not None:
            self._finish_old_file(seconds)
        if seconds is not None or limits.retain_bytes is not None:
            before_ns = None if seconds is None else time.time_ns() - int(seconds * SECOND_NS)
            done = retain(
                self.stream,
                before_ns=before_ns,
                keep_bytes=limits.retain_bytes,
                keep_from=keep_from,
                force=limits.retain_force,
                timeout=_LOCK_SECONDS,
            )
            for path in done.removed:
                self.history.forget_file(path)
        return done

    async def measure(self) -> None:
        """Measure how large the log is."""
        self.size = await asyncio.to_thread(self._measure)

    def _measure(self) -> tuple[int, int]:
        stream = self.stream
        sizes = [stream.segment_bytes(number) for number in stream.numbers()]
        return len(sizes), sum(size or 0 for size in sizes)

    def _finish_old_file(self, seconds: float) -> None:
        appender = self.intake.appender
        begun_ns = appender.position.segment  # a file is named by the time of its first message
        if time.time_ns() - begun_ns > seconds / 2 * SECOND_NS:
            appender.roll()
