"""`forelog jobs add`, `run`, `schedule`, `lease`, `complete`, `fail`, `delete` and `result`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import IO, Any
from uuid import UUID

from forelog.cli import codes, options
from forelog.cli.output import as_text, in_json, plural, print_json
from forelog.errors import BatchFailed
from forelog.jobs.client import requests
from forelog.jobs.client.client import Client
from forelog.jobs.client.values import Result
from forelog.jobs.machine.limits import PAYLOAD_BYTES_MAX
from forelog.times import parse_duration, parse_time

_LINES_AT_ONCE = 10_000
_BYTES_AT_ONCE = 16 << 20


def add_options(name: str, parser: options.CommandParser) -> None:
    """Add the options of one of these subcommands."""
    _OPTIONS[name](parser)


def run(chosen: argparse.Namespace, client: Client) -> int:
    """Run one of these subcommands."""
    return _COMMANDS[chosen.subcommand](chosen, client)


# -- options


_NAME = "name NAME  the queue"
_ID = "id ID  the job's id"
_RAW = "--raw  print the result unchanged, and nothing else"


def _add_options(parser: options.CommandParser) -> None:
    parser.add(_NAME)
    _payload_options(parser, "PAYLOAD", "what is to be done")
    parser.add("--lines  add a job for each line")
    _job_options(parser)


def _schedule_options(parser: options.CommandParser) -> None:
    parser.add(f"{_NAME}\ntime TIME  when: 2026-11-15T18:00:00Z, or +15m from now")
    parser.set_types(time=_due)
    _payload_options(parser, "PAYLOAD", "what is to be done")
    _job_options(parser)


def _run_options(parser: options.CommandParser) -> None:
    parser.add(_NAME)
    _payload_options(parser, "PAYLOAD", "what is to be done")
    _wait_option(parser, 60, "for a worker to take it")
    parser.add(_RAW)
    _job_options(parser, lasting=False)


def _lease_options(parser: options.CommandParser) -> None:
    parser.add("names NAME ...  queues, in order: the first with a job gives one")
    _wait_option(parser, 0, "for a job")


def _finish_options(parser: options.CommandParser) -> None:
    parser.add(_ID)
    _payload_options(parser, "RESULT", "its result")


def _delete_options(parser: options.CommandParser) -> None:
    parser.add("ids ID ...  the jobs' ids")


def _result_options(parser: options.CommandParser) -> None:
    parser.add(_ID)
    _wait_option(parser, 0, "for it")
    parser.add(_RAW)


def _payload_options(parser: options.CommandParser, metavar: str, what: str) -> None:
    parser.add(f"""
        [payload {metavar}]  {what}; - for standard input (default: none)
        --file FILE  a file with the {metavar.lower()}
    """)


def _wait_option(parser: options.CommandParser, default: int, what: str) -> None:
    parser.add(f"--wait SECONDS  how long to wait {what} (default: {default})")
    parser.set_types(wait=options.seconds)
    parser.set_defaults(wait=default)


def _job_options(parser: options.CommandParser, *, lasting: bool = True) -> None:
    parser.add("""
        --id ID           the job's id, a random UUID of version 4 (default: a new one)
        --ttr SECONDS     how long an attempt may take (default: 60)
        --priority N      higher comes first (default: 0)
    """)
    if lasting:
        parser.add("""
            --ttl SECONDS     how long the server knows the job, done or not (default: 24h)
            --max-attempts N  the most attempts (default: no limit)
            --max-fails N     failed attempts after which it has failed for good (default: 1)
        """)
        parser.set_defaults(ttl=requests.TTL_MS / 1000, max_attempts=0, max_fails=0)
    parser.set_types(ttr=options.seconds, ttl=options.seconds, priority=_signed)
    parser.set_defaults(ttr=requests.TTR_MS / 1000, priority=0)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _signed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a priority: expected a whole number") from None


def _due(text: str) -> int:
    if text.startswith("+"):
        return time.time_ns() + options.parse_or_explain(parse_duration, text[1:])
    return options.parse_or_explain(parse_time, text)


# -- commands


def _add(chosen: argparse.Namespace, client: Client) -> int:
    if chosen.lines:
        return _add_lines(chosen, client)
    job_id = client.add(chosen.name, _payload(chosen), id=chosen.id, **_lasting(chosen))
    _tell_id(chosen, job_id)
    return codes.FINE


def _add_lines(chosen: argparse.Namespace, client: Client) -> int:
    if chosen.id is not None:
        raise codes.UsageError("--id names one job, and --lines makes many")
    if chosen.file is None and chosen.payload != "-":
        raise codes.UsageError("--lines takes a job from each line of --file FILE, or of standard input: -")
    count = 0
    with open(chosen.file, "rb") if chosen.file is not None else nullcontext(_stdin()) as file:
        lines = (line.rstrip(b"\n") for line in iter(lambda: file.readline(PAYLOAD_BYTES_MAX + 2), b""))
        while payloads := _some(lines):
            try:
                added: Sequence[object] = client.add_many(chosen.name, payloads, **_lasting(chosen))
            except BatchFailed as error:
                for outcome in error.outcomes:
                    if isinstance(outcome, UUID):
                        _tell_id(chosen, outcome)
                raise
            count += len(added)
            for job_id in added:
                _tell_id(chosen, job_id)
    if sys.stderr.isatty():
        print(f"forelog: {plural(count, 'job')} added", file=sys.stderr)
    return codes.FINE


def _some(lines: Iterator[bytes]) -> list[bytes]:
    """The next lines, as many as are sent together."""
    found: list[bytes] = []
    size = 0
    while len(found) < _LINES_AT_ONCE and size < _BYTES_AT_ONCE and (line := next(lines, None)) is not None:
        found.append(line)
        size += len(line)
    return found


def _schedule(chosen: argparse.Namespace, client: Client) -> int:
    _tell_id(chosen, client.schedule(chosen.name, _payload(chosen), chosen.time, id=chosen.id, **_lasting(chosen)))
    return codes.FINE


def _lasting(chosen: argparse.Namespace) -> dict[str, Any]:
    counts = {name: getattr(chosen, name) for name in ("priority", "max_attempts", "max_fails")}
    return {"ttr_ms": _ms(chosen.ttr), "ttl_ms": _ms(chosen.ttl), **counts}


def _run(chosen: argparse.Namespace, client: Client) -> int:
    found = client.run(
        chosen.name,
        _payload(chosen),
        wait_ms=_ms(chosen.wait),
        id=chosen.id,
        ttr_ms=_ms(chosen.ttr),
        priority=chosen.priority,
    )
    return _tell_result(chosen, found)


def _lease(chosen: argparse.Namespace, client: Client) -> int:
    leased = client.lease(*chosen.names, wait_ms=_ms(chosen.wait))
    if leased is None:
        print("forelog: no job came in time", file=sys.stderr)
        return codes.LOCKED
    if chosen.json:
        print_json(
            {
                "id": str(leased.id),
                "name": leased.name,
                "ttr_ms": leased.ttr_ms,
                **in_json("payload", leased.payload),
            }
        )
    else:
        print(f"{leased.id}\t{leased.name}\t{leased.ttr_ms}\t{as_text(leased.payload)}")
    return codes.FINE


def _complete(chosen: argparse.Namespace, client: Client) -> int:
    client.complete(chosen.id, _payload(chosen))
    return codes.FINE


def _fail(chosen: argparse.Namespace, client: Client) -> int:
    client.fail(chosen.id, _payload(chosen))
    return codes.FINE


def _delete(chosen: argparse.Namespace, client: Client) -> int:
    if len(chosen.ids) == 1:
        client.delete(chosen.ids[0])
    else:
        client.delete_many(chosen.ids)
    return codes.FINE


def _result(chosen: argparse.Namespace, client: Client) -> int:
    return _tell_result(chosen, client.result(chosen.id, _ms(chosen.wait)))


# -- input and output


def _payload(chosen: argparse.Namespace) -> bytes:
    if chosen.file is not None:
        if chosen.payload is not None:
            raise codes.UsageError("--file and a payload as argument don't go together")
        with open(chosen.file, "rb") as file:
            return file.read(PAYLOAD_BYTES_MAX + 1)
    if chosen.payload == "-":
        return _stdin().read(PAYLOAD_BYTES_MAX + 1)
    return (chosen.payload or "").encode("utf-8", "surrogateescape")


def _stdin() -> IO[bytes]:
    if sys.stdin is None:
        raise codes.InputError("stdin is closed: there is nothing to read")
    found: Any = sys.stdin
    return getattr(found, "buffer", found)  # type: ignore[no-any-return]


def _tell_id(chosen: argparse.Namespace, job_id: object) -> None:
    if chosen.json:
        print_json({"id": str(job_id)})
    else:
        print(job_id)


def _tell_result(chosen: argparse.Namespace, found: Result) -> int:
    if chosen.json:
        print_json({"id": str(found.id), "success": found.success, **in_json("result", found.result)})
    elif chosen.raw:
        sys.stdout.flush()
        sys.stdout.buffer.write(found.result)
    else:
        print(as_text(found.result))
    if not found.success:
        print(f"forelog: {found.id} has failed", file=sys.stderr)
    return codes.FINE if found.success else codes.PROBLEMS


_OPTIONS = {
    "add": _add_options,
    "run": _run_options,
    "schedule": _schedule_options,
    "lease": _lease_options,
    "complete": _finish_options,
    "fail": _finish_options,
    "delete": _delete_options,
    "result": _result_options,
}
_COMMANDS = {
    "add": _add,
    "run": _run,
    "schedule": _schedule,
    "lease": _lease,
    "complete": _complete,
    "fail": _fail,
    "delete": _delete,
    "result": _result,
}
