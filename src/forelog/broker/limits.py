"""What a broker allows, and how much of anything it keeps. `docs/bounds.md` lists it, with a test for each."""

from __future__ import annotations

from dataclasses import dataclass

from forelog.bounds import AGE_SECONDS_MAX, BYTES_MAX, COUNT_MAX, check_number, check_whole

__all__ = ["Limits"]

NEVER = 0xFFFF_FFFF
"""A session expiry that means: never."""
SESSION_BYTES_MAX = 64 << 20
"""The most that `session_bytes_max` may be: a session is one event of a log, whose batches are at most 256 MiB."""


_WHOLE = {
    "clients_max": (1, COUNT_MAX),
    "unconnected_max": (1, COUNT_MAX),
    "unconnected_per_address_max": (1, COUNT_MAX),
    "unconnected_bytes_max": (1, BYTES_MAX),
    "connect_bytes_max": (64, 0x1000_0004),
    "linger_bytes_max": (0, BYTES_MAX),
    "packet_bytes_max": (2, 0x1000_0004),  # from the smallest packet to the largest that MQTT has
    "control_bytes_max": (64, 0x1000_0004),
    "properties_bytes_max": (64, 0x1000_0004),
    "partial_bytes_max": (1, BYTES_MAX),
    "in_flight_max": (1, 65_535),
    "receive_max": (1, 65_535),
    "out_bytes_max": (1, BYTES_MAX),
    "out_total_bytes_max": (1, BYTES_MAX),
    "tail_bytes_max": (0, BYTES_MAX),
    "turn_bytes_max": (1, BYTES_MAX),
    "pending_bytes_max": (0, BYTES_MAX),
    "name_bytes_max": (1, 65_535),
    "session_bytes_max": (1, SESSION_BYTES_MAX),
    "sessions_bytes_max": (1, BYTES_MAX),
    "sessions_max": (1, COUNT_MAX),
    "alias_bytes_max": (0, BYTES_MAX),
    "lists_bytes_max": (0, BYTES_MAX),
    "retained_bytes_max": (0, BYTES_MAX),
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
    """Clients at a time whose CONNECT was accepted."""
    unconnected_max: int = 4000
    """Connections whose CONNECT wasn't accepted yet. Beyond this the address with most of them loses one."""
    unconnected_per_address_max: int = 2000
    """Such connections from one address. Beyond this the address loses its oldest one."""
    unconnected_bytes_max: int = 16 << 20
    """Bytes that such connections may have sent, all together."""
    connect_bytes_max: int = 128 << 10
    """The largest CONNECT, its will included."""
    connect_seconds: float = 10.0
    """From accepting a connection to its CONNECT, TLS and WebSocket handshakes included."""
    linger_seconds: float = 2.0
    """For a client to read why it is disconnected, and to close its side."""
    linger_bytes_max: int = 32 << 20
    """Bytes that are read, and dropped, from a client in that time."""
    packet_bytes_max: int = 16 << 20
    """The largest packet that is taken."""
    control_bytes_max: int = 256 << 10
    """The largest packet that is no PUBLISH, such as a SUBSCRIBE."""
    properties_bytes_max: int = 64 << 10
    """The largest properties of a packet, in MQTT 5."""
    partial_bytes_max: int = 64 << 20
    """Packets that aren't there as a whole yet, of all clients together; never less than one packet."""
    in_flight_max: int = 1000
    """Messages that a subscriber may have unacknowledged, if it doesn't ask for fewer."""
    receive_max: int = 1000
    """Messages of QoS 2 that a publisher may have unreleased."""
    out_bytes_max: int = 256 << 10
    """Bytes that wait for a subscriber's socket. Past this it falls behind, and reads the log later."""
    out_total_bytes_max: int = 256 << 20
    """Bytes that wait for the sockets of all clients. Past this the user that has most loses its oldest client."""
    tail_bytes_max: int = 32 << 20
    """Bytes of the log's tail cached for subscribers that lag slightly."""
    turn_bytes_max: int = 16 << 20
    """Bytes that are written to the log together."""
    pending_bytes_max: int = 8 << 20
    """Changes of sessions that couldn't be written. Past this, everything is written anew once that works."""
    name_bytes_max: int = 1024
    """Of a client id, and of a user name."""
    session_bytes_max: int = 32 << 20
    """Bytes that a session takes: its id, its will and its subscriptions, about as much as they are in memory."""
    sessions_bytes_max: int = 1 << 30
    """Bytes that all sessions take. An owner gets more only while more than it has itself is free."""
    sessions_max: int = 200_000
    """Sessions that outlive their connections; an owner gets more only while more than it has itself is free."""
    session_expiry_max: int = NEVER
    """Seconds that a session is kept without its client."""
    subscriptions_max: int = 10_000
    """Of one client."""
    topic_alias_max: int = 64
    """Aliases that a publisher may define."""
    keep_alive_max: int = 65_535
    """Seconds. A client that wants longer ones, or none, is told this."""
    alias_bytes_max: int = 64 << 10
    """Bytes of the topics that aliases of a client stand for, each way."""
    lists_bytes_max: int = 32 << 20
    """Bytes of lists of topics, which say what the log's files have in them."""
    retained_max: int = 1_000_000
    """Topics with a retained message."""
    retained_bytes_max: int = 256 << 20
    """Bytes of all retained messages, about as much as they are in memory."""
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
        check_number("linger_seconds", self.linger_seconds)
        check_number("retain_seconds", self.retain_seconds, most=AGE_SECONDS_MAX, or_none="to keep everything")
        check_whole("retain_bytes", self.retain_bytes, least=0, or_none="to keep everything")
        check_number("retain_interval_seconds", self.retain_interval_seconds, above=True)
        check_number("system_interval_seconds", self.system_interval_seconds)
