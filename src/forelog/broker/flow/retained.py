"""Sends retained messages to clients that subscribe, as far as they have room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from forelog.broker.flow.sender import Sender
from forelog.broker.flow.slices import Slices
from forelog.broker.log.batch import StoredMessage
from forelog.broker.sessions.retained import RetainedMessages
from forelog.broker.sessions.session import Session, judge


class RetainedDelivery:
    """Sends the retained messages that `session.retained_left` asks for."""

    def __init__(
        self,
        retained: RetainedMessages,
        system: Callable[[str], Iterable[StoredMessage]],
        sender: Sender,
        slices: Slices,
    ) -> None:
        """`system` returns the `$SYS` messages that match a filter."""
        self._retained = retained
        self._system = system
        self._sender = sender
        self._slices = slices

    def send(self, session: Session) -> None:
        """Send what is left for a client, as far as it has room."""
        if session.retained_left and not session.retained_sending:
            session.retained_sending = True
            self._slices.start(session, self._sending(session))

    def _sending(self, session: Session) -> Iterator[None]:
        """Send filter by filter. Each message is sent as it is now, if the subscription still exists."""
        left = session.retained_left
        try:
            while left and self._sender.can_take(session):
                name = next(iter(left))
                sub, walk = session.main.subs.get(name), left[name]
                if sub is None:
                    del left[name]
                    continue
                if walk is None:
                    walk = left[name] = chain(self._retained.match(name), self._system(name))
                try:
                    message = next(walk)
                except StopIteration:
                    del left[name]
                    continue
                verdict = judge([sub])
                if message is not None and verdict is not None:
                    self._sender.send_retained(session, message, verdict)
                yield
        finally:
            session.retained_sending = False
