"""What a broker allows, and how much of anything it keeps."""

from __future__ import annotations

from dataclasses import dataclass

from chiplog.bounds import AGE_SECONDS_MAX, BYTES_MAX, COUNT_MAX, check_number, check_whole

__all__ = ["Limits"]

NEVER = 0xFFFF_FFFF
"""A session expiry that means: never."""


_WHOLE = {
    "clients_max": (1, COUNT_MAX),
    "packet_bytes_max": (2, 0x1000_0004),  # from the smallest packet to the largest that MQTT has
    "in_flight_max": (1, 65_535),
    "receive_max": (1, 65_535),
    "out_bytes_max": (1, BYTES_MAX),
    "tail_bytes_max": (0, BYTES_MAX),
    "turn_bytes_max": (1, BYTES_MAX),
    "session_expiry_max": (0, NEVER),
    "subscriptions_max": (1, COUNT_MAX),
    "topic_alias_max": (0, 65_535),
    "keep_alive_max": (1, 65_535),
    "retained_max": (0, COUNT_MAX),
}


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

    def __post_init__(self) -> None:
        for name, (least, most) in _WHOLE.items():
            check_whole(name, getattr(self, name), least=least, most=most)
        check_number("connect_seconds", self.connect_seconds, above=True)
        check_number("retain_seconds", self.retain_seconds, most=AGE_SECONDS_MAX, or_none="to keep everything")
        check_whole("retain_bytes", self.retain_bytes, least=0, or_none="to keep everything")
        check_number("retain_interval_seconds", self.retain_interval_seconds, above=True)
        check_number("system_interval_seconds", self.system_interval_seconds)
