"""What `forelog dump` shows of a log of messages: topics and properties too."""

from __future__ import annotations

import argparse
import json
from array import array
from collections.abc import Callable

from forelog import kernel
from forelog.cli.log import dump
from forelog.cli.output import as_text, in_json
from forelog.log.cursor import Cursor
from forelog.log.position import Position, Record
from forelog.log.stream import Stream
from forelog.times import format_time


def rows(stream: Stream, chosen: argparse.Namespace, start: Position | None, since_ns: int | None) -> Cursor:
    """The messages to show."""
    return dump.rows(stream, chosen, start, since_ns, frames=True)


def layout(chosen: argparse.Namespace) -> Callable[[Record], bytes]:
    """How a message is shown."""
    return as_json if chosen.json else as_raw if chosen.raw else as_hex if chosen.hex else as_line


def as_raw(record: Record) -> bytes:
    """The payload, and a newline."""
    return kernel.message_split(record.payload)[1] + b"\n"


def as_hex(record: Record) -> bytes:
    """A line with the payload in hexadecimal digits."""
    return _line(record, kernel.message_split(record.payload)[1].hex())


def as_line(record: Record) -> bytes:
    """A line with the payload as text."""
    return _line(record, as_text(kernel.message_split(record.payload)[1]))


def _line(record: Record, payload: str) -> bytes:
    topic, _, packed = kernel.message_split(record.payload)
    fields = [str(record.position), format_time(record.time_ns, aligned=True), as_text(topic.encode()), payload]
    if len(packed) > 1:
        fields.append(_properties(packed))
    return "\t".join(fields).encode() + b"\n"


def _properties(packed: bytes) -> str:
    return kernel.messages_json(packed, array("q", [0]), array("q", [len(packed)]))[1].decode()


def as_json(record: Record) -> bytes:
    """A message as a line of JSON."""
    topic, payload, packed = kernel.message_split(record.payload)
    fields: dict[str, object] = {
        "position": str(record.position),
        "time": format_time(record.time_ns),
        "time_ns": record.time_ns,
        "topic": topic,
        "properties": json.loads(_properties(packed)),
    }
    return json.dumps(fields | in_json("payload", payload), ensure_ascii=False).encode() + b"\n"
