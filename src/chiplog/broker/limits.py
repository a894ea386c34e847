"""What a broker allows, and how much of anything it keeps."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

NEVER = 0xFFFF_FFFF
"""A session expiry that means: never."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Every queue and buffer of a broker has one of these. What is past it waits, or gets a clear answer."""

    clients_max: int = 20_000
    packet_bytes_max: int = 16 << 20
    """The largest packet that is taken."""
    in_flight_max: int = 1000
    """Messages that a subscriber may have unacknowledged, if it doesn't ask for fewer."""
    receive_max: int = 1000
    """Messages of QoS 2 that a publisher may have unreleased."""
    out_bytes_max: int = 256 << 10
    """That wait for a subscriber's socket: past this it falls behind, and reads the log later."""
    tail_bytes_max: int = 32 << 20
    """Of the log's end, that are kept in memory for who is a little behind."""
    turn_bytes_max: int = 16 << 20
    """That are written to the log together."""
    session_expiry_max: int = NEVER
    """Seconds that a session is kept without its client."""
    subscriptions_max: int = 10_000
    """Of one client."""
    topic_alias_max: int = 64
    """Aliases that a publisher may define."""
    keep_alive_max: int = 65_535
    """Seconds. A client that wants longer ones, or none, is told this."""
    connect_seconds: float = 10.0
    """For a CONNECT, after which a connection is closed."""
    retained_max: int = 1_000_000
    """Topics with a retained message."""
    retain_seconds: float | None = None
    """How long messages are kept at least; None: for ever. Files go as a whole, when all in them is older."""
    retain_bytes: int | None = None
    """How many bytes of messages are kept at least."""
    retain_force: bool = False
    """Whether files go although a session hasn't got to their messages yet: those are lost to it."""
    retain_interval_seconds: float = 60.0
    """How often that is looked at."""
    system_interval_seconds: float = 10.0
    """How often $SYS topics have new values; 0: there are none."""
