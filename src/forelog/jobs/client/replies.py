"""The replies of a job server, as a client reads them: bytes in, values out, no sockets.

A reply is a line. Behind `+OK COUNT` come so many things, each with a line of its own::

    +OK                                  done
    +OK 1                                a leased job:        ID NAME TTR SIZE, its payload
                                         a result:            ID SUCCESS SIZE, the result
    +OK COUNT                            leased jobs:         ID NAME TTR SIZE, its payload; or
                                                              ID NAME TTR SIZE KEYS, its payload, lines KEY VALUE
                                         inspected things:    NAME-OR-ID KEYS, then so many lines KEY VALUE
                                         reports and steps:   a line that ends with a SIZE, and so many bytes
    -CLIENT-ERROR WHY, -SERVER-ERROR WHY, -NOT-FOUND, -TIMEOUT

The kind of a reply follows from the request, so the reader has to know what to expect. Bytes may come in any
pieces. No server can make the reader keep more than a reply may have.

>>> reader = ReplyReader()
>>> reader.expect(LEASED)
>>> reader.feed(b"+OK 1\\r\\n61000000-0001-4000-8000-000000000001 mail 60000 5\\r\\nhel")
>>> reader.take() is None
True
>>> reader.feed(b"lo\\r\\n")
>>> reader.take().payload
b'hello'
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from forelog.errors import (
    BadReply,
    JobError,
    JobNotFound,
    JobRefused,
    JobTimeout,
    ServerFailed,
    ServerReadOnly,
)
from forelog.jobs.client.things import (
    BINARY,
    MAKERS,
    SERVER,
    id_in,
    info_of,
    number_in,
    shown,
    text_in,
)
from forelog.jobs.client.values import Added, Leased, Progress, Result, Step
from forelog.jobs.machine.limits import PAYLOAD_BYTES_MAX

DONE, LEASED, RESULT, ADDED, LEASES, LEASES_WITH_INFO, COUNT, PROGRESS, STEPS = range(9)
_AT_ONCE_BYTES = 64 << 10
_HEADS = {RESULT: 3, ADDED: 2, LEASED: 4, LEASES: 4, LEASES_WITH_INFO: 5, PROGRESS: 3, STEPS: 2}
"""How many words the line of each has."""

LINE_BYTES_MAX = 16 << 10
REPLY_BYTES_MAX = 20 << 20
"""The server itself sends 2 MiB of payloads at most."""
_THINGS_MAX = 1000
_KEYS_MAX = 64

Parsing = Generator[None, None, Any]


class ReplyReader:
    """Reads one reply at a time: call `expect`, then `feed` until `take` returns something."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parsing: Parsing | None = None
        self._reply: Any = None
        self._taken = 0
        """How many bytes of the reply were read so far."""
        self._kind = DONE

    def expect(self, kind: int) -> None:
        """Set the kind of the next reply."""
        self._taken = 0
        self._kind = kind
        self._parsing = None
        self._reply = None
        if self._buffer:
            self._begin()

    def feed(self, data: bytes) -> None:
        """Take bytes from the server."""
        if data[:2] == b"\x15\x03" and not self._buffer and not self._taken:  # an alert of TLS
            raise BadReply("the server expects TLS, and this side does not speak it: give tls=True, or --tls")
        self._buffer += data
        if self._parsing is not None:
            self._go_on()
        elif self._reply is None:
            self._begin()

    def take(self) -> Any:
        """The reply: a value or an error, or None if it is not complete."""
        return self._reply

    def idle(self) -> bool:
        """Whether no bytes are left over."""
        return not self._buffer

    def _begin(self) -> None:
        """Read a reply from its first byte: at once if it is one of the common ones and all of it is there."""
        found = at_once(self._kind, self._buffer)
        if found is not None:
            self._reply, size = found
            del self._buffer[:size]
            return
        self._parsing = self._parse(self._kind)
        self._go_on()

    def _go_on(self) -> None:
        assert self._parsing is not None
        try:
            next(self._parsing)
        except StopIteration as end:
            self._parsing = None
            self._reply = end.value

    # -- bytes

    def _line(self) -> Generator[None, None, bytes]:
        start = 0
        while (end := self._buffer.find(b"\n", start, LINE_BYTES_MAX)) < 0:
            start = len(self._buffer)
            if start >= LINE_BYTES_MAX:
                raise BadReply(f"a line of a reply is longer than {LINE_BYTES_MAX} bytes: {shown(self._buffer)}")
            yield
        if end == 0 or self._buffer[end - 1] != 13:
            raise BadReply(f"a line of a reply doesn't end with CR LF: {shown(self._buffer[: end + 1])}")
        line = bytes(self._buffer[: end - 1])
        self._drop(end + 1)
        return line

    def _bytes(self, count: int) -> Generator[None, None, bytes]:
        while len(self._buffer) < count:
            yield
        data = bytes(self._buffer[:count])
        self._drop(count)
        return data

    def _payload(self, size: int) -> Generator[None, None, bytes]:
        data = yield from self._bytes(size + 2)
        if data[size:] != b"\r\n":
            raise BadReply(f"CR LF is missing behind a payload of {size} bytes: {shown(data[size:])}")
        return data[:size]

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._taken += count
        if self._taken > REPLY_BYTES_MAX:
            raise BadReply(f"a reply has more than {REPLY_BYTES_MAX} bytes")

    # -- replies

    def _parse(self, kind: int) -> Parsing:
        line = yield from self._line()
        if line == b"+OK":
            if kind == DONE:
                return True
            raise BadReply("+OK came without a value")
        if line[:1] == b"-":
            return _error(line)
        if line[:4] != b"+OK ":
            raise BadReply(f"this isn't a reply of a job server: {shown(line)}")
        count = number_in(line[4:], _THINGS_MAX)
        if kind == DONE:
            raise BadReply(f"{shown(line)} isn't a reply to this command")
        if kind == COUNT:
            return count
        if kind in (LEASED, RESULT, ADDED):
            if count != 1:
                raise BadReply(f"one was asked for, and {count} came")
            return (yield from self._made(kind))
        make = self._thing if kind in MAKERS else self._made
        things: list[Any] = []
        while len(things) < count:
            things += [(yield from make(kind))]
        return things

    def _made(self, kind: int) -> Parsing:
        """A thing whose line has all of it, besides a payload."""
        words = (yield from self._line()).split(b" ")
        if len(words) != _HEADS[kind]:
            raise BadReply(f"expected {_HEADS[kind]} words: {shown(b' '.join(words))}")
        if kind == ADDED:
            return Added(id_in(words[0]), text_in(words[1]))
        size = words[3] if kind == LEASES_WITH_INFO else words[-1]
        payload = yield from self._payload(number_in(size, PAYLOAD_BYTES_MAX))
        if kind == RESULT:
            if words[1] not in (b"0", b"1"):
                raise BadReply(f"a result has an id, 0 or 1, and a size: {shown(b' '.join(words))}")
            return Result(id_in(words[0]), words[1] == b"1", payload)
        if kind == PROGRESS:
            return Progress(number_in(words[0]), number_in(words[1]), payload)
        if kind == STEPS:
            return Step(text_in(words[0]), payload)
        info = None
        if kind == LEASES_WITH_INFO:
            info = info_of((yield from self._values(number_in(words[4], _KEYS_MAX))))
        return Leased(id_in(words[0]), text_in(words[1]), number_in(words[2]), payload, info)

    def _thing(self, kind: int) -> Parsing:
        line = yield from self._line()
        name, _, keys = line.partition(b" ")
        count = number_in(keys, _KEYS_MAX)
        if kind == SERVER:
            count = max(count, 3)  # the original says 2, and has three
        values = yield from self._values(count)
        try:
            return MAKERS[kind](name, values)
        except KeyError as error:
            raise BadReply(f"{shown(error.args[0])} is missing in what the server says of {shown(name)}") from None

    def _values(self, count: int) -> Generator[None, None, dict[bytes, bytes]]:
        values: dict[bytes, bytes] = {}
        due: bytes | None = None
        while len(values) < count:
            if due is not None:  # after KEY-size comes KEY, with so many bytes
                head = yield from self._bytes(len(due) + 1)
                if head != due + b" ":
                    raise BadReply(f"{shown(due)} is missing behind its size")
                size = number_in(values[due + b"-size"], PAYLOAD_BYTES_MAX)
                values[due] = yield from self._payload(size)
                due = None
                continue
            key, _, value = (yield from self._line()).partition(b" ")
            if key in values:
                raise BadReply(f"{shown(key)} came twice")
            values[key] = value
            due = BINARY.get(key)
        return values


def at_once(kind: int, buffer: bytearray) -> tuple[Any, int] | None:
    """A common reply that is there as a whole, and its size. None for any other, which is then read in order.

    >>> at_once(DONE, bytearray(b"+OK\\r\\n+OK"))
    (True, 5)
    """
    if kind == DONE:
        return (True, 5) if buffer.startswith(b"+OK\r\n") else None
    if kind not in (LEASES, LEASES_WITH_INFO) or not buffer.startswith(b"+OK ") or len(buffer) > _AT_ONCE_BYTES:
        return None
    data = bytes(buffer)
    at = data.find(b"\r\n")
    count = data[4:at]
    if at < 0 or not count.isdigit() or len(count) > 3:
        return None
    at += 2
    jobs = []
    for _ in range(int(count)):
        found = _job_at_once(data, at, kind == LEASES_WITH_INFO)
        if found is None:
            return None
        jobs.append(found[0])
        at = found[1]
    return jobs, at


def _job_at_once(data: bytes, at: int, with_info: bool) -> tuple[Leased, int] | None:
    end = data.find(b"\r\n", at)
    words = data[at:end].split(b" ")
    if end < 0 or len(words) != 4 + with_info or not words[3].isdigit() or len(words[3]) > 7:
        return None
    start = end + 2
    end = start + int(words[3])
    if data[end : end + 2] != b"\r\n":
        return None
    payload, at, info = data[start:end], end + 2, None
    if with_info:
        if not words[4].isdigit() or len(words[4]) > 2:
            return None
        values: dict[bytes, bytes] = {}
        for _ in range(int(words[4])):
            end = data.find(b"\r\n", at)
            key, _, value = data[at:end].partition(b" ")
            if end < 0 or key in BINARY or key in values:  # an error may have lines itself
                return None
            values[key] = value
            at = end + 2
        info = info_of(values)
    return Leased(id_in(words[0]), text_in(words[1]), number_in(words[2]), payload, info), at


_LIMITS = {
    "Invalid TTR": "1 ms to 24 h",
    "Invalid TTL": "1 ms to 30 days",
    "Invalid wait timeout": "0 to 24 h",
    "Invalid Priority": "a number of 32 bits",
    "Invalid Max Attempts": "0 to 255",
    "Invalid Max Fails": "0 to 255",
    "Invalid limit": "1 to 100",
    "Invalid cursor offset": "0 to 4294967295",
}


def _error(line: bytes) -> JobError:
    """The error in a reply."""
    code, _, rest = line.partition(b" ")
    why = _printable(rest)
    if code == b"-CLIENT-ERROR":
        limits = f", which may be {_LIMITS[why]}" if why in _LIMITS else ""
        return JobRefused(f"the server refuses it: {why}{limits}", reason=why)
    if code == b"-SERVER-ERROR":
        if why.startswith("Unknown outcome"):
            return ServerFailed(f"whether it was done is unknown: {why}", unknown=True)
        kind = ServerReadOnly if why.startswith("Read only") else ServerFailed
        return kind(f"the server failed: {why}")
    if code == b"-NOT-FOUND":
        return JobNotFound("the server has no such job or queue")
    if code == b"-TIMEOUT":
        return JobTimeout("nothing came in time")
    raise BadReply(f"this isn't a reply of a job server: {shown(line)}")


def _printable(data: bytes) -> str:
    text = data[:200].decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)
