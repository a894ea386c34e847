"""The replies of the job server, as bytes."""

from __future__ import annotations

from typing import Any, cast

from forelog import kernel
from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.machine.queue import Job, Queue, Waiter
from forelog.jobs.machine.states import COMPLETED
from forelog.times import format_time

_SECOND_NS = 1_000_000_000
_KNOWN_MAX = 4096
_SHARED_BYTES_MIN = 4096
_known_numbers: dict[int, bytes] = {}
_last_result: list[Any] = [None, None, False, b""]
"""The last large result that was replied: it, its job's id, whether the job is completed, and the reply."""
_text = kernel.uuid_text

OK = b"+OK\r\n"
TIMEOUT = b"-TIMEOUT\r\n"
NOT_FOUND = b"-NOT-FOUND\r\n"
READ_ONLY = b"-SERVER-ERROR Read only: the command log can't be written\r\n"
OUT_OF_MEMORY = b"-SERVER-ERROR Out of memory: there are too many jobs, see -max-memory\r\n"
UNREADABLE = b"-SERVER-ERROR Unreadable: the command log has the job, and can't be read\r\n"
TOO_MANY = b"-SERVER-ERROR Too many clients\r\n"
UNKNOWN_OUTCOME = b"-SERVER-ERROR Unknown outcome: the command log failed while it was written\r\n"


def _client_error(why: str) -> bytes:
    return b"-CLIENT-ERROR " + why.encode() + b"\r\n"


ARGS = _client_error("Invalid command args")
FLAGS = _client_error("Invalid command flags")
UNKNOWN_COMMAND = _client_error("Unknown command")
BAD_ID = _client_error("Invalid ID")
BAD_NAME = _client_error("Invalid Name")
BAD_TTR = _client_error("Invalid TTR")
BAD_TTL = _client_error("Invalid TTL")
BAD_TIME = _client_error("Invalid Time")
BAD_SIZE = _client_error("Invalid payload size")
BAD_RESULT_SIZE = _client_error("Invalid result size")
BAD_PRIORITY = _client_error("Invalid Priority")
BAD_ATTEMPTS = _client_error("Invalid Max Attempts")
BAD_FAILS = _client_error("Invalid Max Fails")
BAD_WAIT = _client_error("Invalid wait timeout")
BAD_OFFSET = _client_error("Invalid cursor offset")
BAD_LIMIT = _client_error("Invalid limit")
DUPLICATE_JOB = _client_error("Duplicate job")
DUPLICATE_RESULT = _client_error("Duplicate result")
LONG_LINE = _client_error("Line too long")
NO_TOKEN = _client_error("Unauthorized")
EXPECTS_TLS = _client_error("This server expects TLS")


def second(time_ns: int) -> bytes:
    """A time, to the second."""
    return format_time(time_ns // _SECOND_NS * _SECOND_NS).encode()


def lease_reply(job: Job) -> bytes:
    """The reply to a lease."""
    payload = job.payload
    numbers = _numbers(job.ttr_ms, len(payload))
    return b"".join((b"+OK 1\r\n", _text(job.id), b" ", job.name, numbers, payload, b"\r\n"))


def _numbers(ttr_ms: int, size: int) -> bytes:
    """The last words of the reply to a lease, cached: many jobs are alike."""
    key = ttr_ms << 32 | size
    found = _known_numbers.get(key)
    if found is None:
        if len(_known_numbers) >= _KNOWN_MAX:
            _known_numbers.clear()
        found = _known_numbers[key] = b" %d %d\r\n" % (ttr_ms, size)
    return found


def result_reply(job: Job, read: bytes | None = None) -> bytes:
    """The reply with a job's result, which may have been read from the log. All clients that wait for the same
    large result share the bytes."""
    result = (job.result or b"") if read is None else read
    completed = job.state == COMPLETED
    last = _last_result
    if last[0] is result and last[1] is job.id and last[2] == completed:
        return cast(bytes, last[3])
    reply = b"+OK 1\r\n%b %d %d\r\n%b\r\n" % (_text(job.id), completed, len(result), result)
    if len(result) >= _SHARED_BYTES_MIN:
        last[:] = result, job.id, completed, reply
    return reply


def queue_lines(queue: Queue) -> bytes:
    """A queue, in the reply to `inspect`."""
    return b"%b 2\r\nready-len %d\r\nscheduled-len %d\r\n" % (queue.name, queue.ready, len(queue.scheduled))


def inspected(job: Job, read: bytes | None = None) -> bytes:
    """A job, in the reply to `inspect`. Its payload may have been read from the log."""
    scheduled = job.scheduled_ns != NOT_SCHEDULED
    payload = job.payload if read is None else read
    lines = [
        b"%b %d" % (_text(job.id), 13 if scheduled else 12),
        b"name %b" % job.name,
        b"ttr %d" % job.ttr_ms,
        b"ttl %d" % (0 if job.volatile else job.ttl_ms),
        b"payload-size %d" % len(payload),
        b"payload %b" % payload,
        b"max-attempts %d" % job.max_attempts,
        b"attempts %d" % job.attempts,
        b"max-fails %d" % job.max_fails,
        b"fails %d" % job.fails,
        b"priority %d" % job.priority,
        b"state %d" % job.state,
        b"created %b" % second(job.created_ns),
    ]
    if scheduled:
        lines.append(b"time %b" % second(job.scheduled_ns))
    return b"\r\n".join(lines) + b"\r\n"


def read_reply(waiter: Waiter) -> bytes:
    """The reply with what was read from the log."""
    if waiter.read is None:
        return UNREADABLE
    if waiter.inspects:
        return b"+OK 1\r\n" + inspected(waiter.job, waiter.read)
    return result_reply(waiter.job, waiter.read)
