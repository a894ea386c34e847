"""The original job server's start on a command log, as a small model: its rules, and nothing of ours.

It replays every record in order and stops at its first error; then it reads all of them a second time, to learn
when they expire, and knows no record but its eight there either. The recorded cases of
`vectors/workq/replay_cases.json` hold this model to the program (test_original.py).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)
_SEGMENT = re.compile(r"\d{9}\.log")
_NAME = re.compile(rb"[a-zA-Z0-9_.-]{1,255}")
_MS = 1_000_000
_YEAR_1 = 62_135_596_800 * 10**9
_ATTEMPTS_MAX = 255


class Refused(Exception):
    """It would not start, with this message."""


@dataclass
class Known:
    """What it knows of a job."""

    key: tuple[int, int, int, bytes]
    """By which queues sort: priority, time, created, id."""
    max_attempts: int
    state: int = NEW
    attempts: int = 0
    result: bytes | None = None


@dataclass
class Original:
    """The state that a start builds up."""

    now_ns: int
    jobs: dict[bytes, Known] = field(default_factory=dict)
    ready: set[tuple[int, int, int, bytes]] = field(default_factory=set)
    scheduled: set[tuple[int, int, int, bytes]] = field(default_factory=set)

    def add(self, fields: _Fields, kind: int) -> None:
        job_id, name, (ttr, ttl, priority, attempts, _), payload, time_ns, created_ns = fields.job()
        expires_ns = (created_ns if time_ns == -_YEAR_1 else time_ns) + ttl * _MS
        if self.now_ns > (created_ns if kind == 1 else time_ns) + ttl * _MS:
            return
        if job_id[6] >> 4 != 4 or job_id[8] >> 6 != 2:
            raise Refused("Invalid ID")
        if not _NAME.fullmatch(name):
            raise Refused("Invalid Name")
        if not 0 < ttr <= 86_400_000:
            raise Refused("Invalid TTR")
        if not 0 < ttl <= 2_592_000_000:
            raise Refused("Invalid TTL")
        if self.now_ns > expires_ns:
            raise Refused("Invalid Time")
        if len(payload) > 1 << 20:
            raise Refused("Invalid Payload")
        if job_id in self.jobs:
            raise Refused("Duplicate job")
        key = (priority, time_ns, created_ns, job_id)
        queue = self.ready if kind == 1 else self.scheduled
        if key in queue:
            raise Refused("Queue out of sync")
        queue.add(key)
        self.jobs[job_id] = Known(key, attempts)

    def finish(self, job_id: bytes, result: bytes, state: int) -> None:
        if job_id[6] >> 4 != 4 or job_id[8] >> 6 != 2:
            raise Refused("Invalid ID")
        if len(result) > 1 << 20:
            raise Refused("Invalid Result")
        job = self.jobs.get(job_id)
        if job is None:
            return
        if job.state in (COMPLETED, FAILED) or job.result is not None:
            raise Refused("Duplicate result")
        job.state, job.result = state, result
        self._dequeue(job)

    def remove(self, job_id: bytes) -> None:
        job = self.jobs.pop(job_id, None)
        if job is not None:
            self._dequeue(job)

    def start(self, job_id: bytes) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        if job.state == LEASED:
            raise Refused("Job already leased")
        if job.state in (COMPLETED, FAILED):
            raise Refused("Job already processed")
        self._dequeue(job)
        if (job.max_attempts and job.attempts >= job.max_attempts) or job.attempts >= _ATTEMPTS_MAX:
            raise Refused("Max attempts reached")
        job.state = LEASED
        job.attempts += 1

    def time_out(self, job_id: bytes) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.state in (COMPLETED, FAILED):
            return
        if job.max_attempts and job.attempts >= job.max_attempts:
            job.state, job.result = FAILED, b""
            return
        job.state = PENDING
        self.ready.add(job.key)

    def _dequeue(self, job: Known) -> None:
        if job.key in self.ready:
            self.ready.discard(job.key)
        else:
            self.scheduled.discard(job.key)


class _Fields:
    """A record's payload, read from the left."""

    def __init__(self, payload: bytes) -> None:
        self._left = payload

    def take(self, count: int) -> bytes:
        if len(self._left) < count:
            raise Refused("unexpected EOF" if self._left else "EOF")
        found, self._left = self._left[:count], self._left[count:]
        return found

    def number(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def sized(self) -> bytes:
        return self.take(self.number())

    def time(self) -> int:
        version, seconds, nanos, _ = struct.unpack(">Bqih", self.take(15))
        if version != 1:
            raise Refused("Time.UnmarshalBinary: unsupported version")
        return seconds * 10**9 + nanos - _YEAR_1

    def job(self) -> tuple[bytes, bytes, list[int], bytes, int, int]:
        job_id, name = self.take(16), self.sized()
        numbers = [self.number() for _ in range(5)]
        numbers[2] = numbers[2] >> 1 ^ -(numbers[2] & 1)
        return job_id, name, numbers, self.sized(), self.time(), self.time()

    def end(self) -> None:
        if self._left:
            raise Refused("trailing garbage detected")


def start(folder: Path, now_ns: int) -> Original:
    """The server after it has read the log in a folder, or Refused."""
    payloads = [payload for path in segments(folder) for payload in records(path)]
    original = Original(now_ns)
    for payload in payloads:
        fields = _Fields(payload)
        (kind,) = fields.take(1)
        if kind in (1, 2):
            original.add(fields, kind)
        elif kind in (3, 4):
            original.finish(fields.take(16), fields.sized(), COMPLETED if kind == 3 else FAILED)
        elif kind in (5, 6):
            original.remove(fields.take(16))
        elif kind == 7:
            original.start(fields.take(16))
        elif kind == 8:
            original.time_out(fields.take(16))
        fields.end()
    if any(not 1 <= payload[0] <= 8 for payload in payloads):
        raise Refused("unable to recognize cmd from record")
    return original


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))


def records(path: Path) -> list[bytes]:
    """The payloads of a segment's records."""
    data = path.read_bytes()
    if len(data) < 8:
        raise Refused("invalid segment header: " + ("unexpected EOF" if data else "EOF"))
    if struct.unpack(">II", data[:8]) != (0x77717771, 1):
        raise Refused("invalid segment header")
    found = []
    at = 8
    while at < len(data):
        head = _Fields(data[at + 15 : at + 25])
        size = head.number()
        begin = at + 15 + _number_bytes(size)
        end = begin + size
        if end + 4 > len(data):
            raise Refused("unexpected EOF")
        if struct.unpack(">I", data[end : end + 4])[0] != _crc32c(data[at:end]):
            raise Refused("checksum")
        found.append(data[begin:end])
        at = end + 4
    return found


def _number_bytes(number: int) -> int:
    count = 1
    while number > 127:
        number >>= 7
        count += 1
    return count


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _table()


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
