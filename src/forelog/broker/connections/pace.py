"""Decides when a client's next packets are handled: after those of other clients, if it has sent many.

A client waits for its turn if it has sent packets that take time, and all clients together have used up the time
that a round of the event loop has for them. It also waits while the messages that it published last are being
delivered. Meanwhile its bytes stay where they are; most of them stay in its socket.

Finding the subscribers of a topic that nobody has used before may take long, because others may have thousands of
filters that overlap. Whoever publishes to new topics waits for that before its messages are written. So messages
to other topics aren't written behind them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.slices import Slices

logger = logging.getLogger("forelog")

RUNS_MAX = 100
"""Runs of messages or acknowledgements handled in one read. Then the client may have to wait."""
TOPICS_MAX = 256
"""New topics that are looked up for a client before its messages to them are written."""
STEPS_MIN = 4
"""Steps of looking up that a client may do in each read, whatever others do."""
_PUBLISH, _PUBACK, _PINGREQ = 0x30, 0x40, 0xC0
_PLAIN = frozenset((_PUBLISH, _PUBACK, _PINGREQ))
"""Packets that rarely take long. All others wait as soon as the time of a round is used up."""


class Held(Hashable, Protocol):
    """A client that can be told to wait."""

    def hold(self, awaited: Future[Any]) -> None:
        """Handle no more packets until `resume`."""

    def resume(self) -> None:
        """Handle what has come meanwhile."""


class Pace:
    """The pace of one client."""

    __slots__ = ("_delivery", "_is_first", "_looking_up", "_routes", "_slices", "_turn")

    def __init__(self, slices: Slices, delivery: Delivery, routes: Routes) -> None:
        self._slices = slices
        self._delivery = delivery
        self._routes = routes
        self._looking_up: Future[Any] | None = None
        """What the client is held for while topics are looked up for it."""
        self._is_first = True
        """Whether nothing was handled of this read yet."""
        self._turn = 0
        """The turn in which its last messages are written."""

    def must_wait(self, client: Held, first: int, runs: int) -> bool:
        """Whether a packet with this first byte has to wait after so many runs. If so, the client is held."""
        self._is_first = runs == 0
        if (runs >= RUNS_MAX or first & 0xF0 not in _PLAIN) and not self._slices.has_time():
            client.hold(Future())
            self._later(client)
            return True
        if first & 0xF0 == _PUBLISH:
            delivery = self._delivery
            if delivery.owes(self._turn):
                client.hold(Future())
                delivery.when_delivered(functools.partial(self._later, client))
                return True
            self._turn = delivery.turn
        return False

    def _later(self, client: Held) -> None:
        """Resume the client when others have had their turn."""
        self._slices.later(client, client.resume)

    @property
    def is_easy(self) -> bool:
        """Whether no topic takes long to look up."""
        return self._routes.are_easy

    def new(self, topics: list[bytes]) -> list[bytes]:
        """The topics whose subscribers aren't known."""
        known = self._routes.known
        return [topic for topic in topics if known(topic) is None]

    def look_up(self, client: Held, topics: list[bytes]) -> bool:
        """Find the subscribers of topics. False if that takes a while: the client is held until they are known."""
        held: Future[Any] = Future()
        work = self._finding(client, topics, held)
        if self._is_first and any(next(work, True) for _ in range(STEPS_MIN)):
            return True  # few don't wait for the turns of others
        if self._slices.start(client, work):
            return True
        self._looking_up = held
        client.hold(held)
        return False

    def _finding(self, client: Held, topics: list[bytes], held: Future[Any]) -> Iterator[None]:
        try:
            for topic in topics:
                if held.cancelled():
                    return  # the client is gone
                if self._routes.known(topic) is None:
                    yield from self._routes.find(topic)
                    yield
        except Exception:
            logger.exception("broker: finding the subscribers of a topic failed; its delivery tries again")
        if self._looking_up is held:
            self._looking_up = None
            client.resume()
