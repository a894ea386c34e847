"""What a log, its replicas and their followers say to each other: frames, over a socket.

::

    frame   | length 4 | kind 1 | body |            length of kind and body, big-endian

    HELLO       msgpack   who connects, to which log, and what it is or has
    KNOWN       msgpack   to a primary: the last opening that has written the copy, and where the whole copy ends
    CLAIM       msgpack   whether the primary's log continues that
    WELCOME     msgpack   what the other side has
    REFUSED     msgpack   why not; then the connection is closed
    RESTART               all of it comes again: forget what isn't whole
    DATA        | segment 8 | offset 8 | records |
    FLUSH       | 1 if synced, else 0 |                     asks for an ACK
    ACK         | segment 8 | offset 8 | tail |             everything before this has arrived, or is synced; the
                                                            last bytes before it
    COMMITTED   | begin 8 8 | end 8 8 |                     a generation is whole: forget what came before

A length is looked at before anything is read or kept, and before a HELLO was accepted no frame may be longer than
a few kilobytes. Every wait has an end.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from enum import IntEnum
from typing import Any, NamedTuple

from chiplog.errors import BadFrame, MissingExtra, ReplicaError, Superseded
from chiplog.log.position import Position
from chiplog.state.identity import WORD_BYTES, Identity
from chiplog.state.mirror import TAIL_BYTES, Resume, Snapshot

__all__ = ["FRAME_BYTES_MAX", "Address", "Frame", "Kind", "Link", "as_tls", "as_token", "connect", "need_msgspec"]

VERSION = 2
HELLO_BYTES_MAX = 4096
FRAME_BYTES_MAX = 64 << 20  # a frame has at least one whole record
QUIET_SECONDS = 30.0  # that an answer may take
_HEAD = struct.Struct(">IB")
_SECRET = ("token",)  # never shown: what is shown is logged
_PLACE = struct.Struct(">QQ")
_SNAPSHOT = struct.Struct(">QQQQ")


class Kind(IntEnum):
    """What a frame says."""

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
    """One of them."""

    kind: Kind
    body: bytes


class Address(NamedTuple):
    """Where a replica server is, and what the log is called there."""

    host: str
    port: int
    log: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"replica://{host}:{self.port}/{self.log}"


class Link:
    """A connection, as frames. One thread sends, one receives; `close` may come from any."""

    def __init__(self, sock: socket.socket, *, who: str) -> None:
        self._socket = sock
        self.who = who
        self.frame_bytes_max = HELLO_BYTES_MAX
        sock.settimeout(QUIET_SECONDS)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # -- frames

    def send(self, kind: Kind, *parts: bytes | memoryview) -> None:
        """A frame. An error means that the connection is of no use any more."""
        head = _HEAD.pack(1 + sum(map(len, parts)), kind)
        try:
            self._socket.settimeout(QUIET_SECONDS)
            self._socket.sendall(b"".join((head, *parts)))
        except (OSError, ValueError) as error:
            raise self._last_words() or _lost(self.who, error) from error

    def _last_words(self) -> ReplicaError | None:
        """Why the other side has closed, if it said so."""
        with contextlib.suppress(ReplicaError):
            while (frame := self.receive(0.1)) is not None:
                if frame.kind is Kind.REFUSED:
                    return refusal(self.who, frame.body)
        return None

    def receive(self, timeout: float = QUIET_SECONDS) -> Frame | None:
        """The next frame; None if the other side has closed between two. ReplicaError after `timeout` seconds."""
        head = self._take(_HEAD.size, time.monotonic() + timeout, at_frame=True)
        if head is None:
            return None
        length, kind = _HEAD.unpack(head)
        if not 1 <= length <= self.frame_bytes_max:
            raise BadFrame(
                f"{self.who} sends a frame of {length:,} bytes: at most {self.frame_bytes_max:,} are taken"
            )
        try:
            known = Kind(kind)
        except ValueError:
            raise BadFrame(f"{self.who} sends a frame of kind {kind}, which there isn't") from None
        body = self._take(length - 1, time.monotonic() + timeout)
        assert body is not None
        return Frame(known, body)

    def _take(self, count: int, deadline: float, *, at_frame: bool = False) -> bytes | None:
        chunks: list[bytes] = []
        missing = count
        while missing:
            try:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                chunk = self._socket.recv(min(missing, 1 << 18))  # no more memory than has really come
            except (OSError, ValueError) as error:
                raise _lost(self.who, error) from error
            if not chunk:
                if at_frame and missing == count:
                    return None
                raise ReplicaError(f"{self.who} closed the connection in the middle of a frame")
            chunks.append(chunk)
            missing -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def expect(self, kind: Kind, timeout: float = QUIET_SECONDS) -> bytes:
        """The body of the next frame, which has to be of this kind."""
        return self.expect_any(kind, timeout=timeout).body

    def expect_any(self, *kinds: Kind, timeout: float = QUIET_SECONDS) -> Frame:
        """The next frame, which has to be of one of these kinds."""
        frame = self.receive(timeout)
        if frame is None:
            raise ReplicaError(f"{self.who} closed the connection")
        if frame.kind is Kind.REFUSED:
            raise refusal(self.who, frame.body)
        if frame.kind not in kinds:
            expected = " or ".join(kind.name for kind in kinds)
            raise BadFrame(f"{self.who} sends {frame.kind.name} where {expected} was expected")
        return frame

    def drain(self) -> None:
        """After the last word: take what still comes, for a moment, or the other side may not get to read it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(0.5)
            deadline = time.monotonic() + 2
            while time.monotonic() < deadline and self._socket.recv(1 << 16):
                pass

    def close(self) -> None:
        """Cut it, also for a thread that waits on it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- what frames say

    def send_fields(self, kind: Kind, **fields: Any) -> None:
        """A frame whose body is a map."""
        self.send(kind, pack(fields))

    def send_data(self, position: Position, data: bytes | memoryview) -> None:
        """Records that begin at a position."""
        self.send(Kind.DATA, _PLACE.pack(*position), data)

    def send_ack(self, end: Resume) -> None:
        """Up to where everything is there."""
        self.send(Kind.ACK, _PLACE.pack(*end.position), end.tail)

    def send_committed(self, snapshot: Snapshot) -> None:
        """A whole generation."""
        self.send(Kind.COMMITTED, _SNAPSHOT.pack(*snapshot.begin, *snapshot.end))


def parse_place(body: bytes) -> Position:
    """The position that a frame begins with."""
    if len(body) < _PLACE.size:
        raise BadFrame(f"a frame of {len(body)} bytes has no position")
    return Position(*_PLACE.unpack_from(body))


def parse_ack(body: bytes) -> Resume:
    """Up to where the other side has everything."""
    position, tail = parse_place(body), body[_PLACE.size :]
    if len(tail) > TAIL_BYTES:
        raise BadFrame(f"an acknowledgement has a tail of {len(tail)} bytes: at most {TAIL_BYTES} are taken")
    return Resume(position, tail)


def parse_data(body: bytes) -> tuple[Position, memoryview]:
    """Where records belong, and the records."""
    return parse_place(body), memoryview(body)[_PLACE.size :]


def parse_snapshot(body: bytes) -> Snapshot:
    """A generation's begin and end."""
    if len(body) != _SNAPSHOT.size:
        raise BadFrame(f"a frame of {len(body)} bytes tells of no generation")
    places = _SNAPSHOT.unpack(body)
    return Snapshot(Position(*places[:2]), Position(*places[2:]))


def need_msgspec() -> None:
    """Raise MissingExtra at once where each connection would fail without it."""
    try:
        import msgspec  # noqa: F401
    except ImportError:
        raise MissingExtra(
            "msgspec is not installed, which replicas need: pip install '.[state]' in chiplog's folder"
        ) from None


def as_token(token: str | bytes | None) -> str | None:
    """A token as the protocol has it: a text."""
    try:
        return token.decode() if isinstance(token, bytes) else token
    except UnicodeDecodeError:
        raise ValueError("the token's bytes are no UTF-8: expected a text, or bytes of one") from None


def as_tls(tls: ssl.SSLContext | bool | None) -> ssl.SSLContext | None:
    """True is a context that trusts whom the system trusts."""
    if isinstance(tls, bool):
        return ssl.create_default_context() if tls else None
    return tls


def pack(fields: dict[str, Any]) -> bytes:
    """A map of plain values, as bytes."""
    need_msgspec()
    from msgspec import msgpack

    return msgpack.encode(fields)


class Fields:
    """A map from a frame, whose values are looked at before they are believed."""

    def __init__(self, who: str, body: bytes) -> None:
        from msgspec import DecodeError, msgpack

        try:
            self._found: dict[str, Any] = msgpack.decode(body, type=dict[str, Any])
        except (DecodeError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadFrame(f"{who} sends what is no map: {error}") from None
        self._who = who

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """A value of a type, or the default where there is none."""
        value = self._found.get(name, default)
        if value is not default and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
            shown = type(value).__name__ if name in _SECRET else f"{value!r:.60}"
            raise BadFrame(f"{self._who} sends {name} = {shown}, expected {kind.__name__}")
        return value

    def need(self, name: str, kind: type) -> Any:
        """A value that has to be there."""
        if name not in self._found:
            raise BadFrame(f"{self._who} sends no {name}")
        return self.get(name, kind)

    def resume(self) -> Resume | None:
        """Up to where the other side has everything, if it has anything."""
        segment = self.get("segment", int, 0)
        if not segment:
            return None
        return Resume(Position(segment, self.need("offset", int)), self.need("tail", bytes))

    def identity(self) -> Identity | None:
        """The log and the opening that this is about, if it names one."""
        if "id" not in self._found:
            return None
        found = Identity(
            self.need("id", bytes), self.need("term", int), self.need("run", int), self.need("word", bytes)
        )
        if len(found.id) != 16 or len(found.word) != WORD_BYTES:
            raise BadFrame(f"{self._who} has no log's identity: its id or its word has a wrong length")
        if not (0 < found.term < 2**63 and 0 < found.run < 2**63):
            raise BadFrame(f"{self._who} has no log's identity: its epoch is {found.term}.{found.run}")
        return found

    def need_identity(self) -> Identity:
        """The log and the opening that this is about."""
        found = self.identity()
        if found is None:
            raise BadFrame(f"{self._who} sends no id")
        return found


def identity_fields(identity: Identity | None) -> dict[str, Any]:
    """What Fields.identity reads."""
    return {} if identity is None else identity._asdict()


def resume_fields(resume: Resume | None) -> dict[str, Any]:
    """What Fields.resume reads."""
    if resume is None:
        return {}
    return {"segment": resume.position.segment, "offset": resume.position.offset, "tail": resume.tail}


def refusal(who: str, body: bytes) -> ReplicaError:
    """The error that a REFUSED frame tells of."""
    fields = Fields(who, body)
    why = f"{who} refuses: {fields.get('why', str, 'it says not why')}"
    return Superseded(why) if fields.get("code", str, "") == "superseded" else ReplicaError(why)


def connect(address: Address, tls: ssl.SSLContext | None, timeout: float = 10.0) -> Link:
    """Reach a replica server."""
    try:
        sock = socket.create_connection(address[:2], timeout=timeout)
        if tls is not None:
            sock = tls.wrap_socket(sock, server_hostname=address.host)
    except (OSError, ValueError) as error:
        raise _lost(str(address), error) from error
    return Link(sock, who=str(address))


def _lost(who: str, error: Exception) -> ReplicaError:
    if isinstance(error, TimeoutError):
        return ReplicaError(f"{who}: no answer in time")
    return ReplicaError(f"{who}: {getattr(error, 'strerror', None) or error}")
