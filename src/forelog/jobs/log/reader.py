"""A command log, command by command: decoded a block at a time in the kernel, handed out one at a time.

>>> import tempfile
>>> from forelog import Stream
>>> from forelog.formats.commands.commands import MAGIC, Delete, encode
>>> stream = Stream(tempfile.mkdtemp(), magic=MAGIC)
>>> with stream.appender() as log:
...     _ = log.append_many([encode(Delete(bytes(16))), b"?"])
>>> for position, time_ns, command in read_commands(stream):
...     print(position, type(command).__name__)
000000001:8 Delete
000000001:45 BadCommand
"""

from __future__ import annotations

from collections.abc import Iterator

from forelog import kernel
from forelog.errors import BadCommand
from forelog.formats import Block
from forelog.formats.commands.commands import ID_ONLY, Add, Command, Complete, Fail, Schedule, decode
from forelog.formats.commands.fields import ADD, COMPLETE, FAIL, SCHEDULE
from forelog.kernel.types import Commands
from forelog.log.position import Position, make_position
from forelog.log.stream import Bound, PositionLike, Stream
from forelog.log.walk import OnCorruption
from forelog.times import TimeLike

_ZERO_TIME = bytes(12)  # the zero time's seconds and nanoseconds


def read_commands(
    stream: Stream,
    *,
    start: PositionLike | None = None,
    until: Bound | None = None,
    since: TimeLike | None = None,
    on_corruption: OnCorruption = "raise",
    timeout: float | None = None,
) -> Iterator[tuple[Position, int, Command | BadCommand]]:
    """The commands of a log, each with its position and its record's time. The bounds are those of `Stream.scan`.

    Instead of a record that isn't a command comes a BadCommand that says why: the caller decides whether to stop.
    """
    blocks = stream.blocks(start=start, until=until, since=since, on_corruption=on_corruption, timeout=timeout)
    for block in blocks:
        yield from commands_of(block)


def commands_of(block: Block) -> Iterator[tuple[Position, int, Command | BadCommand]]:
    """The commands of a block. Take all of them before the next block is read."""
    scan, first = block.scan, block.first
    columns = kernel.commands_decode(block.buffer, scan.starts, scan.ends, first, block.last)
    ids, view = columns.ids, block.buffer
    for row, kind in enumerate(columns.types):
        command: Command | BadCommand
        if kind > FAIL:
            command = ID_ONLY[kind](ids[16 * row : 16 * row + 16])
        elif kind >= COMPLETE:
            result = bytes(view[columns.result_starts[row] : columns.result_ends[row]])
            job_id = ids[16 * row : 16 * row + 16]
            command = Complete(job_id, result) if kind == COMPLETE else Fail(job_id, result)
        elif kind and (job := _job(columns, row, kind, view)) is not None:
            command = job
        else:
            command = _alone(view[scan.starts[first + row] : scan.ends[first + row]])
        position = make_position((block.segment, block.offsets[first + row]))
        yield position, scan.times[first + row], command


def _job(columns: Commands, row: int, kind: int, view: memoryview) -> Add | Schedule | None:
    """The job in a row, or None if it has a time that the columns can't hold."""
    dated = columns.dated[row >> 3] >> (row & 7) & 1
    timed = columns.timed[row >> 3] >> (row & 7) & 1
    end = columns.payload_ends[row]
    if not dated or not (timed or (kind == ADD and view[end + 1 : end + 13] == _ZERO_TIME)):
        return None
    job_id = columns.ids[16 * row : 16 * row + 16]
    name = str(view[columns.name_starts[row] : columns.name_ends[row]], "utf-8", "surrogateescape")
    ttr_ms, ttl_ms, created_ns = columns.ttr_ms[row], columns.ttl_ms[row], columns.created[row]
    payload = bytes(view[columns.payload_starts[row] : end])
    limits = (payload, columns.priorities[row], columns.max_attempts[row], columns.max_fails[row])
    if kind == SCHEDULE:
        return Schedule(job_id, name, ttr_ms, ttl_ms, columns.times[row], created_ns, *limits)
    return Add(job_id, name, ttr_ms, ttl_ms, created_ns, *limits, columns.times[row] if timed else None)


def _alone(payload: memoryview) -> Command | BadCommand:
    try:
        return decode(payload)
    except BadCommand as error:
        return error
