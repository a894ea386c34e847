"""What `forelog dump` shows of a log of messages: topics and properties too."""

from __future__ import annotations

import argparse
import base64
import json
import sys
from array import array
from itertools import islice

from forelog import kernel
from forelog.cli import codes
from forelog.cli.output import as_text
from forelog.log.cursor import Cursor
from forelog.log.position import Position, Record
from forelog.log.stream import Stream
from forelog.times import format_time


def dump(stream: Stream, chosen: argparse.Namespace) -> int:
    """Show messages, one a line."""
    start, since_ns = chosen.start, None
    if isinstance(chosen.since, Position):
        start = max(chosen.since, start or chosen.since)
    else:
        since_ns = chosen.since
    bounds = stream.bounds(until=chosen.until)
    layout = as_json if chosen.json else as_raw if chosen.raw else as_hex if chosen.hex else as_line
    out = sys.stdout.buffer
    sys.stdout.flush()
    with Cursor(
        stream.directory,
        stream.metrics,
        start=start,
        until=bounds.stop,
        since_ns=since_ns,
        until_ns=bounds.until_ns,
        reverse=chosen.reverse,
        follow=chosen.follow,
        on_corruption=chosen.on_corruption,
        timeout=chosen.timeout,
        frames=True,
    ) as cursor:
        try:
            for record in islice(cursor, chosen.limit) if chosen.limit != 0 else ():
                out.write(layout(record))
                if chosen.follow:
                    out.flush()
        finally:
            out.flush()
    return codes.FINE


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
    try:
        fields["payload"] = payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(payload).decode()
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"
