"""Notes: what a job server knows beyond workq's commands, in the log beside its command log.

That log is called the annex. It is a log in the captain format with a magic number of its own, and each record's
payload is one note. Its first byte is the type, then come the fields; numbers are unsigned LEB128, a time is eight
bytes, big-endian, in nanoseconds since 1970, and bytes have their length before them::

    1 turn      | 1 | number | segment | offset | commands | places |     begins the notes of one write
    2 verdict   | 2 | number | commands |                        how much of a write is in the command log
    3 terms     | 3 | id 16 | created 8 | name | words |         flags of a job's add
    4 retry     | 4 | id 16 | created 8 | attempts | fails | due 8 | error |
    5 fate      | 5 | id 16 | created 8 | reason | time 8 |      why a job failed for good
    6 parent    | 6 | id 16 | created 8 | parent 16 | completed |
    7 step      | 7 | id 16 | created 8 | name | result |
    8 extend    | 8 | id 16 | created 8 | attempts | until 8 |
    9 cancel    | 9 | id 16 | created 8 |
    10 queue    | 10 | name | words |                            settings, as flags
    11 schedule | 11 | name | created 8 | words | payload |      no words: it is gone
    12 run      | 12 | name | time 8 | skipped |                 a schedule's last time
    13 letter   | 13 | id 16 | died 8 | reason | error | attempts | fails | words | add |
    14 burnt    | 14 | id 16 | died 8 |                          a letter was dropped

*words* are flags as a client sends them, with spaces between them. A job is known by its id and the time of its
add, because an id may be used again.

>>> note = Retry(bytes(16), 5, attempts=1, fails=1, due_ns=7, error=b"no route")
>>> decode(encode(note)) == note
True
>>> decode(encode(note)[:-1])
Traceback (most recent call last):
    ...
forelog.errors.BadCommand: a retry of 43 bytes is truncated
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from forelog.errors import BadCommand
from forelog.kernel import varint

MAGIC = 0x7771616E  # "wqan"
VERSION = 1
ID_BYTES = 16
_TIME = struct.Struct(">q")


class Turn(NamedTuple):
    """Begins the notes of one write to both logs."""

    number: int
    """Counts the turns."""
    segment: int
    """Where the command log ended before its part was written."""
    offset: int
    """Where the command log ended in it."""
    commands: int
    """How many commands belong to the turn."""
    places: bytes
    """For each of its notes, the number of the command that it goes with, from 0, as unsigned LEB128. The note
    counts once that command is in the command log."""


class Verdict(NamedTuple):
    """Says how many commands of a turn are in the command log."""

    number: int
    """Number of the turn."""
    commands: int
    """Notes that go with later ones don't count."""


class Terms(NamedTuple):
    """The flags of a job's add."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""
    name: bytes
    """Name of its queue."""
    words: bytes
    """Flags with spaces between them."""


class Retry(NamedTuple):
    """A job failed, and will be tried again."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""
    attempts: int
    """How many it had had."""
    fails: int
    """How often it had failed."""
    due_ns: int
    """When it may be leased again; 0 if at once."""
    error: bytes
    """What the last fail said."""


class Fate(NamedTuple):
    """Why a job failed for good."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""
    reason: bytes
    """In one word."""
    time_ns: int
    """When that was."""


class Parent(NamedTuple):
    """A job need not wait for this other one any longer."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""
    parent: bytes
    """Sixteen bytes: the other job's UUID."""
    completed: int
    """0 if it failed, or is gone without being completed."""


class Step(NamedTuple):
    """A step of a job has this result."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""
    name: bytes
    """Name of the step."""
    result: bytes
    """What the step came to."""


class Extend(NamedTuple):
    """An attempt may take longer than the job's ttr."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""
    attempts: int
    """How many attempts it had had."""
    until_ns: int
    """When its lease ends."""


class Cancel(NamedTuple):
    """A job that runs is to be stopped."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    created_ns: int
    """When it was added."""


class QueueRules(NamedTuple):
    """The settings of a queue."""

    name: bytes
    """Name of the queue."""
    words: bytes
    """Flags with spaces between them."""


class ScheduleRules(NamedTuple):
    """A schedule, from a time on."""

    name: bytes
    """Name of the schedule."""
    created_ns: int
    """When it was added."""
    words: bytes
    """None: the schedule is gone."""
    payload: bytes
    """Payload of its jobs."""


class Run(NamedTuple):
    """A schedule has come to a time, and added the job of it unless it was skipped."""

    name: bytes
    """Name of the schedule."""
    time_ns: int
    """The time that it has come to."""
    skipped: int
    """How many times it has skipped, in all."""


class Letter(NamedTuple):
    """A job that is gone without being completed."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    died_ns: int
    """When it failed or expired."""
    reason: bytes
    """In one word."""
    error: bytes
    """What the last fail said."""
    attempts: int
    """How many attempts it had had."""
    fails: int
    """How often it had failed."""
    words: bytes
    """The flags beyond workq's that it was added with."""
    add: bytes
    """The add or schedule of the job, as the command log had it."""


class Burnt(NamedTuple):
    """A letter was dropped, or its job tried again."""

    id: bytes
    """Sixteen bytes: the job's UUID."""
    died_ns: int
    """When it failed or expired."""


Note = (
    Turn
    | Verdict
    | Terms
    | Retry
    | Fate
    | Parent
    | Step
    | Extend
    | Cancel
    | QueueRules
    | ScheduleRules
    | Run
    | Letter
    | Burnt
)
OfJob = Terms | Retry | Fate | Parent | Step | Extend | Cancel

# The fields of each type: i an id, n a number, t a time, b bytes.
_LAYOUTS: tuple[tuple[type[Any], str], ...] = (
    (Turn, "nnnnb"),
    (Verdict, "nn"),
    (Terms, "itbb"),
    (Retry, "itnntb"),
    (Fate, "itbt"),
    (Parent, "itin"),
    (Step, "itbb"),
    (Extend, "itnt"),
    (Cancel, "it"),
    (QueueRules, "bb"),
    (ScheduleRules, "btbb"),
    (Run, "btn"),
    (Letter, "itbbnnbb"),
    (Burnt, "it"),
)
_TYPES = {kind: (bytes((number,)), layout) for number, (kind, layout) in enumerate(_LAYOUTS, 1)}
WORDS = ("", "turn", "verdict", "terms", "retry", "fate", "parent", "step", "extend", "cancel",
         "queue", "schedule", "run", "letter", "burnt")  # fmt: skip


def encode(note: Note) -> bytes:
    """Encode a note as a record's payload."""
    head, layout = _TYPES[type(note)]
    parts = [head]
    values: tuple[Any, ...] = note
    for kind, value in zip(layout, values, strict=True):
        if kind == "n":
            parts.append(varint(value))
        elif kind == "t":
            parts.append(_TIME.pack(value))
        elif kind == "i":
            parts.append(value)
        else:
            parts += (varint(len(value)), value)
    return b"".join(parts)


def decode(payload: bytes) -> Note:
    """Decode a record's payload. Raises BadCommand with the reason."""
    if not payload or not 0 < payload[0] <= len(_LAYOUTS):
        what = f"its type is {payload[0]}, expected 1 to {len(_LAYOUTS)}" if payload else "it is empty"
        raise BadCommand(f"a record of {len(payload)} bytes isn't a note: {what}", reason="type")
    kind, layout = _LAYOUTS[payload[0] - 1]
    at = 1
    values: list[int | bytes] = []
    try:
        for field in layout:
            if field == "t":
                values.append(_TIME.unpack_from(payload, at)[0])
                at += _TIME.size
                continue
            size = ID_BYTES
            if field != "i":
                size, at = _number(payload, at)
            if field == "n":
                values.append(size)
            elif size > len(payload) - at:
                raise IndexError
            else:
                values.append(payload[at : at + size])
                at += size
    except (IndexError, struct.error):
        why = f"a {WORDS[payload[0]]} of {len(payload)} bytes is truncated"
        raise BadCommand(why, reason="truncated", offset=at) from None
    if at != len(payload):
        why = f"a {WORDS[payload[0]]} of {len(payload)} bytes goes on after its end, at byte {at}"
        raise BadCommand(why, reason="trailing", offset=at)
    note: Note = kind(*values)
    return note


def numbers(data: bytes) -> list[int]:
    """Numbers, one after the other."""
    found, at = [], 0
    while at < len(data):
        number, at = _number(data, at)
        found.append(number)
    return found


def _number(payload: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = payload[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError
