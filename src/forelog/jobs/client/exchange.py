"""Requests on their way to a job server: which were answered, what may be sent again, and what became of each.

What the clients with and without asyncio have in common. Sending, receiving and waiting is left to them.

A connection can break when a command was sent and no answer came: then nobody knows whether it was done. An add
has an id that its client chose, so that it can be sent again: `Duplicate job` then says that it had been done.
The same goes for a delete and `-NOT-FOUND`, and for what changes nothing. A lease, a complete, a fail and a run
are not sent again; their caller is told that it is unknown. A server whose command log has failed may say that it
doesn't know either.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from forelog.errors import BatchFailed, ConnectionLost, JobError, JobRefused, ServerFailed
from forelog.jobs.client.requests import Request, windows

if TYPE_CHECKING:
    import ssl

__all__ = ["Endpoint", "Exchange", "Pending"]

PORT = 9922
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
RETRY_SECONDS = 5.0
_PAUSE_SECONDS = (0.05, 1.0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, and how to speak to it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    token: str | bytes | None

    @classmethod
    def of(cls, server: str, tls: ssl.SSLContext | bool, token: str | bytes | None) -> Endpoint:
        """From what a user says.

        >>> Endpoint.of("jobs.example:9000", False, None).port, Endpoint.of("[::1]", False, None).host
        (9000, '::1')
        """
        if not isinstance(server, str):
            raise TypeError(f"a server is a text, HOST:PORT, as in '127.0.0.1:{PORT}', not {server!r:.100}")
        host, colon, port = server.rpartition(":")
        if not colon or "]" in port:
            host, port = server, str(PORT)
        if not port.isdecimal() or not 0 < int(port) < 65536 or not host:
            raise JobRefused(f"{server!r:.100} is no address: expected HOST:PORT, as in 127.0.0.1:{PORT}")
        if tls is True:
            import ssl

            tls = ssl.create_default_context()
        return cls(host.strip("[]"), int(port), tls or None, token)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def unreachable(self, error: Exception) -> ConnectionLost:
        """There is no connection."""
        return ConnectionLost(f"no job server answers at {self}: {_reason(error)}")


class Pending(Generic[T]):
    """A command of a batch. Its value is there once the batch was sent."""

    __slots__ = ("_outcome", "request")

    def __init__(self, request: Request[T]) -> None:
        self.request = request
        self._outcome: Any = None

    def value(self) -> T:
        """What the command gave; raises what went wrong with it."""
        if self._outcome is None:
            raise ValueError(f"{self.request.what} wasn't sent yet: its batch ends with the `with` block")
        error = self._outcome[1]
        if error is not None:
            raise error
        found: T = self._outcome[0]
        return found

    def error(self) -> JobError | None:
        """What went wrong, if anything did."""
        return None if self._outcome is None else self._outcome[1]

    def is_settled(self) -> bool:
        """Whether it is known what became of it."""
        return self._outcome is not None

    def settle(self, answer: Any, repeated: bool) -> None:
        """The server's answer."""
        try:
            self._outcome = self.request.value(answer, repeated), None
        except JobError as error:
            self._outcome = None, error

    def give_up(self, error: JobError) -> None:
        """There will be no answer."""
        self._outcome = None, error

    def begin_anew(self) -> None:
        """It is sent once more: the answer that came tells nothing."""
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
        """What was sent and may have been done, at any time."""

    def is_done(self) -> bool:
        """Whether everything has its outcome."""
        return not self._todo

    def lots(self) -> Iterator[tuple[bytes, list[Pending[Any]]]]:
        """What to write at once, and whose answers to read then."""
        at = 0
        for window in windows([pending.request for pending in self._todo]):
            lot = self._todo[at : at + len(window)]
            at += len(window)
            yield b"".join([request.data for request in window]), lot

    def answered(self, pending: Pending[Any], answer: Any) -> None:
        """An answer has come."""
        pending.settle(answer, pending in self._sent)

    def finished(self, now: float) -> float:
        """Everything was answered. Returns how long to wait before that is sent again of which the server itself
        doesn't know whether it was done, or which it doesn't take now after it may have; 0 if there is none."""
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
        """Whether nothing is to be sent again."""
        if self._give_up_at is None:
            self._give_up_at = now + self._retry_seconds
        return now + self._pause_seconds > self._give_up_at

    def _pause(self) -> float:
        pause = self._pause_seconds * random.uniform(0.5, 1.0)
        self._pause_seconds = min(2 * self._pause_seconds, _PAUSE_SECONDS[1])
        return pause

    def sent(self, lot: list[Pending[Any]]) -> None:
        """These were answered, or not, after they had been sent."""
        self._sent.update(pending for pending in lot if not pending.is_settled())

    def lost(self, error: Exception, now: float, *, final: bool = False) -> float:
        """The connection broke, or there is none. Returns how long to wait before it is tried again, if it is."""
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
            return ConnectionLost(f"{request.what} was not sent: {_reason(error)}")
        return ConnectionLost(
            f"the connection to {self._server} broke before the answer to {request.what} came "
            f"({_reason(error)}): whether it was done is unknown{_if_once_only(request)}",
            unknown=True,
        )

    def values(self) -> list[Any]:
        """What every command gave; raises BatchFailed if one gave an error."""
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


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not error.args:
        return "it took too long"
    if type(error).__module__ == "ssl":
        from forelog.serving.tls import explain  # only who speaks TLS needs it

        return explain(error)  # type: ignore[arg-type]
    strerror = getattr(error, "strerror", None)
    if isinstance(error, OSError) and error.errno and str(strerror).startswith("Connect call failed"):
        return os.strerror(error.errno)  # as asyncio tells it, with an address that was told already
    return str(strerror or error) or type(error).__name__
