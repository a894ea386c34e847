"""Between a block of a command log and the machine, without an object for each command.

`load` replays the block. `needed` says which of its records the machine's jobs still need.
"""

from __future__ import annotations

from array import array

from forelog import kernel
from forelog.formats.commands.fields import ADD, DELETE, EXPIRE, FAIL, NOT_SCHEDULED, SCHEDULE, TIMEOUT_ATTEMPT
from forelog.jobs.machine.limits import TIME_NS_MAX
from forelog.jobs.machine.machine import Machine
from forelog.jobs.machine.queue import Job, new_job
from forelog.kernel.types import Commands

_TIME_MAX = TIME_NS_MAX
_ZONE_AT = 13  # in a record
_CRC_BYTES = 4  # after its payload
_FOREIGN_ZONE = b"\xff\xff"
_ZERO_TIME = bytes(12)  # the zero time's seconds and nanoseconds

Halt = tuple[int, str]
Pieces = tuple[list[bytes], list[bytes], list[bytes]]
"""The ids, names and payloads of the rows of a block."""


def pieces_of(commands: Commands, data: bytes) -> Pieces:
    """Cut them out once for a block, which may be loaded in several steps."""
    names = kernel.pieces(data, commands.name_starts, commands.name_ends)
    payloads = kernel.pieces(data, commands.payload_starts, commands.payload_ends)
    return kernel.even_pieces(commands.ids, 16), names, payloads


def load(  # noqa: C901 - one loop, so that it is quick
    machine: Machine,
    commands: Commands,
    pieces: Pieces,
    segment: int,
    data: bytes,
    times: array[int],
    offsets: array[int],
    places: array[int],
    ends: array[int],
    base: int,
    first: int,
    row: int,
    now_ns: int,
) -> Halt:
    """Replay the rows of a block from `row` on, up to the first that can't be replayed. Returns that row and
    why; the reason is "" for a row with a value that columns can't hold.

    `base` is the offset at which `data` begins, `offsets` are those of the records in the file, `places` their
    logical ones, and `ends` where their payloads end in `data`.
    """
    types, timed, dated = commands.types, commands.timed, commands.dated
    ids, names, payloads = pieces
    payload_ends = commands.payload_ends
    due, created, ttrs, ttls = commands.times, commands.created, commands.ttr_ms, commands.ttl_ms
    priorities, attempts, fails = commands.priorities, commands.max_attempts, commands.max_fails
    rows = len(types)
    while row < rows:
        kind = types[row]
        job_id = ids[row]
        reason: str | None = None
        if kind == 0:
            return row, ""
        if kind > SCHEDULE:
            job = machine.jobs.get(job_id)
            if job is None:
                machine.unknown += 1
            else:
                final = (kind <= FAIL or kind == TIMEOUT_ATTEMPT) and is_foreign(data, offsets[first + row] - base)
                result = data[commands.result_starts[row] : commands.result_ends[row]] if kind <= FAIL else b""
                reason = machine.replay_change(job, kind, result, times[first + row], final)
                if kind <= FAIL and reason is None and job.is_processed():
                    size = ends[first + row] + _CRC_BYTES - (offsets[first + row] - base)
                    machine.ledger.place_result(job, segment, places[first + row], size)
                elif kind == TIMEOUT_ATTEMPT and job.is_processed():
                    machine.ledger.keep(job)
        else:
            end = payload_ends[row]
            scheduled_ns = NOT_SCHEDULED
            if timed[row >> 3] >> (row & 7) & 1:
                scheduled_ns = due[row]
                if abs(scheduled_ns) > _TIME_MAX:
                    return row, ""
            elif kind != ADD or data[end + 1 : end + 13] != _ZERO_TIME:
                return row, ""
            if not dated[row >> 3] >> (row & 7) & 1 or abs(created[row]) > _TIME_MAX:
                return row, ""
            job = new_job(
                job_id, machine.shared(names[row]), ttrs[row], ttls[row], created[row], payloads[row],
                priorities[row], attempts[row], fails[row], scheduled_ns,
            )  # fmt: skip
            reason = machine.replay_job(job, now_ns)
            if machine.jobs.get(job_id) is job:
                size = ends[first + row] + _CRC_BYTES - (offsets[first + row] - base)
                machine.ledger.place(job, segment, places[first + row], size)
        if reason is not None:
            return row, reason
        row += 1
    return rows, ""


def is_foreign(data: bytes, offset: int) -> bool:
    """Whether workq wrote the record at an offset: its times have a zone that ours do not have."""
    return data[offset + _ZONE_AT : offset + _ZONE_AT + 2] == _FOREIGN_ZONE


def needed(
    machine: Machine,
    commands: Commands,
    segment: int,
    places: array[int],
    offsets: array[int],
    stop: int,
    first: int,
    fresh: set[bytes],
) -> tuple[bytearray, bool, int, int]:
    """Which rows of a block a replay needs.

    1 marks rows of the machine's jobs, without those of earlier jobs with the same ids. 2 marks rows of other
    jobs that this segment does not add: they are needed as long as the log has the jobs' adds. Returns the
    marks, whether they are certain, and the bytes of rows marked 1 and 2.

    They are uncertain for jobs with changes that are not known to be written: the rows of these jobs are marked
    1. `places` has the logical offsets of the rows from `first` on, `offsets` those in the file, and `stop` is
    where the last row ends. `fresh` carries the ids of jobs that the segment adds and that are gone, from block
    to block. May be called on another thread.
    """
    types, ids, leaving = commands.types, commands.ids, machine.ledger.leaving
    rows = len(types)
    mask = bytearray(rows)
    certain = True
    kept_bytes = other_bytes = 0
    for row in range(rows):
        kind = types[row]
        place = places[first + row]
        size = (offsets[first + row + 1] if first + row + 1 < len(offsets) else stop) - offsets[first + row]
        job_id = ids[16 * row : 16 * row + 16]
        job = machine.jobs.get(job_id)
        # A job can come back between the first look and the second, but not between the second and the third.
        if kind == 0 or _is_of(job, segment, place):
            mask[row] = 1
            kept_bytes += size
            if job is not None and job.segment == 0:
                certain = False
        elif job_id in leaving or _is_of(machine.jobs.get(job_id), segment, place):
            mask[row] = 1
            kept_bytes += size
            certain = False
        elif kind <= SCHEDULE:
            fresh.add(job_id)
        elif job_id not in fresh:
            mask[row] = 2
            other_bytes += size
        elif kind in (DELETE, EXPIRE):
            fresh.discard(job_id)
    return mask, certain, kept_bytes, other_bytes


def _is_of(job: Job | None, segment: int, place: int) -> bool:
    """Whether a record at this place is about this job. A `run` has no add in the log, so its records are
    useless."""
    return job is not None and not job.volatile and job.is_in(segment, place)
