"""Requests that are sent together: which have their reply, which may be sent again, and the outcome of each.

Both clients share this. They do the sending, receiving and waiting.

If a connection breaks after a command was sent and before its reply came, nobody knows whether the command was
done. An add has an id that its client chose, so it can be sent again: `Duplicate job` then means that it had
been done. The same goes for a delete with `-NOT-FOUND`, and for commands that change nothing. A lease, a
complete, a fail and a run are not sent again: their caller gets an error that says that the outcome is unknown.
A server whose command log has failed may also reply that an outcome is unknown.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from forelog.errors import BatchFailed, ConnectionLost, JobError, ServerFailed
from forelog.jobs.client.endpoint import reason_of
from forelog.jobs.client.requests import Request, windows

CONNECT_SECONDS = 5.0
REPLY_SECONDS = 30.0
RETRY_SECONDS = 5.0
_PAUSE_SECONDS = (0.05, 1.0)

T = TypeVar("T")


class Pending(Generic[T]):
    """A command of a pipeline. It has its value once the pipeline was sent."""

    __slots__ = ("_outcome", "request")

    def __init__(self, request: Request[T]) -> None:
        self.request = request
        self._outcome: Any = None

    def value(self) -> T:
        """The value of the command. Raises its error if it failed."""
        if self._outcome is None:
            raise ValueError(f"{self.request.what} wasn't sent yet: it is sent at the end of the `with` block")
        error = self._outcome[1]
        if error is not None:
            raise error
        found: T = self._outcome[0]
        return found

    def error(self) -> JobError | None:
        """The error of the command, if it failed."""
        return None if self._outcome is None else self._outcome[1]

    def is_settled(self) -> bool:
        """Whether the command has its outcome."""
        return self._outcome is not None

    def settle(self, reply: Any, repeated: bool) -> None:
        """Take the reply, to a request that may have been sent before (`repeated`)."""
        try:
            self._outcome = self.request.value(reply, repeated), None
        except JobError as error:
            self._outcome = None, error

    def give_up(self, error: JobError) -> None:
        """Settle it with the error: no reply will come."""
        self._outcome = None, error

    def begin_anew(self) -> None:
        """Drop the outcome, because the request is sent again."""
        self._outcome = None


class Exchange:
    """Requests that are sent together."""

    def __init__(self, pending: Sequence[Pending[Any]], server: object, retry_seconds: float) -> None:
        self.pending = list(pending)
        self._server = server
        self._retry_seconds = retry_seconds
        self._give_up_at: float | None = None
        self._pause_seconds = _PAUSE_SECONDS[0]
        self._todo = self.pending.copy()
        self._sent: set[Pending[Any]] = set()
        """Requests that were sent and may have been done."""

    def is_done(self) -> bool:
        """Whether each request has its outcome."""
        return not self._todo

    def lots(self) -> Iterator[tuple[bytes, list[Pending[Any]]]]:
        """Lots of requests: the bytes to write, and whose replies to read then."""
        at = 0
        for window in windows([pending.request for pending in self._todo]):
            lot = self._todo[at : at + len(window)]
            at += len(window)
            yield b"".join([request.data for request in window]), lot

    def replied(self, pending: Pending[Any], reply: Any) -> None:
        """A reply has come."""
        pending.settle(reply, pending in self._sent)

    def finished(self, now: float) -> float:
        """All replies have come. Some may say that the server does not know the outcome, or cannot take the
        request now although it may have before. Returns how long to wait before these are sent again, or 0."""
        doubtful = [pending for pending in self._todo if self._is_doubtful(pending)]
        self._sent.update(doubtful)
        self._todo = []
        over = bool(doubtful) and self._is_over(now)
        for pending in doubtful:
            if over or not pending.request.repeatable:
                pending.give_up(_in_doubt(pending))
            else:
                pending.begin_anew()
                self._todo.append(pending)
        return self._pause() if self._todo else 0.0

    def _is_doubtful(self, pending: Pending[Any]) -> bool:
        error = pending.error()
        return isinstance(error, ServerFailed) and (error.unknown or pending in self._sent)

    def _is_over(self, now: float) -> bool:
        """Whether the time for retries is over."""
        if self._give_up_at is None:
            self._give_up_at = now + self._retry_seconds
        return now + self._pause_seconds > self._give_up_at

    def _pause(self) -> float:
        pause = self._pause_seconds * random.uniform(0.5, 1.0)
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS[1])
        return pause

    def sent(self, lot: list[Pending[Any]]) -> None:
        """The requests of a lot were sent. Those without a reply may have been done."""
        self._sent.update(pending for pending in lot if not pending.is_settled())

    def lost(self, error: Exception, now: float, *, final: bool = False) -> float:
        """The connection broke, or there is none. Returns how long to wait before a retry, or 0 if there is
        none."""
        hopeless = isinstance(error, JobError) and not isinstance(error, ConnectionLost)
        over = final or hopeless or self._is_over(now)
        again = []
        for pending in self._todo:
            if pending.is_settled():
                continue
            unknown = pending in self._sent
            if not over and (pending.request.repeatable or not unknown):
                again.append(pending)
            elif isinstance(error, JobError) and not unknown:
                pending.give_up(error)
            else:
                pending.give_up(self._broken(pending.request, error, unknown))
        self._todo = again
        return self._pause() if again else 0.0

    def _broken(self, request: Request[Any], error: Exception, unknown: bool) -> JobError:
        if isinstance(error, JobError) and not isinstance(error, ConnectionLost):
            return error
        if not unknown:
            return ConnectionLost(f"{request.what} was not sent: {reason_of(error)}")
        return ConnectionLost(
            f"the connection to {self._server} broke before the reply to {request.what} came "
            f"({reason_of(error)}): whether it was done is unknown{_if_once_only(request)}",
            unknown=True,
        )

    def values(self) -> list[Any]:
        """The values of all commands. Raises BatchFailed if one failed."""
        failed = [pending for pending in self.pending if pending.error() is not None]
        if failed:
            raise BatchFailed(
                f"{len(failed)} of {len(self.pending)} commands failed, the first with: {failed[0].error()}",
                outcomes=[pending.error() or pending.value() for pending in self.pending],
            )
        return [pending.value() for pending in self.pending]


def _in_doubt(pending: Pending[Any]) -> JobError:
    request = pending.request
    return ServerFailed(
        f"whether {request.what} was done is unknown, because the server's command log failed"
        f"{_if_once_only(request)}",
        unknown=True,
    )


def _if_once_only(request: Request[Any]) -> str:
    return "" if request.repeatable else ", and it can't be sent again without knowing"
