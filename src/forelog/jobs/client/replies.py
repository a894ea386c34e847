"""The replies of a job server, as a client reads them: bytes in, values out, no sockets.

A reply is a line. Behind `+OK COUNT` come so many things, each with a line of its own::

    +OK                                  done
    +OK 1                                a leased job:        ID NAME TTR SIZE, its payload
                                         a result:            ID SUCCESS SIZE, the result
    +OK COUNT                            inspected things:    NAME-OR-ID KEYS, then so many lines KEY VALUE
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
from uuid import UUID

from forelog.errors import (
    BadReply,
    ForelogError,
    JobError,
    JobNotFound,
    JobRefused,
    JobTimeout,
    ServerFailed,
    ServerReadOnly,
)
from forelog.jobs.client.values import JobInfo, Leased, QueueInfo, Result, ServerInfo
from forelog.jobs.machine.limits import PAYLOAD_BYTES_MAX
from forelog.jobs.machine.states import JobState
from forelog.times import parse_time

DONE, LEASED, RESULT, JOBS, QUEUES, SERVER = range(6)

LINE_BYTES_MAX = 16 << 10
REPLY_BYTES_MAX = 20 << 20
"""The server itself sends 2 MiB of payloads at most."""
_THINGS_MAX = 1000
_KEYS_MAX = 64
STATES = tuple(state.name.lower() for state in JobState)

Parsing = Generator[None, None, Any]


class ReplyReader:
    """Reads one reply at a time: call `expect`, then `feed` until `take` returns something."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._parsing: Parsing | None = None
        self._reply: Any = None
        self._taken = 0
        """How many bytes of the reply were read so far."""

    def expect(self, kind: int) -> None:
        """Set the kind of the next reply."""
        self._taken = 0
        self._reply = None
        self._parsing = self._parse(kind)
        self._go_on()

    def feed(self, data: bytes) -> None:
        """Take bytes from the server."""
        if data[:2] == b"\x15\x03" and not self._buffer and not self._taken:  # an alert of TLS
            raise BadReply("the server expects TLS, and this side does not speak it: give tls=True, or --tls")
        self._buffer += data
        self._go_on()

    def take(self) -> Any:
        """The reply: a value or an error, or None if it is not complete."""
        return self._reply

    def idle(self) -> bool:
        """Whether no bytes are left over."""
        return not self._buffer

    def _go_on(self) -> None:
        if self._parsing is not None:
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
                raise BadReply(f"a line of a reply is longer than {LINE_BYTES_MAX} bytes: {_shown(self._buffer)}")
            yield
        if end == 0 or self._buffer[end - 1] != 13:
            raise BadReply(f"a line of a reply doesn't end with CR LF: {_shown(self._buffer[: end + 1])}")
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
            raise BadReply(f"CR LF is missing behind a payload of {size} bytes: {_shown(data[size:])}")
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
            raise BadReply(f"this isn't a reply of a job server: {_shown(line)}")
        count = _number(line[4:], _THINGS_MAX)
        if kind == DONE:
            raise BadReply(f"{_shown(line)} isn't a reply to this command")
        if kind in (LEASED, RESULT):
            if count != 1:
                raise BadReply(f"one was asked for, and {count} came")
            return (yield from (self._leased() if kind == LEASED else self._result()))
        things: list[Any] = []
        while len(things) < count:
            things += [(yield from self._thing(kind))]
        return things

    def _leased(self) -> Parsing:
        words = (yield from self._line()).split(b" ")
        if len(words) != 4:
            raise BadReply(f"a leased job has an id, a name, a ttr and a size: {_shown(b' '.join(words))}")
        payload = yield from self._payload(_number(words[3], PAYLOAD_BYTES_MAX))
        return Leased(_id(words[0]), _text(words[1]), _number(words[2]), payload)

    def _result(self) -> Parsing:
        words = (yield from self._line()).split(b" ")
        if len(words) != 3 or words[1] not in (b"0", b"1"):
            raise BadReply(f"a result has an id, 0 or 1, and a size: {_shown(b' '.join(words))}")
        result = yield from self._payload(_number(words[2], PAYLOAD_BYTES_MAX))
        return Result(_id(words[0]), words[1] == b"1", result)

    def _thing(self, kind: int) -> Parsing:
        line = yield from self._line()
        name, _, keys = line.partition(b" ")
        count = _number(keys, _KEYS_MAX)
        if kind == SERVER:
            count = max(count, 3)  # the original says 2, and has three
        values: dict[bytes, bytes] = {}
        while len(values) < count:
            if b"payload-size" in values and b"payload" not in values:
                if (yield from self._bytes(8)) != b"payload ":
                    raise BadReply("a payload's size came without the payload")
                values[b"payload"] = yield from self._payload(_number(values[b"payload-size"], PAYLOAD_BYTES_MAX))
                continue
            key, _, value = (yield from self._line()).partition(b" ")
            if key in values:
                raise BadReply(f"{_shown(key)} came twice")
            values[key] = value
        try:
            return _MAKERS[kind](name, values)
        except KeyError as error:
            raise BadReply(
                f"{_shown(error.args[0])} is missing in what the server says of {_shown(name)}"
            ) from None


def _job(name: bytes, values: dict[bytes, bytes]) -> JobInfo:
    state = _number(values[b"state"], len(STATES) - 1)
    return JobInfo(
        id=_id(name),
        name=_text(values[b"name"]),
        ttr_ms=_number(values[b"ttr"]),
        ttl_ms=_number(values[b"ttl"]),
        payload=values[b"payload"],
        priority=_signed(values[b"priority"]),
        state=STATES[state],
        attempts=_number(values[b"attempts"]),
        max_attempts=_number(values[b"max-attempts"]),
        fails=_number(values[b"fails"]),
        max_fails=_number(values[b"max-fails"]),
        created_ns=_time(values[b"created"]),
        scheduled_ns=_time(values[b"time"]) if b"time" in values else None,
    )


def _queue(name: bytes, values: dict[bytes, bytes]) -> QueueInfo:
    return QueueInfo(_text(name), _number(values[b"ready-len"]), _number(values[b"scheduled-len"]))


def _server(_: bytes, values: dict[bytes, bytes]) -> ServerInfo:
    clients, evicted = _number(values[b"active-clients"]), _number(values[b"evicted-jobs"])
    return ServerInfo(clients, evicted, _time(values[b"started"]))


_MAKERS: dict[int, Any] = {JOBS: _job, QUEUES: _queue, SERVER: _server}


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
    raise BadReply(f"this isn't a reply of a job server: {_shown(line)}")


def _number(word: bytes, most: int = 2**63) -> int:
    if len(word) > 19 or not word.isdigit() or int(word) > most:
        raise BadReply(f"{_shown(word)} isn't a number up to {most}")
    return int(word)


def _signed(word: bytes) -> int:
    return -_number(word[1:]) if word[:1] == b"-" else _number(word)


def _id(word: bytes) -> UUID:
    try:
        return UUID(word.decode("ascii"))
    except ValueError:
        raise BadReply(f"{_shown(word)} isn't an id") from None


def _time(word: bytes) -> int:
    try:
        return parse_time(word.decode("ascii"))
    except (ValueError, ForelogError):
        raise BadReply(f"{_shown(word)} isn't a time") from None


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


def _printable(data: bytes) -> str:
    text = data[:200].decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _shown(data: bytes | bytearray) -> str:
    return repr(bytes(data[:60]))
