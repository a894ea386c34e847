"""Frames over a socket: what primaries, replica servers and followers send each other.

::

    frame   | length 4 | kind 1 | body |            length of kind and body, big-endian

    HELLO       msgpack   who connects, to which log, in which role, and what it has
    KNOWN       msgpack   to a primary: the last opening that wrote the copy, and where the whole copy ends
    CLAIM       msgpack   whether the primary's log continues that
    WELCOME     msgpack   what the other side has
    REFUSED     msgpack   why not; then the connection is closed
    RESTART               everything is sent again: begin a new copy
    DATA        | segment 8 | offset 8 | records |
    FLUSH       | 1 if synced, else 0 |                     asks for an ACK
    ACK         | segment 8 | offset 8 | tail |             everything up to this position has arrived, or is
                                                            synced; the last bytes before it
    COMMITTED   | begin 8 8 | end 8 8 |                     a generation is whole: remove what came before

The length is checked before anything is read or kept. Until a HELLO was accepted, a frame may have a few kilobytes
at most. Every wait has a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import ssl
import struct
import threading
import time
from enum import IntEnum
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from forelog.copies.identity import EPOCH_MAX, WORD_BYTES, Identity
from forelog.copies.snapshot import Resume, Snapshot
from forelog.errors import BadFrame, MissingExtra, ReplicaError, Superseded
from forelog.log.directory.place import TAIL_BYTES
from forelog.log.position import Position
from forelog.serving.addresses import shown
from forelog.serving.tls import explain, tls_hint

VERSION = 2
PORT = 7070
HELLO_BYTES_MAX = 4096
FRAME_BYTES_MAX = 64 << 20  # a frame has at least one whole record
FREE_BYTES = (1 << 20) + (64 << 10)  # larger frames share a room
QUIET_SECONDS = 30.0  # an answer may take so long
_LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_HEAD = struct.Struct(">IB")
_PLACE = struct.Struct(">QQ")
_SNAPSHOT = struct.Struct(">QQQQ")


Body = bytes | bytearray


class Kind(IntEnum):
    """The kinds of frames."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    RESTART = 4
    DATA = 5
    FLUSH = 6
    ACK = 7
    COMMITTED = 8
    KNOWN = 9
    CLAIM = 10


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    body: Body


class Address(NamedTuple):
    """The address of a log on a replica server."""

    host: str
    """The server's host."""
    port: int
    """The server's port."""
    log: str
    """The name of the log there."""

    def __str__(self) -> str:
        return f"replica://{shown(self.host, self.port)}/{self.log}"


def parse_address(where: str) -> Address:
    """Parse `replica://HOST:PORT/LOG`; ValueError if it isn't one."""
    parts = urlsplit(where)
    log = unquote(parts.path.strip("/"))
    try:
        port = parts.port or PORT
    except ValueError:
        port = 0
    if parts.scheme != "replica" or not parts.hostname or not 0 < port < 65536 or not is_log_name(log):
        raise ValueError(
            f"{where!r} is not a replica: expected replica://HOST:PORT/LOG, where LOG is a plain name"
        )
    return Address(parts.hostname, port, log)


def is_log_name(name: str) -> bool:
    """Whether a log may have this name on a replica server, where it is the name of a directory."""
    return _LOG_NAME.fullmatch(name) is not None


class Room:
    """Memory for the large frames of all connections together. A connection waits if there is none left."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._changed = threading.Condition()

    def take(self, count: int, deadline: float) -> None:
        """Wait for room for a frame; ReplicaError at the deadline. A frame that is alone always fits."""
        with self._changed:
            while self._used and self._used + count > self._bytes_max:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ReplicaError(
                        f"there was no room for a frame of {count:,} bytes: other frames take up "
                        f"{self._used:,} of {self._bytes_max:,} bytes"
                    )
                self._changed.wait(left)
            self._used += count

    def give(self, count: int) -> None:
        """Give back the room of a frame."""
        with self._changed:
            self._used -= count
            self._changed.notify_all()


class Link:
    """A connection that carries frames. One thread sends, one receives; any thread may close it."""

    def __init__(self, sock: socket.socket, *, who: str) -> None:
        self._socket = sock
        self.who = who
        self.frame_bytes_max = HELLO_BYTES_MAX
        self.room: Room | None = None
        """The room for large frames, shared with other connections."""
        self._taken = 0
        sock.settimeout(QUIET_SECONDS)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # -- frames

    def send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """Send a frame within QUIET_SECONDS. After an error the connection can't be used any more."""
        data = memoryview(frame_bytes(kind, *parts))
        deadline = time.monotonic() + QUIET_SECONDS
        try:
            while (
                data
            ):  # sendall() over TLS would give whoever takes a byte now and then as long again for the next
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                data = data[self._socket.send(data) :]
        except (OSError, ValueError) as error:
            raise self._last_words() or _lost(self.who, error) from error

    def _last_words(self) -> ReplicaError | None:
        """The reason that the other side sent before it closed, if any."""
        with contextlib.suppress(ReplicaError):
            while (frame := self.receive(0.1)) is not None:
                if frame.kind is Kind.REFUSED:
                    return refusal(self.who, frame.body)
        return None

    def receive(self, timeout: float = QUIET_SECONDS) -> Frame | None:
        """The next frame; None if the other side has closed in order. ReplicaError after `timeout` seconds.

        This also gives back the room that the frame before it took.
        """
        self._give_back()
        head = self._take(_HEAD.size, time.monotonic() + timeout, at_frame=True)
        if head is None:
            return None
        kind, length = parse_head(self.who, head, self.frame_bytes_max)
        deadline = time.monotonic() + timeout
        if self.room is not None and length > FREE_BYTES:
            self.room.take(length, deadline)
            self._taken = length
        body = self._take(length - 1, deadline)
        assert body is not None
        return Frame(kind, body)

    def _give_back(self) -> None:
        if self.room is not None and self._taken:
            taken, self._taken = self._taken, 0
            self.room.give(taken)

    def _take(self, count: int, deadline: float, *, at_frame: bool = False) -> bytes | bytearray | None:
        body = bytearray()
        while len(body) < count:
            try:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                chunk = self._socket.recv(min(count - len(body), 1 << 18))  # memory only for what has arrived
            except (OSError, ValueError) as error:
                raise _lost(self.who, error) from error
            if not chunk:
                if at_frame and not body:
                    return None
                raise ReplicaError(f"{self.who} closed the connection in the middle of a frame")
            if len(chunk) == count:
                return chunk
            body += chunk
        return body

    def expect(self, kind: Kind, timeout: float = QUIET_SECONDS) -> Body:
        """The body of the next frame, which must be of this kind."""
        return self.expect_any(kind, timeout=timeout).body

    def expect_any(self, *kinds: Kind, timeout: float = QUIET_SECONDS) -> Frame:
        """The next frame, which must be of one of these kinds."""
        frame = self.receive(timeout)
        if frame is None:
            raise ReplicaError(f"{self.who} closed the connection")
        if frame.kind is Kind.REFUSED:
            raise refusal(self.who, frame.body)
        if frame.kind not in kinds:
            expected = " or ".join(kind.name for kind in kinds)
            raise BadFrame(f"{self.who} sends {frame.kind.name}: expected {expected}")
        return frame

    def drain(self) -> None:
        """After the last frame: read on for a moment, or the other side may lose that frame."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(0.5)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and self._socket.recv(1 << 16):
                pass

    def close(self) -> None:
        """Close the connection. A thread that waits for it gets an error."""
        self._give_back()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- frames of each kind

    def send_fields(self, kind: Kind, **fields: Any) -> None:
        """Send a frame whose body is a map."""
        self.send(kind, pack(fields))

    def send_data(self, position: Position, data: bytes | memoryview) -> None:
        """Send records that begin at a position."""
        self.send(Kind.DATA, _PLACE.pack(*position), data)

    def send_ack(self, end: Resume) -> None:
        """Send an acknowledgement of everything up to an end."""
        self.send(Kind.ACK, _PLACE.pack(*end.position), end.tail)

    def send_committed(self, snapshot: Snapshot) -> None:
        """Send that a generation is whole."""
        self.send(Kind.COMMITTED, _SNAPSHOT.pack(*snapshot.begin, *snapshot.end))


def frame_bytes(kind: Kind, *parts: bytes | memoryview) -> bytes:
    """The bytes of a frame."""
    return b"".join((_HEAD.pack(1 + sum(map(len, parts)), kind), *parts))


def parse_head(who: str, head: Body, bytes_max: int) -> tuple[Kind, int]:
    """The kind of a frame and its length, which includes the kind, from its first five bytes."""
    length, kind = _HEAD.unpack(head)
    if hint := tls_hint(head):
        raise BadFrame(f"{who} {hint}")
    if not 1 <= length <= bytes_max:
        raise BadFrame(f"{who} sends a frame of {length:,} bytes: expected at most {bytes_max:,}")
    try:
        return Kind(kind), length
    except ValueError:
        raise BadFrame(f"{who} sends a frame of the unknown kind {kind}") from None


def parse_place(body: Body) -> Position:
    """The position that a frame begins with."""
    if len(body) < _PLACE.size:
        raise BadFrame(f"a frame of {len(body)} bytes has no position")
    return Position(*_PLACE.unpack_from(body))


def parse_ack(body: Body) -> Resume:
    """The end of what an ACK acknowledges."""
    position, tail = parse_place(body), body[_PLACE.size :]
    if len(tail) > TAIL_BYTES:
        raise BadFrame(f"an acknowledgement has a tail of {len(tail)} bytes: expected at most {TAIL_BYTES}")
    return Resume(position, bytes(tail))


def parse_data(body: Body) -> tuple[Position, memoryview]:
    """The position of the records in a frame, and the records."""
    return parse_place(body), memoryview(body)[_PLACE.size :]


def parse_snapshot(body: Body) -> Snapshot:
    """The generation in a COMMITTED frame."""
    if len(body) != _SNAPSHOT.size:
        raise BadFrame(f"a frame of {len(body)} bytes has no generation")
    places = _SNAPSHOT.unpack(body)
    return Snapshot(Position(*places[:2]), Position(*places[2:]))


def need_msgspec() -> None:
    """Raise MissingExtra now, because every connection would fail without msgspec."""
    try:
        import msgspec  # noqa: F401
    except ImportError:
        raise MissingExtra.needed("msgspec", by="a connection to a replica server", extra="state") from None


def as_token(token: str | bytes | None) -> str | None:
    """A token as a string, as the protocol needs it."""
    try:
        return token.decode() if isinstance(token, bytes) else token
    except UnicodeDecodeError:
        raise ValueError("the token's bytes are not UTF-8: expected a str, or a str as UTF-8") from None


def as_tls(tls: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
    """A TLS context. True is one that trusts the system's authorities."""
    if isinstance(tls, bool):
        return ssl.create_default_context() if tls else None
    return tls


def pack(fields: dict[str, Any]) -> bytes:
    """A map of plain values, as bytes."""
    need_msgspec()
    from msgspec import msgpack

    return msgpack.encode(fields)


class Fields:
    """The map in a frame, with the type of each known field checked."""

    def __init__(self, who: str, body: Body) -> None:
        try:
            self._found = _decoder().decode(body)
        except Exception as error:  # an error of msgspec, or RecursionError
            raise BadFrame(f"{who} does not speak this protocol: {error}"[:300]) from None
        self._who = who

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, or the default."""
        value = getattr(self._found, name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """The value of a field; BadFrame without one."""
        value = getattr(self._found, name)
        if value is None:
            raise BadFrame(f"{self._who} sends no {name}")
        return value

    def resume(self) -> Resume | None:
        """The end of the copy on the other side; None if it has none."""
        segment = self.get("segment", 0)
        if not segment:
            return None
        return Resume(Position(segment, self.need("offset")), self.need("tail"))

    def identity(self) -> Identity | None:
        """The opening of a log that the frame names; None without one."""
        if self.get("id") is None:
            return None
        found = Identity(self.need("id"), self.need("term"), self.need("run"), self.need("word"))
        if len(found.id) != 16 or len(found.word) != WORD_BYTES:
            raise BadFrame(f"{self._who} sends no valid identity: its id or its word has a wrong length")
        if not (0 < found.term <= EPOCH_MAX and 0 < found.run <= EPOCH_MAX):
            epoch = f"{found.term}.{found.run}"
            raise BadFrame(f"{self._who} sends no valid identity: its epoch is {epoch}, at most {EPOCH_MAX} each")
        return found

    def need_identity(self) -> Identity:
        """The opening of a log that the frame names; BadFrame without one."""
        found = self.identity()
        if found is None:
            raise BadFrame(f"{self._who} sends no id")
        return found


@functools.cache
def _decoder() -> Any:
    """Decodes the maps of all frames, and checks the types of their fields."""
    import msgspec
    from msgspec import Meta, msgpack

    whole = Annotated[int, Meta(ge=0, le=2**63 - 1)] | None
    name, few = Annotated[str, Meta(max_length=1024)] | None, Annotated[bytes, Meta(max_length=TAIL_BYTES)] | None
    kinds: dict[Any, tuple[str, ...]] = {
        whole: ("version", "term", "run", "segment", "offset", "content_term"),
        name: ("role", "log", "token", "refused", "why", "code"),
        few: ("id", "word", "tail"),
        bool | None: ("continues",),
    }
    fields = [(one, kind, None) for kind, names in kinds.items() for one in names]
    return msgpack.Decoder(msgspec.defstruct("Said", fields))


def identity_fields(identity: Identity | None) -> dict[str, Any]:
    """An identity as fields, for Fields.identity."""
    return {} if identity is None else identity._asdict()


def resume_fields(resume: Resume | None) -> dict[str, Any]:
    """The end of a copy as fields, for Fields.resume."""
    if resume is None:
        return {}
    return {"segment": resume.position.segment, "offset": resume.position.offset, "tail": resume.tail}


def refusal(who: str, body: Body) -> ReplicaError:
    """The error that a REFUSED frame reports."""
    fields = Fields(who, body)
    why = f"{who} refuses: {fields.get('why', 'without a reason')}"
    return Superseded(why) if fields.get("code", "") == "superseded" else ReplicaError(why)


def connect(address: Address, tls: ssl.SSLContext | None, timeout: float = 10.0) -> Link:
    """Connect to a replica server."""
    sock = None
    try:
        sock = socket.create_connection(address[:2], timeout=timeout)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address.host)
    except (OSError, ValueError) as error:
        if sock is not None:
            sock.close()
        raise _lost(str(address), error) from error
    return Link(sock, who=str(address))


def _lost(who: str, error: Exception) -> ReplicaError:
    if isinstance(error, TimeoutError):
        return ReplicaError(f"{who}: no answer in time")
    if isinstance(error, ssl.SSLError):
        return ReplicaError(f"{who}: {explain(error)}")
    return ReplicaError(f"{who}: {getattr(error, 'strerror', None) or error}")
