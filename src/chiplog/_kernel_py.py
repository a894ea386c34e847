"""Loops over bytes, in plain Python.

This is the compiled kernel's twin: the same functions with the same results, used where nothing could be
compiled, and the oracle that the compiled ones are tested against. Those for M3's commit log are in
`_kernel_m3_py`, those for messages in `_kernel_messages_py`, those for MQTT in `_kernel_mqtt_py`, those for a
broker in `_kernel_broker_py`, those for a job server's commands in `_kernel_commands_py`, and what scans of all
formats share in `_kernel_scan`.

No I/O, no policy, and no trust: whatever the bytes say, nothing outside of the buffer is read and nothing
larger than it is allocated.

A captain record, the unit of most of these functions::

    | version 1 | seconds 8 | nanos 4 | zone 2 | length 1-10 | payload | crc 4 |
      '------------- TIME, 15 bytes ---------'   LEB128                  CRC-32C of all before it

>>> from chiplog import _kernel_py as kernel
>>> record = kernel.captain_encode(b"hello", 1_000_000_000)
>>> scan = kernel.captain_scan(record, 0, len(record), 0, 100)
>>> list(scan.offsets), list(scan.times), record[scan.starts[0] : scan.ends[0]]
([0], [1000000000], b'hello')
"""

from __future__ import annotations

import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Self

from chiplog._kernel_broker_py import (
    message_columns,
    messages_flags,
    mqtt_deliver,
    rows_where,
    topic_codes,
)
from chiplog._kernel_commands_py import (
    Commands,
    commands_decode,
    even_pieces,
    job_encode,
    line_words,
    pieces,
    pieces_after,
    uuid_parse,
    uuid_text,
    uuid_texts,
)
from chiplog._kernel_crc_py import crc32c, crc32c_hardware, crc32c_portable
from chiplog._kernel_inbox_py import Inbox
from chiplog._kernel_m3_py import (
    M3Checker,
    M3Decoder,
    M3Encoder,
    m3_chunks,
    m3_find,
    m3_hop,
    m3_message,
    m3_scan,
    m3_time,
)
from chiplog._kernel_messages_json_py import messages_json
from chiplog._kernel_messages_py import (
    message_split,
    messages_columns,
    messages_encode,
    messages_encode_many,
    messages_find,
    messages_hop,
    messages_scan,
)
from chiplog._kernel_mqtt_py import mqtt_encode_publish, mqtt_pubacks, mqtt_publishes, mqtt_split
from chiplog._kernel_queue_py import REENTERED, BoundedQueue
from chiplog._kernel_scan import (
    BAD_CRC,
    BAD_LENGTH,
    BAD_TIME,
    END,
    FOUND,
    LIMIT,
    NEED_MAX,
    TIME_MAX,
    TIME_MIN,
    TRUNCATED,
    Scan,
    check_range,
    payload_bytes,
)

__all__ = [
    "BAD_CRC", "BAD_LENGTH", "BAD_TIME", "COMPILED", "CRC_BYTES", "END", "FOUND", "LIMIT", "NEED_MAX",
    "RECORD_BYTES_MIN", "TIME_BYTES", "TIME_MAX", "TIME_MIN", "TRUNCATED", "UNIX_EPOCH_SECONDS", "AppendCore",
    "BoundedQueue", "Commands", "Inbox", "KeySet", "M3Checker", "M3Decoder", "M3Encoder", "Scan", "captain_encode",
    "captain_encode_many", "captain_find", "captain_hop", "captain_scan", "commands_decode", "compact",
    "crc32c", "crc32c_hardware", "crc32c_portable", "even_pieces", "first_since", "gather", "job_encode",
    "keep_since", "kept_runs", "line_words", "m3_chunks", "m3_find", "m3_hop", "m3_message", "m3_scan",
    "m3_time", "message_columns", "message_split", "messages_columns", "messages_encode",
    "messages_encode_many", "messages_find", "messages_flags", "messages_hop", "messages_json", "messages_scan",
    "mqtt_deliver", "mqtt_encode_publish", "mqtt_pubacks", "mqtt_publishes", "mqtt_split",
    "pieces", "pieces_after", "relocate", "rows_where", "select", "topic_codes", "uuid_parse", "uuid_text",
    "uuid_texts",
]  # fmt: skip

COMPILED = False

TIME_BYTES = 15
CRC_BYTES = 4
RECORD_BYTES_MIN = TIME_BYTES + 1 + CRC_BYTES
UNIX_EPOCH_SECONDS = 62_135_596_800  # from 0001-01-01T00:00:00Z, where captain's seconds start
_UNIX_SECONDS_MAX = 9_223_372_033  # any int32 of nanoseconds may still be added without overflow
_U64_MAX = 2**64 - 1


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def captain_encode(payload: Any, time_ns: int) -> bytes:
    """One record."""
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    view = memoryview(payload_bytes(payload) if isinstance(payload, str) else payload).cast("B")
    head = struct.pack(">Bqih", 1, seconds + UNIX_EPOCH_SECONDS, nanos, 0) + _varint(len(view))
    body = head + bytes(view)
    return body + crc32c(body).to_bytes(4, "big")


def captain_encode_many(payloads: Sequence[Any], time_ns: int) -> tuple[bytes, array[int]]:
    """All payloads as records of one time, back to back, and where each one starts."""
    out = bytearray()
    starts = array("q")
    for payload in payloads:
        starts.append(len(out))
        out += captain_encode(payload, time_ns)
    return bytes(out), starts


def _time(view: memoryview, at: int) -> int:
    seconds, nanos = struct.unpack_from(">qi", view, at + 1)
    unix: int = seconds - UNIX_EPOCH_SECONDS
    if unix > _UNIX_SECONDS_MAX:
        return TIME_MAX
    if unix < -_UNIX_SECONDS_MAX:
        return TIME_MIN
    return unix * 1_000_000_000 + int(nanos)


def _head(view: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """Reason (END if fine), payload start and length of the record at `at`, from its head alone.

    For TRUNCATED the second number is how many bytes the head needs at least.
    """
    if at < stop and view[at] != 1:
        return BAD_TIME, 0, 0
    if stop - at < TIME_BYTES + 1:
        return TRUNCATED, TIME_BYTES + 1, 0
    length = 0
    for i in range(10):
        place = at + TIME_BYTES + i
        if place >= stop:
            return TRUNCATED, TIME_BYTES + i + 1, 0
        byte = view[place]
        length |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return (END, place + 1, length) if length <= _U64_MAX else (BAD_LENGTH, 0, 0)
    return BAD_LENGTH, 0, 0


def _record(view: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """Reason (END if fine), payload start and payload end of the record at `at`, checksum checked.

    For TRUNCATED the second number is how many bytes the record needs as far as is known.
    """
    reason, start, length = _head(view, at, stop)
    if reason != END:
        return reason, start, 0
    if length > stop - start - CRC_BYTES:
        return TRUNCATED, min(start - at + length + CRC_BYTES, NEED_MAX), 0
    end = start + length
    if crc32c(view[at:end]) != int.from_bytes(view[end : end + CRC_BYTES], "big"):
        return BAD_CRC, 0, 0
    return END, start, end


def captain_scan(buffer: Any, start: int, stop: int, base: int, limit: int) -> Scan:
    """Decode records from `start`, at most `limit`, until `stop` or the first that isn't whole and right."""
    view = memoryview(buffer).cast("B")
    check_range("scan of", start, stop, len(view))
    offsets, starts, ends, times = array("q"), array("q"), array("q"), array("q")
    at = start
    while True:
        if at == stop:
            return Scan(offsets, starts, ends, times, at, END, 0)
        if len(offsets) >= limit:
            return Scan(offsets, starts, ends, times, at, LIMIT, 0)
        reason, payload, end = _record(view, at, stop)
        if reason != END:
            return Scan(offsets, starts, ends, times, at, reason, payload)
        offsets.append(base + at)
        starts.append(payload)
        ends.append(end)
        times.append(_time(view, at))
        at = end + CRC_BYTES


def captain_hop(buffer: Any, start: int, stop: int, offset_min: int, time_min: int) -> tuple[int, int, int]:
    """Go from head to head, without checking, to the first record at or past both bounds.

    Returns (end, reason, need) as a scan does; `end` may lie past `stop`, where the next record starts.
    """
    view = memoryview(buffer).cast("B")
    check_range("hop over", start, stop, len(view))
    at = start
    while at < stop:
        reason, payload, length = _head(view, at, stop)
        if reason != END:
            return at, reason, payload
        if at >= offset_min and _time(view, at) >= time_min:
            return at, FOUND, 0
        if length > NEED_MAX - payload - CRC_BYTES:
            return at, TRUNCATED, NEED_MAX
        at = payload + length + CRC_BYTES
    return at, END, 0


def captain_find(buffer: Any, start: int, stop: int, final: bool) -> int:
    """Where the next record starts at or after `start`, when what is at `start` can't be trusted; or -1.

    One right record could be part of another one's payload, so it counts only with a right successor, or
    if it ends exactly at `stop` and `final` says that this is the end of the file. The work is bounded:
    hostile bytes, in which every place looks like the head of something long, end the search early.
    """
    view = memoryview(buffer).cast("B")
    check_range("find in", start, stop, len(view))
    budget = 64 * (stop - start) + 65_536
    raw = bytes(view[start:stop])
    at = raw.find(b"\x01")
    while at >= 0:
        place = start + at
        reason, payload, length = _head(view, place, stop)
        if reason == END and length <= stop - payload - CRC_BYTES:
            budget -= length + RECORD_BYTES_MIN
            if budget < 0:
                return -1
            reason, payload, end = _record(view, place, stop)
            if reason == END:
                after = end + CRC_BYTES
                if after == stop:
                    if final:
                        return place
                elif _record(view, after, stop)[0] == END:
                    return place
        at = raw.find(b"\x01", at + 1)
    return -1


def gather(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, offsets: Any, data: Any
) -> int:
    """Copy the ranges `first` to `last` into `data`, back to back, and their int32 offsets into `offsets`."""
    view = memoryview(buffer).cast("B")
    out, places = memoryview(data).cast("B"), memoryview(offsets).cast("B").cast("i")
    _check_rows(starts, ends, first, last)
    if len(places) < last - first + 1:
        raise ValueError("offsets has too little room")
    at = places[0] = 0
    for i in range(first, last):
        size = ends[i] - starts[i]
        if starts[i] < 0 or size < 0 or ends[i] > len(view) or at + size > len(out) or at + size > 0x7FFFFFFF:
            raise ValueError(f"range {i} lies outside of its buffer")
        out[at : at + size] = view[starts[i] : ends[i]]
        at += size
        places[i - first + 1] = at
    return at


def _check_rows(starts: array[int], ends: array[int], first: int, last: int) -> None:
    if not 0 <= first <= last <= min(len(starts), len(ends)):
        raise ValueError(f"rows {first}..{last} of {min(len(starts), len(ends))}")


def first_since(times: array[int], start: int, time_min: int) -> int:
    """The first row from `start` on whose time is `time_min` or later; the number of rows if none is."""
    if not 0 <= start <= len(times):
        raise ValueError(f"row {start} of {len(times)}")
    for row in range(start, len(times)):
        if times[row] >= time_min:
            return row
    return len(times)


def keep_since(times: array[int], time_min: int) -> bytearray:
    """A mask, 1 where the time is `time_min` or later."""
    return bytearray(time >= time_min for time in times)


class KeySet:
    """The keys seen so far. keep_latest() walks backward, so that the first one seen is the latest."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def keep_latest(
        self, buffer: Any, starts: array[int], ends: array[int], key_start: int, key_stop: int, delimiter: int
    ) -> bytearray:
        """A mask, 1 for each payload whose key is new, from the last to the first.

        The key is payload[key_start:key_stop], cut at the first `delimiter` byte unless that is negative.
        """
        view = memoryview(buffer).cast("B")
        mask = bytearray(len(starts))
        _check_rows(starts, ends, 0, len(starts))
        for i in range(len(starts) - 1, -1, -1):
            if not 0 <= starts[i] <= ends[i] <= len(view):
                raise ValueError(f"range {i} lies outside of its buffer")
            key = bytes(view[starts[i] : ends[i]][max(key_start, 0) : max(key_stop, 0)])
            if delimiter >= 0:
                key = key.split(bytes((delimiter,)), 1)[0]
            if key not in self._keys:
                self._keys.add(key)
                mask[i] = 1
        return mask


def compact(buffer: Any, offsets: array[int], base: int, end: int, keep: bytearray, out: bytearray) -> int:
    """Copy the frames that `keep` marks into `out`, back to back; returns how many bytes.

    Frames are contiguous: each one ends where the next one starts, and the last one at `end`.
    """
    view = memoryview(buffer).cast("B")
    if len(keep) != len(offsets):
        raise ValueError("keep has another length than offsets")
    at = 0
    for i, kept in enumerate(keep):
        start, stop = offsets[i] - base, offsets[i + 1] - base if i + 1 < len(offsets) else end
        if not 0 <= start <= stop <= len(view):
            raise ValueError(f"frame {i} lies outside of its buffer")
        if kept:
            if at + stop - start > len(out):
                raise ValueError("out has too little room")
            out[at : at + stop - start] = view[start:stop]
            at += stop - start
    return at


def select(column: array[int], keep: bytearray) -> array[int]:
    """The rows of a column that `keep` marks."""
    if len(keep) != len(column):
        raise ValueError("keep has another length than the column")
    return array("q", (value for value, kept in zip(column, keep, strict=True) if kept))


def kept_runs(
    logical: array[int],
    physical: array[int],
    end: int,
    keep: bytearray,
    place: int,
    expected: int,
    runs: array[int],
) -> tuple[int, int]:
    """Note in `runs` a pair (logical offset, new physical offset) wherever the kept frames don't just go on.

    `end` is the physical end of the last frame; `place` is where the first kept frame will be written and
    `expected` the logical offset that would need no new run. Returns both for the next call.
    """
    if not len(logical) == len(physical) == len(keep):
        raise ValueError("columns of different lengths")
    for i, kept in enumerate(keep):
        if kept:
            if logical[i] != expected:
                runs.append(logical[i])
                runs.append(place)
            size = (physical[i + 1] if i + 1 < len(physical) else end) - physical[i]
            place += size
            expected = logical[i] + size
    return place, expected


def relocate(physical: array[int], runs: array[int]) -> array[int]:
    """The logical offsets of ascending physical ones, by the pairs that kept_runs() noted."""
    logical = array("q")
    run, count = -1, len(runs) // 2
    for offset in physical:
        while run + 1 < count and runs[2 * (run + 1) + 1] <= offset:
            run += 1
        logical.append(offset if run < 0 else runs[2 * run] + offset - runs[2 * run + 1])
    return logical


class AppendCore:
    """Stamp, encode, hand to `write`, count: an append while nothing special is due, under its lock.

    The fields belong to whoever holds the lock, as a context manager; its holder can't take it twice. An
    append that finds `offset` at or past `rest_at`, or whose frame is over `frame_bytes_max`, is left to
    `rest(payload)`, without the lock. `undo(frame, written, error)` is called with the lock held when a write
    was short or failed, and either completes it or raises; until it has, `torn` is set and everything is left
    to `rest`. `descriptor`, unless -1, is what `write` writes to: the compiled core calls write(2) on it by
    itself.
    """

    def __init__(
        self,
        encode: Callable[[Any, int], bytes],
        undo: Callable[[bytes, int, OSError | None], None],
        rest: Callable[[Any], Any],
        kind: type[tuple[Any, ...]],
        clock: Callable[[], int] | None = None,
    ) -> None:
        if not issubclass(kind, tuple):
            raise TypeError("positions are tuples")
        self._encode = encode
        self._undo = undo
        self._rest = rest
        self._kind = kind
        self._clock = clock or time.time_ns
        self._mutex = threading.Lock()
        self._owner = 0
        self.segment = self.offset = self.time_ns = self.records = self.step_ns = 0
        self.rest_at = self.descriptor = -1
        self.frame_bytes_max = 2**63 - 1
        self.torn = False
        self.write: Callable[[Any], int] = len

    @property
    def locked(self) -> bool:
        """Whether somebody holds the lock, as of now."""
        return self._mutex.locked()

    def __enter__(self) -> Self:
        own = threading.get_ident()
        if self._owner == own:
            raise RuntimeError(REENTERED)
        self._mutex.acquire()
        self._owner = own
        return self

    def __exit__(self, *error: object) -> None:
        self._owner = 0
        self._mutex.release()

    def stamp(self) -> int:
        """The time for a record that is written now: the clock's, but at least `step_ns` after the last one's."""
        return max(self._clock(), self.time_ns + self.step_ns)

    def advance(self, size: int, records: int, time_ns: int) -> None:
        """Count what somebody else has written, in one step as far as an interrupt is concerned."""
        self.offset += size
        self.records += records
        self.time_ns = time_ns
        self.torn = False

    def append(self, payload: Any) -> Any:
        """Append one record; its position."""
        with self:
            offset = self.offset
            if offset < self.rest_at:
                now = self.stamp()
                frame = self._encode(payload, now)
                if len(frame) <= self.frame_bytes_max:
                    self._put(frame)
                    self.time_ns = now
                    self.offset = offset + len(frame)
                    self.records += 1
                    return tuple.__new__(self._kind, (self.segment, offset))
        return self._rest(payload)

    def append_many(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        """Append captain records of one time with one write: their segment, where it begins, and each in it.

        None, and nothing is done, where `rest_at` lies in between, or there is anything else to think of.
        """
        with self:
            offset = self.offset
            if offset >= self.rest_at or self._encode is not captain_encode or not payloads:
                return None
            now = self.stamp()
            data, starts = captain_encode_many(payloads, now)
            if len(data) > self.frame_bytes_max or offset + len(data) > self.rest_at:
                return None
            self._put(data)
            self.time_ns = now
            self.offset = offset + len(data)
            self.records += len(starts)
            return self.segment, offset, starts

    def _put(self, frame: bytes) -> None:
        """Write all of it, or raise with nothing of it left."""
        failure: OSError | None = None
        try:
            written = self.write(frame)
        except OSError as error:
            written, failure = 0, error
        if written != len(frame):
            rest_at, self.rest_at, self.torn = self.rest_at, -1, True
            self._undo(frame, written, failure)
            self.rest_at, self.torn = rest_at, False
