"""What clients publish, as messages of the log: the oracle for `broker/inbox.pxi`.

>>> wire = bytes.fromhex("32 0b 0005 6174746963 0007 3231 30 05 0001 62 3232")
>>> inbox = Inbox()
>>> inbox.take("her", wire, 0, len(wire), 4, 1000, 1, b"\\x80", b"\\x81\\xa3qos\\x01")
(2, 20, 0, 0)
>>> inbox.topics(), len(inbox), inbox.last_ns
([b'attic', b'b'], 2, 2)
>>> taken = inbox.drain()
>>> list(taken.starts), taken.flags, taken.runs
([0, 31], b'\\x01\\x00', [('her', b'@\\x02\\x00\\x07')])
"""

from __future__ import annotations

from array import array
from typing import Any

from forelog.errors import TimeOutOfRange
from forelog.formats.messages.format import MESSAGE_TIME_MAX
from forelog.kernel.types import END, NOT_PLAIN, PACKETS_MAX, Drained
from tests.kernel.oracle.broker import message_columns, messages_flags
from tests.kernel.oracle.messages import messages_encode, skip_properties
from tests.kernel.oracle.mqtt import mqtt_publishes
from tests.kernel.oracle.shared import check_range

RUN_BYTES_MAX = 16 << 20
"""No more than these are made at once, but for one larger message: small packets could become large messages."""


class Inbox:
    def __init__(self) -> None:
        self.runs: list[tuple[Any, bytes]] = []
        """As in `Drained`."""
        self.last_ns = 0
        """The time of the last message: the next is later."""
        self._data, self._starts, self._flags = bytearray(), array("q"), bytearray()
        self._begin()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def byte_count(self) -> int:
        return len(self._data)

    def take(
        self,
        owner: Any,
        buffer: Any,
        start: int,
        stop: int,
        version: int,
        packet_bytes_max: int,
        time_ns: int,
        properties0: bytes,
        properties1: bytes,
        packets_max: int = 4096,
    ) -> tuple[int, int, int, int]:
        view = memoryview(buffer).cast("B")
        check_range("messages in", start, stop, len(view))
        found = mqtt_publishes(view, start, stop, version, packet_bytes_max, packets_max)
        _check_properties(properties0, properties1)
        time_ns = max(time_ns, self.last_ns + 1)
        if not 0 <= time_ns <= MESSAGE_TIME_MAX - len(view):
            raise TimeOutOfRange(f"a message can't have the time {time_ns}: expected 0 to {MESSAGE_TIME_MAX}")
        self._begin()
        end, reason, need = found.end, found.reason, found.need
        for row, packet_id in enumerate(found.packet_ids):
            topic = bytes(view[found.topic_starts[row] : found.topic_ends[row]])
            payload = bytes(view[found.payload_starts[row] : found.payload_ends[row]])
            frame = messages_encode((topic, payload, properties1 if packet_id else properties0), time_ns + row)
            is_plain = found.property_starts[row] == found.property_ends[row]
            if not is_plain or (row and len(self._data) - self._run_start + len(frame) > RUN_BYTES_MAX):
                end = found.payload_ends[row - 1] if row else start
                reason, need = PACKETS_MAX if is_plain else NOT_PLAIN, 0
                break
            self._add(frame, packet_id != 0)
        count = len(self) - self._run_row
        if count:
            acked = sum(self._flags[self._run_row :])
            self.runs.append((owner, found.acks[: 4 * acked]))
            self.last_ns = time_ns + count - 1
        return count, end, reason, need

    def put(self, owner: Any, message: bytes, time_ns: int, acks: bytes) -> None:
        columns = message_columns(message, array("q", [0]), 0, 0, 1)
        self._begin()
        self._add(message, messages_flags(message, columns.property_starts, columns.property_ends)[0])
        self.runs.append((owner, acks))
        self.last_ns = max(self.last_ns, time_ns)

    def topics(self) -> list[bytes]:
        starts = self._starts[self._run_row :]
        columns = message_columns(self._data, starts, 0, 0, len(starts))
        bounds = zip(columns.topic_starts, columns.topic_ends, strict=True)
        return list(dict.fromkeys(bytes(self._data[start:end]) for start, end in bounds))

    def undo(self) -> None:
        if len(self) == self._run_row:
            raise ValueError("there is nothing to undo")
        self.runs.pop()
        del self._data[self._run_start :], self._starts[self._run_row :], self._flags[self._run_row :]

    def drain(self) -> Drained:
        data, starts, flags, runs = bytes(self._data), self._starts, bytes(self._flags), self.runs
        self._data, self._starts, self._flags, self.runs = bytearray(), array("q"), bytearray(), []
        self._begin()
        return Drained(data, starts, *message_columns(data, starts, 0, 0, len(starts))[:4], flags, runs)

    def _begin(self) -> None:
        self._run_start, self._run_row = len(self._data), len(self._starts)

    def _add(self, frame: bytes, flags: int) -> None:
        self._starts.append(len(self._data))
        self._flags.append(flags)
        self._data += frame


def _check_properties(*maps: bytes) -> None:
    for properties in maps:
        if skip_properties(properties, 0, len(properties)) != (END, len(properties)):
            raise ValueError("properties are a map in msgpack with texts as keys, not too large and not too deep")
