"""The replies of the job server, as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from forelog import kernel
from forelog.formats.commands.fields import NOT_SCHEDULED
from forelog.jobs.machine.dead import Letter
from forelog.jobs.machine.queue import Job, Queue, Waiter
from forelog.jobs.machine.states import COMPLETED
from forelog.times import format_time

if TYPE_CHECKING:
    from forelog.jobs.machine.terms import Terms

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


def client_error(why: str) -> bytes:
    """The reply to what a client should not have sent."""
    return b"-CLIENT-ERROR " + why.encode() + b"\r\n"


ARGS = client_error("Invalid command args")
FLAGS = client_error("Invalid command flags")
UNKNOWN_COMMAND = client_error("Unknown command")
BAD_ID = client_error("Invalid ID")
BAD_NAME = client_error("Invalid Name")
BAD_TTR = client_error("Invalid TTR")
BAD_TTL = client_error("Invalid TTL")
BAD_TIME = client_error("Invalid Time")
BAD_SIZE = client_error("Invalid payload size")
BAD_RESULT_SIZE = client_error("Invalid result size")
BAD_PRIORITY = client_error("Invalid Priority")
BAD_ATTEMPTS = client_error("Invalid Max Attempts")
BAD_FAILS = client_error("Invalid Max Fails")
BAD_WAIT = client_error("Invalid wait timeout")
BAD_OFFSET = client_error("Invalid cursor offset")
BAD_LIMIT = client_error("Invalid limit")
DUPLICATE_JOB = client_error("Duplicate job")
DUPLICATE_RESULT = client_error("Duplicate result")
LOST_LEASE = client_error("Lost lease")
CANCELLED = client_error("Cancelled")
DRAINING = client_error("Queue is draining")
LONG_LINE = client_error("Line too long")
NO_TOKEN = client_error("Unauthorized")
EXPECTS_TLS = client_error("This server expects TLS")


def second(time_ns: int) -> bytes:
    """A time, to the second."""
    return format_time(time_ns // _SECOND_NS * _SECOND_NS).encode()


def lease_reply(job: Job) -> bytes:
    """The reply to a lease."""
    payload = job.payload
    numbers = _numbers(job.ttr_ms, len(payload))
    return b"".join((b"+OK 1\r\n", _text(job.id), b" ", job.name, numbers, payload, b"\r\n"))


def leased_line(job: Job, info: bool) -> bytes:
    """A job that was leased, in a reply with others: its line, its payload, and if wanted what more there is."""
    payload = job.payload
    if not info:
        return b"%b %b %d %d\r\n%b\r\n" % (_text(job.id), job.name, job.ttr_ms, len(payload), payload)
    lines = [
        b"attempt %d" % job.attempts,
        b"max-attempts %d" % job.max_attempts,
        b"fails %d" % job.fails,
        b"max-fails %d" % job.max_fails,
        b"created %b" % second(job.created_ns),
    ]
    if job.terms is not None:
        lines += _terms_lines(job.terms)
        if job.terms.error:
            lines += [b"error-size %d" % len(job.terms.error), b"error %b" % job.terms.error]
    head = b"%b %b %d %d %d\r\n" % (_text(job.id), job.name, job.ttr_ms, len(payload), len(lines))
    return head + payload + b"\r\n" + b"".join([line + b"\r\n" for line in lines])


def _terms_lines(terms: Terms) -> list[bytes]:
    """The terms of a job, as lines of a key and a value."""
    lines = [
        word[1:].replace(b"=", b" ", 1)
        for word in terms.flags()
        if word.startswith((b"-key=", b"-group=", b"-after="))
    ]
    if terms.steps:
        lines.append(b"steps %d" % len(terms.steps))
    return lines


def dead_reply(entry: Job | Letter, reason: bytes, payload: bytes | None) -> bytes:
    """A job that failed for good, or a letter, as lines of a key and a value; with its payload if that is
    given."""
    of: Any = entry
    if isinstance(entry, Letter):
        of, error, died_ns, words = entry.job(), entry.error, entry.died_ns, entry.words.split(b" ")
    else:
        error, died_ns = entry.result or b"", entry.done_ns
        words = [] if entry.terms is None else entry.terms.flags()
        if entry.terms is not None and not error:
            error = entry.terms.error
    lines = [b"name %b" % entry.name, b"ttr %d" % of.ttr_ms, b"ttl %d" % of.ttl_ms]
    if payload is not None:
        lines += [b"payload-size %d" % len(payload), b"payload %b" % payload]
    lines += [
        b"max-attempts %d" % of.max_attempts,
        b"attempts %d" % entry.attempts,
        b"max-fails %d" % of.max_fails,
        b"fails %d" % entry.fails,
        b"priority %d" % of.priority,
        b"created %b" % second(of.created_ns),
    ]
    lines += [word[1:].replace(b"=", b" ", 1) for word in words if word]
    lines += [
        b"died %b" % second(died_ns),
        b"reason %b" % reason,
        b"error-size %d" % len(error),
        b"error %b" % error,
    ]
    return b"%b %d\r\n" % (_text(entry.id), len(lines)) + b"".join([line + b"\r\n" for line in lines])


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
