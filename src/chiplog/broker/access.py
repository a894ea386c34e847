"""Who may come in, and what they may publish and subscribe to."""

from __future__ import annotations

from chiplog.broker.mqtt import ReasonCode

__all__ = ["Access"]


class Access:
    """Anyone may do anything; from elsewhere than this machine only if that is said."""

    def __init__(self, *, anonymous: bool = False) -> None:
        self._anonymous = anonymous

    def admit(self, user: str | None, password: bytes | None, host: str) -> ReasonCode | None:  # noqa: ARG002
        """Why a client may not come in; None if it may."""
        if self._anonymous or host in ("", "localhost", "::1") or host.startswith("127."):
            return None
        return ReasonCode.NOT_AUTHORIZED

    def may_publish_all(self, user: str | None) -> bool:  # noqa: ARG002
        """Whether a user may publish to every topic: then none has to be looked at."""
        return True

    def may_publish(self, user: str | None, topic: str) -> bool:  # noqa: ARG002
        """Whether a user may publish to a topic."""
        return True

    def may_subscribe(self, user: str | None, filter: str) -> bool:  # noqa: A002, ARG002
        """Whether a user may get what a filter matches."""
        return True
