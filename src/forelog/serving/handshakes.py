"""TLS handshakes in turns, so that a thousand at once don't hold up an event loop.

The first message of a client makes the server sign, and its second one finishes the handshake: some tenths of a
millisecond each, for anybody who can connect. Handshakes therefore begin a few at a time, with pauses, and
addresses take turns. Those that have begun and aren't finished are limited too, because all of them might go on in
the same moment. If there are too many, the one that began first is ended: a client that shakes hands at once
doesn't need long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TOGETHER = 8
"""Handshakes that begin at once."""
PAUSE_SECONDS = 0.005
"""Before the next ones begin."""
UNFINISHED_MAX = 256


class Handshakes:
    """Lets handshakes begin.

    async with handshakes.turn(host):
        ...  # the handshake; the task is cancelled if too many others have begun since
    """

    def __init__(
        self,
        *,
        together: int = TOGETHER,
        pause_seconds: float = PAUSE_SECONDS,
        unfinished_max: int = UNFINISHED_MAX,
    ) -> None:
        self._together = self._left = together
        self._pause = pause_seconds
        self._unfinished_max = unfinished_max
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._unfinished: dict[asyncio.Task[object], None] = {}
        self._is_pausing = False

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Wait until a handshake with a client from this address may begin."""
        await self._wait(host)
        task = asyncio.current_task()
        assert task is not None
        if len(self._unfinished) >= self._unfinished_max:
            first = next(iter(self._unfinished))
            del self._unfinished[first]
            first.cancel()
        self._unfinished[task] = None
        try:
            yield
        finally:
            self._unfinished.pop(task, None)

    async def _wait(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_pausing:
            self._is_pausing = True
            loop.call_later(self._pause, self._next, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """After a pause: let the next ones begin, one of each address in turn."""
        self._left = self._together
        while self._waiting and self._left:
            host, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if turns:
                self._waiting.move_to_end(host)
            else:
                del self._waiting[host]
            if not turn.done():  # else its client has gone
                turn.set_result(None)
                self._left -= 1
        self._is_pausing = bool(self._waiting) or self._left < self._together
        if self._is_pausing:
            loop.call_later(self._pause, self._next, loop)
