"""A message of a log."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from forelog import kernel
from forelog.formats.messages.msgpack import unpack
from forelog.log.position import Position, Record
from forelog.times import to_datetime


class Message(NamedTuple):
    """A message: its time, topic, payload and properties, and its position in the log.

    No two messages of a log have the same time, so the time identifies a message as its position does.
    """

    time_ns: int
    """When it was written, in nanoseconds since 1970."""
    topic: str
    """When the message was written, in nanoseconds since 1970."""
    payload: bytes
    """The content of the message."""
    properties: dict[str, Any]
    """The properties of the message, by name."""
    position: Position
    """The position of the message in the log."""
    next_position: Position
    """The position after the message: what to store when it has been dealt with."""

    @property
    def time(self) -> datetime:
        """The time in UTC, cut to microseconds."""
        return to_datetime(self.time_ns)


def message_of(record: Record) -> Message:
    """The message in a record that holds the whole frame."""
    topic, payload, packed = kernel.message_split(record.payload)
    properties = unpack(packed) if len(packed) > 1 else {}
    return Message(record.time_ns, topic, payload, properties, record.position, record.next_position)
