"""What a client's session sees of its server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from forelog.jobs.server.inspection import Seen

if TYPE_CHECKING:
    from forelog.jobs.machine.queue import Waiter
    from forelog.jobs.server.protocol import Session

__all__ = ["Gate"]


class Gate(Seen, Protocol):
    """What a session sees of its server."""

    read_only: bool
    """Whether nothing can be changed now."""
    trial: bool
    """Whether each change is to be written by itself, to find out whether it can be."""
    token: bytes | None

    def try_writing(self, session: Session) -> None:
        """Write what this client has changed, at once."""

    def fetch(self, waiter: Waiter) -> None:
        """Read from the log what a client asks for."""

    def admit(self, session: Session) -> bytes | None:
        """The client has shown the token. Returns why it can't come in."""

    def refuse_token(self, session: Session, tried: bool) -> int:
        """The client has shown a wrong token, or none. Returns when it is told."""

    def complain(self, session: Session, what: str) -> None:
        """The client speaks something else."""
