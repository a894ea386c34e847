"""The format of a state log: captain's segments under a magic number of their own, and five kinds of records.

::

    record   | kind 1 | content |

    1 EVENT    an event: its bytes are the codec's (forelog.state.events)
    2 BEGIN    a generation begins: its number, 8 bytes, big-endian
    3 COMMIT   the generation is whole: its number, 8 bytes, big-endian
    4 WRITER   an opening writes from here on: its lineage (forelog.copies.lineage)
    5 GROUP    events that belong together: for each its size, 4 bytes, big-endian, and its bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from forelog.errors import BadEvent
from forelog.formats.captain import Captain

MAGIC = 0x63707374  # "cpst"
FORMAT = Captain(magic=MAGIC, version=1)
EVENT, BEGIN, COMMIT, WRITER, GROUP = b"\x01", b"\x02", b"\x03", b"\x04", b"\x05"
MARKER_BYTES = 9
"""The size of a BEGIN or COMMIT record."""
RECORD_BYTES = 20
"""About as many bytes as a record takes beside its content."""

_SIZE = struct.Struct(">I")
SIZE_BYTES = _SIZE.size
"""What an event in a group takes beside its own bytes."""


def group(events: Iterable[bytes]) -> bytes:
    """One record of several events.

    >>> events_in(group([b"one", b"", b"three"]))
    [b'one', b'', b'three']
    """
    return GROUP + b"".join(part for event in events for part in (_SIZE.pack(len(event)), event))


def events_in(payload: bytes) -> list[bytes]:
    """The events of an EVENT or GROUP record; BadEvent if a group isn't whole."""
    if payload[:1] == EVENT:
        return [payload[1:]]
    events: list[bytes] = []
    at = 1
    while at < len(payload):
        start = at + SIZE_BYTES
        at = start + _SIZE.unpack_from(payload, at)[0] if start <= len(payload) else start
        if at > len(payload):
            raise BadEvent(f"a group of events ends in the middle of its event {len(events) + 1}")
        events.append(payload[start:at])
    return events
