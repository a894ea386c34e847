"""A block of a command log into the machine, without an object for each command.

And the way back, for cleaning: which records of a block the machine's jobs still need.
"""

from __future__ import annotations

from array import array

from chiplog import kernel
from chiplog._kernel_commands_py import ADD, DELETE, EXPIRE, FAIL, SCHEDULE, Commands
from chiplog.jobs.encoding import NOT_SCHEDULED
from chiplog.jobs.limits import TIME_NS_MAX
from chiplog.jobs.machine import Machine
from chiplog.jobs.queue import new_job

__all__ = ["Halt", "is_foreign", "load", "mean_expiry", "needed"]

_TIME_MAX = TIME_NS_MAX
_ZONE_AT = 13  # in a record
_FOREIGN_ZONE = b"\xff\xff"
_ZERO_TIME = bytes(12)  # the zero time's seconds and nanoseconds

Halt = tuple[int, str]


def load(
    machine: Machine,
    commands: Commands,
    segment: int,
    data: bytes,
    times: array[int],
    offsets: array[int],
    base: int,
    first: int,
    row: int,
    now_ns: int,
) -> Halt:
    """Replay the rows of a block from one on, up to the first that can't be, with the reason. That is "" for a row
    that says something which columns can't tell. `base` is the offset at which `data` begins."""
    types, timed, dated = commands.types, commands.timed, commands.dated
    ids = kernel.active.even_pieces(commands.ids, 16)
    names = kernel.active.pieces(data, commands.name_starts, commands.name_ends)
    payloads = kernel.active.pieces(data, commands.payload_starts, commands.payload_ends)
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
                machine.replay_unknown(job_id, kind)
            else:
                result, final = b"", False
                if kind <= FAIL:
                    result = data[commands.result_starts[row] : commands.result_ends[row]]
                    final = is_foreign(data, offsets[first + row] - base)
                reason = machine.replay_change(job, kind, result, times[first + row], final)
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
                job_id,
                machine.shared(names[row]),
                ttrs[row],
                ttls[row],
                created[row],
                payloads[row],
                priorities[row],
                attempts[row],
                fails[row],
                scheduled_ns,
            )
            job.segment = segment
            reason = machine.replay_job(job, now_ns)
        if reason is not None:
            return row, reason
        row += 1
    return rows, ""


def is_foreign(data: bytes, offset: int) -> bool:
    """Whether workq wrote the record at an offset: its times have a zone that ours haven't."""
    return data[offset + _ZONE_AT : offset + _ZONE_AT + 2] == _FOREIGN_ZONE


def needed(machine: Machine, commands: Commands, settled: bool) -> bytearray:
    """Which rows of a block a replay needs. May be called from another thread.

    These are the rows of jobs that are there; and unless it is `settled` that the adds of the others are gone,
    their ends too, and what was done with those that have none.
    """
    types, ids = commands.types, commands.ids
    jobs, leaving, outlived = machine.jobs, machine.leaving, machine.outlived
    rows = len(types)
    mask = bytearray(rows)
    for row in range(rows):
        kind = types[row]
        job_id = ids[16 * row : 16 * row + 16]
        # A job can come back between the first look and the second, but not between the second and the third.
        if job_id in jobs or job_id in leaving or job_id in jobs or kind == 0:
            mask[row] = 1
        elif kind in (DELETE, EXPIRE) or (kind > SCHEDULE and job_id in outlived):
            mask[row] = not settled
    return mask


def mean_expiry(machine: Machine, commands: Commands) -> tuple[int, int]:
    """How many jobs that these rows add are there, and when they expire on average."""
    types, ids = commands.types, commands.ids
    count, total = 0, 0.0
    for row in range(len(types)):
        if 0 < types[row] <= SCHEDULE:
            job = machine.jobs.get(ids[16 * row : 16 * row + 16])
            if job is not None:
                count += 1
                total += job.expires_ns()
    return count, int(total / count) if count else 0
