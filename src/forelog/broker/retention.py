"""How long messages are kept: now and then a broker looks which of its log's files may go.

What a session or a group of one still needs stays, however old it is, and it is told who needs it; unless `force`,
and then it is told what is lost. A file that is written to for long is finished after half of the time, so that
little traffic doesn't keep old messages for ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

from forelog.errors import ForelogError, LockTimeout
from forelog.log.position import Position
from forelog.messages.retention import Retained, retain
from forelog.serving.notices import text
from forelog.times import SECOND_NS

if TYPE_CHECKING:
    from forelog.broker.broker import Broker

__all__ = ["Keeping"]

logger = logging.getLogger("forelog")

SESSIONS_PER_STEP = 500
_LOCK_SECONDS = 10.0
"""To wait for who reads the log just then."""


class Keeping:
    """Retention, by age and by bytes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits = broker.limits
        self._told = ""
        self.removed = 0
        """Files that are gone."""
        self.overdue = 0
        """Files that should be, and that somebody needs."""
        self.size = (0, 0)
        """Files of the log, and their bytes, as of the last time that it was measured."""

    async def run(self) -> None:
        """Look again and again."""
        while True:
            try:
                await self.look()
            except LockTimeout:
                logger.info("broker: the log is being read without a break: its files stay for now")
            except (OSError, ForelogError) as error:
                logger.error("broker: old files can't be removed: %s", error)
            await asyncio.sleep(self._limits.retain_interval_seconds)

    async def look(self) -> Retained | None:
        """Look now. What was removed, and what had to stay; None if nothing was ever to be removed."""
        broker = self._broker
        position, who = await self._needed()
        done = await broker.loop.run_in_executor(None, self._look, position)
        await self.measure()
        if done is None:
            return None
        self.removed += len(done.removed)
        self.overdue = len(done.kept)
        told = who if done.kept else ""
        if told and told != self._told:
            logger.warning(
                "broker: %d files are kept beyond their time, because %s is at %s and needs them",
                len(done.kept), who, position,
            )  # fmt: skip
        self._told = told
        return done

    def needed(self) -> tuple[Position | None, str]:
        """The first message that somebody hasn't got yet, and who that is; None if all have everything."""
        looking = self._looking()
        while True:
            try:
                next(looking)
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]

    async def _needed(self) -> tuple[Position | None, str]:
        """The same, with breaks. Whoever moves meanwhile moves forward, so nothing that is needed is missed."""
        looking = self._looking()
        while True:
            try:
                next(looking)
            except StopIteration as found:
                return found.value  # type: ignore[no-any-return]
            await asyncio.sleep(0)

    def _looking(self) -> Generator[None, None, tuple[Position | None, str]]:
        broker, end = self._broker, self._broker.delivery.end
        lowest, who = end, ""
        for number, session in enumerate(list(broker.memory.sessions.values())):
            if number % SESSIONS_PER_STEP == SESSIONS_PER_STEP - 1:
                yield
            for cursor in session.cursors.values():
                if cursor.subs or session.in_flight:
                    position = session.at(cursor, end)
                    if position < lowest:
                        lowest, who = position, f"the session of {text(session.client_id)}"
        for number, group in enumerate(list(broker.subscriptions.groups.all.values())):
            if number % SESSIONS_PER_STEP == SESSIONS_PER_STEP - 1:
                yield
            position = group.at(end)
            if position < lowest:
                lowest, who = position, f"the group of {text(group.key)}"
        return (lowest, who) if who else (None, "")

    def _look(self, keep_from: Position | None) -> Retained | None:
        """On a thread."""
        broker, limits, done = self._broker, self._limits, None
        seconds = limits.retain_seconds
        if seconds is not None:
            self._finish_old_file(seconds)
        if seconds is not None or limits.retain_bytes is not None:
            before_ns = None if seconds is None else time.time_ns() - int(seconds * SECOND_NS)
            done = retain(
                broker.stream,
                before_ns=before_ns,
                keep_bytes=limits.retain_bytes,
                keep_from=keep_from,
                force=limits.retain_force,
                timeout=_LOCK_SECONDS,
            )
            for path in done.removed:
                broker.history.forget_file(path)
        return done

    async def measure(self) -> None:
        """How large the log is."""
        self.size = await self._broker.loop.run_in_executor(None, self._measure)

    def _measure(self) -> tuple[int, int]:
        stream = self._broker.stream
        sizes = [stream.segment_bytes(number) for number in stream.numbers()]
        return len(sizes), sum(size or 0 for size in sizes)

    def _finish_old_file(self, seconds: float) -> None:
        appender = self._broker.intake.appender
        begun_ns = appender.position.segment  # files are named by the time of their first message
        if time.time_ns() - begun_ns > seconds / 2 * SECOND_NS:
            appender.roll()
