"""What the kernel's functions take and return, and the numbers by which they say how it went.

    Scan                 records of a buffer, as columns
    MessageColumns       where the parts of messages lie
    Commands             commands of a job server, as columns
    Entries, Item        entries of M3's commit log: as columns, and one to write
    Packets, Publishes, Pubacks, Drained    what MQTT clients send, and what becomes of it
    END to FOUND         why a scan stopped
    ALL to BAD_PUBLISH   why a run of packets stopped
    TIME_MIN ...         which times there are

A column is an `array` of type "q". Columns of bounds count from the start of the buffer they were found in.
"""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1
"""What a column of times has for a time before, or after, all that 64 bits of nanoseconds can hold."""
CLOCK_SECONDS_MAX = 9_223_372_033
"""Seconds before and after 1970 to which any int32 of nanoseconds can be added."""
CLOCK_MIN, CLOCK_MAX = -CLOCK_SECONDS_MAX * 10**9, CLOCK_SECONDS_MAX * 10**9
"""The times that a record can be given."""
NEED_MAX = 2**63 - 1
"""The largest `need` of a scan."""

# Why a scan stopped.
END = 0  # at the end of the range, after a whole record
LIMIT = 1  # as many records as were asked for
TRUNCATED = 2  # the record needs more bytes than the range has
BAD_TIME = 3  # the time's version byte is not 1
BAD_LENGTH = 4  # the length is no 64 bit number, or its own checksum doesn't match
BAD_CRC = 5  # the checksum doesn't match
FOUND = 6  # a hop reached the record that it looked for

# Why a run of packets stopped.
ALL = 0  # everything up to `stop` was taken
PACKETS_MAX = 1  # as many packets as were asked for
INCOMPLETE = 2  # at least `need` more bytes are needed
BAD_PACKET_LENGTH = 3  # the packet's length has more than four bytes
TOO_LARGE = 4  # the packet is larger than it may be, even if not all of it is there yet
NOT_PLAIN = 5  # no PUBLISH, or one with QoS 2, a topic alias or a topic that starts with $, or a retained one
BAD_PUBLISH = 6  # a PUBLISH that is malformed, or that the protocol forbids

REENTERED = (
    "an append from inside of another append of the same thread, as by a signal handler, a logging handler or "
    "a clock: hand it to another thread"
)
"""The text of the RuntimeError for an append inside of an append."""

IN_A_CHANGE = (
    "a function given to update_with(), or a signal handler, must not write to the dict: use a transaction, or "
    "hand it to another thread"
)
"""The text of the RuntimeError for a change inside of a change."""

IN_A_TRANSACTION = (
    "this thread has a transaction of the dict open, to which this call doesn't belong: don't await in a "
    "transaction, use aio.transact()"
)
"""The text of the RuntimeError for a change of one task inside of another's transaction."""

Item = tuple[bytes, int, float, int, bytes | None, int | None]
"""An entry to write: metadata, timestamp, value, unit, annotation, and when it was created, if not now."""


class Scan(NamedTuple):
    """The records found in a buffer, as columns, with where and why the scan stopped.

    `offsets` has the base added; `starts` and `ends` of the payloads, and `end`, count from the start of
    the buffer. `need` is, for TRUNCATED, how many bytes the record at `end` takes as far as is known.
    """

    offsets: array[int]
    starts: array[int]
    ends: array[int]
    times: array[int]
    end: int
    reason: int
    need: int


class MessageColumns(NamedTuple):
    """Where the parts of messages lie in the buffer."""

    topic_starts: array[int]
    topic_ends: array[int]
    payload_starts: array[int]
    payload_ends: array[int]
    property_starts: array[int]
    property_ends: array[int]


class Commands(NamedTuple):
    """Commands as columns. Where a row has no value the column has 0, and the bitmap a 0 bit.

    Bounds are those of the field in the buffer. Bitmaps are Arrow's: the lowest bit first.
    """

    types: bytes
    errors: bytes
    ids: bytes
    """Sixteen for each row."""
    name_starts: array[int]
    name_ends: array[int]
    ttr_ms: array[int]
    ttl_ms: array[int]
    priorities: array[int]
    max_attempts: array[int]
    max_fails: array[int]
    payload_starts: array[int]
    payload_ends: array[int]
    result_starts: array[int]
    result_ends: array[int]
    times: array[int]
    created: array[int]
    known: bytes
    """Which rows could be read."""
    jobs: bytes
    """Which rows have a job: name, payload and numbers."""
    resulted: bytes
    """Which rows have a result, be it empty."""
    timed: bytes
    """Which rows have a time that isn't the zero time and that fits."""
    dated: bytes
    """Which rows have a time of creation that isn't the zero time and that fits."""


class Entries(NamedTuple):
    """Entries as columns, and where and why decoding stopped before the last chunk's end, if it did."""

    series: array[int]
    """Rows of the decoder's series."""
    timestamps: array[int]
    values: array[float]
    units: bytes
    created: array[int]
    annotated: bytes
    """1 for each entry that has an annotation."""
    annotation_offsets: array[int]
    """int32, one more than entries."""
    annotations: bytes
    offsets: array[int]
    """The offset of the chunk in which each entry begins."""
    row: int
    """The chunk to continue with: `last`, unless a message can't be read."""
    reason: int
    offset: int
    """The offset of the chunk in which the unreadable message begins."""
    place: int
    """Where the unreadable message begins in that chunk's data."""
    unknown: int
    """How many entries were left out because their series isn't known."""
    unknown_offset: int
    lost: int
    """How many chunks were passed over because they begin inside of a message whose beginning is gone."""
    lost_offset: int


class Packets(NamedTuple):
    """Where packets lie: each from `starts` to `ends`, what comes after its length from `bodies`."""

    firsts: bytes
    starts: array[int]
    bodies: array[int]
    ends: array[int]
    end: int
    """Where it stopped. `reason` is why; `need` is 0 unless a packet is incomplete."""
    reason: int
    need: int


class Publishes(NamedTuple):
    """Messages as columns of bounds in the buffer; their flags are the lower halves of their first bytes."""

    flags: bytes
    topic_starts: array[int]
    topic_ends: array[int]
    property_starts: array[int]
    property_ends: array[int]
    payload_starts: array[int]
    payload_ends: array[int]
    packet_ids: array[int]
    """0 at QoS 0."""
    acks: bytes
    """The PUBACKs for the messages of QoS 1, in order."""
    end: int
    reason: int
    need: int


class Pubacks(NamedTuple):
    """The packet ids of a run of PUBACKs, and where it ends."""

    packet_ids: array[int]
    end: int


class Drained(NamedTuple):
    """Messages of the log, back to back, with bounds in `data`; their flags are those of `messages_flags`."""

    data: bytes
    starts: array[int]
    topic_starts: array[int]
    topic_ends: array[int]
    payload_starts: array[int]
    payload_ends: array[int]
    flags: bytes
    runs: list[tuple[Any, bytes]]
    """Whose they are, run by run, and the acknowledgements to send when `data` is safe."""
