"""The limits of a broker. `docs/bounds.md` lists them, with a test for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, get_origin, get_type_hints

from forelog.bounds import AGE_SECONDS_MAX, BYTES_MAX, COUNT_MAX, check_number, check_whole

NEVER = 0xFFFF_FFFF
"""A session expiry that means never."""
SESSION_BYTES_MAX = 64 << 20
"""The most that `session_bytes_max` may be: a session is one event of a log, and events have limits too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A limit for every queue, buffer and table. What exceeds one waits, or is refused with a clear reason."""

    clients_max: Annotated[int, (1, COUNT_MAX)] = 20_000
    """Connected clients."""
    unconnected_max: Annotated[int, (1, COUNT_MAX)] = 4000
    """Connections whose CONNECT isn't accepted yet. Past this, the address with the most of them loses one."""
    unconnected_per_address_max: Annotated[int, (1, COUNT_MAX)] = 2000
    """Such connections from one address. Past this, the address loses its oldest one."""
    unconnected_bytes_max: Annotated[int, (1, BYTES_MAX)] = 16 << 20
    """Bytes that are kept of all such connections."""
    connect_bytes_max: Annotated[int, (64, 0x1000_0004)] = 128 << 10
    """The largest CONNECT, including its will."""
    connect_seconds: float = 10.0
    """Seconds from accepting a connection to its CONNECT, including TLS and WebSocket handshakes."""
    linger_seconds: float = 2.0
    """Seconds that a client has to read why it is disconnected, and to close its side."""
    linger_bytes_max: Annotated[int, (0, BYTES_MAX)] = 32 << 20
    """Bytes that are read and dropped from a client in that time."""
    packet_bytes_max: Annotated[int, (2, 0x1000_0004)] = 16 << 20
    """The largest packet that a client may send. MQTT has packets of 2 bytes to 256 MiB."""
    control_bytes_max: Annotated[int, (64, 0x1000_0004)] = 256 << 10
    """The largest packet other than a PUBLISH, such as a SUBSCRIBE."""
    properties_bytes_max: Annotated[int, (64, 0x1000_0004)] = 64 << 10
    """The largest properties of a packet, in MQTT 5."""
    partial_bytes_max: Annotated[int, (1, BYTES_MAX)] = 64 << 20
    """Bytes of incomplete packets of all clients; at least one packet."""
    in_flight_max: Annotated[int, (1, 65_535)] = 1000
    """Unacknowledged messages of a subscriber, unless it asks for fewer."""
    receive_max: Annotated[int, (1, 65_535)] = 1000
    """Messages of QoS 2 that a publisher hasn't released."""
    flights_bytes_max: Annotated[int, (1, BYTES_MAX)] = 512 << 20
    """Memory of messages in flight of all sessions, in both directions, beyond a few of each session."""
    out_bytes_max: Annotated[int, (1, BYTES_MAX)] = 256 << 10
    """Bytes that wait for a subscriber's socket. Past this, it falls behind and reads the log later."""
    out_total_bytes_max: Annotated[int, (1, BYTES_MAX)] = 256 << 20
    """Bytes that wait for the sockets of all clients. Past this, the user with the most loses its oldest one."""
    tail_bytes_max: Annotated[int, (0, BYTES_MAX)] = 32 << 20
    """Bytes of the log's tail cached for subscribers that lag slightly."""
    turn_bytes_max: Annotated[int, (1, BYTES_MAX)] = 16 << 20
    """Bytes that are written to the log together."""
    pending_bytes_max: Annotated[int, (0, BYTES_MAX)] = 8 << 20
    """Bytes of changes of sessions while these can't be written. Past this, all are written anew later."""
    name_bytes_max: Annotated[int, (1, 65_535)] = 1024
    """Bytes of a client id, and of a user name."""
    session_bytes_max: Annotated[int, (1, SESSION_BYTES_MAX)] = 32 << 20
    """Memory of a session: its id, its will and its subscriptions."""
    sessions_bytes_max: Annotated[int, (1, BYTES_MAX)] = 1 << 30
    """Memory of all sessions. A user gets more only while more than the user already has is free."""
    sessions_max: Annotated[int, (1, COUNT_MAX)] = 200_000
    """Sessions that outlive their connections, shared among users like `sessions_bytes_max`."""
    session_expiry_max: Annotated[int, (0, NEVER)] = NEVER
    """Seconds that a session is kept after its client disconnects."""
    subscriptions_max: Annotated[int, (1, COUNT_MAX)] = 10_000
    """Subscriptions of one client."""
    topic_alias_max: Annotated[int, (0, 65_535)] = 64
    """Aliases that a publisher may define."""
    keep_alive_max: Annotated[int, (1, 65_535)] = 65_535
    """Seconds. A client that asks for more, or for none, gets this instead."""
    alias_bytes_max: Annotated[int, (0, BYTES_MAX)] = 64 << 10
    """Bytes of the topics of a client's aliases, in each direction."""
    lists_bytes_max: Annotated[int, (0, BYTES_MAX)] = 32 << 20
    """Bytes of cached lists of the topics in the log's files."""
    retained_max: Annotated[int, (0, COUNT_MAX)] = 1_000_000
    """Topics with a retained message."""
    retained_bytes_max: Annotated[int, (0, BYTES_MAX)] = 256 << 20
    """Memory of all retained messages."""
    retain_seconds: float | None = None
    """How long messages are kept at least; None: forever. A file is removed when all its messages are older."""
    retain_bytes: int | None = None
    """How many bytes of messages are kept at least."""
    retain_force: bool = False
    """Whether files are removed even if a session needs their messages, which it then loses."""
    retain_interval_seconds: float = 60.0
    """Seconds between two runs of retention."""
    system_interval_seconds: float = 10.0
    """Seconds between two values of $SYS topics; 0: there are none."""

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            check_whole(name, getattr(self, name), least=least, most=most)
        check_number("connect_seconds", self.connect_seconds, above=True)
        check_number("linger_seconds", self.linger_seconds)
        check_number("retain_seconds", self.retain_seconds, most=AGE_SECONDS_MAX, or_none="to keep everything")
        check_whole("retain_bytes", self.retain_bytes, least=0, or_none="to keep everything")
        check_number("retain_interval_seconds", self.retain_interval_seconds, above=True)
        check_number("system_interval_seconds", self.system_interval_seconds)


_BOUNDS: dict[str, tuple[int, int]] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(Limits, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""The least and the most that each whole number may be."""
