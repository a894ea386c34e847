"""`forelog jobs dead`: jobs that are failed for good: list, show, retry and drop them."""

from __future__ import annotations

import argparse
import json
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import as_text, in_json, plural, print_json, table
from forelog.jobs.client.attempt import error_text
from forelog.jobs.client.client import Client
from forelog.jobs.client.values import DeadJob
from forelog.times import format_time

_WHAT = ("list", "show", "retry", "drop")
_SHOWN = 60


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `dead`."""
    parser.add(f"""
        [what WHAT]     {", ".join(_WHAT)} (default: list)
        [which WHICH]   list: a queue (default: all); show, retry, drop: a job's id
        --all           retry, drop: all dead jobs, or those of the queue WHICH
        --offset N      list: how many to skip
        --limit N       list: the most to show (default: 100)
    """)
    parser.set_types(what=_what)
    parser.set_defaults(what="list", offset=0, limit=100)


def _what(text: str) -> str:
    if text not in _WHAT:
        raise argparse.ArgumentTypeError(f"{text!r} isn't one of {', '.join(_WHAT)}")
    return text


def run(chosen: argparse.Namespace, client: Client) -> int:
    """List, show, retry or drop."""
    what, which = chosen.what, chosen.which
    if chosen.all and what not in ("retry", "drop"):
        raise codes.UsageError("--all goes with retry and drop")
    if what == "list":
        return _list(chosen, client.dead_jobs(which or "*", chosen.offset, chosen.limit))
    if chosen.all:
        every = client.retry_all_dead if what == "retry" else client.drop_all_dead
        count = every(which or "*")
        done = "tried again" if what == "retry" else "dropped"
        print_json({"jobs": count}) if chosen.json else print(f"{plural(count, 'job')} {done}")
        return codes.FINE
    if which is None:
        raise codes.UsageError(f"dead {what} needs the id of a job" + ("" if what == "show" else ", or --all"))
    if what == "show":
        return _show(chosen, client.dead_job(which))
    (client.retry_dead if what == "retry" else client.drop_dead)(which)
    return codes.FINE


def _list(chosen: argparse.Namespace, jobs: list[DeadJob]) -> int:
    if chosen.json:
        for job in jobs:
            print_json(_in_words(job))
        return codes.FINE
    rows = [
        (
            str(job.id),
            job.name,
            job.reason,
            str(job.attempts),
            format_time(job.died_ns),
            _short(error_text(job.error)),
        )
        for job in jobs
    ]
    for line in table([("id", "queue", "reason", ">attempts", "died", "error"), *rows]):
        print(line)
    return codes.FINE


def _show(chosen: argparse.Namespace, job: DeadJob) -> int:
    if chosen.json:
        print_json(_in_words(job))
        return codes.FINE
    told = _in_words(job)
    traceback = told.pop("traceback", "")
    told.pop("payload_base64", None)
    told["payload"] = as_text(job.payload or b"")
    for key, value in told.items():
        print(f"{key.replace('_', ' ')}: {value}")
    if traceback:
        print(traceback, end="")
    return codes.FINE


def _in_words(job: DeadJob) -> dict[str, Any]:
    """A job as JSON has it."""
    told: dict[str, Any] = {
        "id": str(job.id),
        "name": job.name,
        "reason": job.reason,
        "attempts": job.attempts,
        "fails": job.fails,
        "created": format_time(job.created_ns),
        "died": format_time(job.died_ns),
        "error": error_text(job.error),
    }
    if traceback := _traceback(job.error):
        told["traceback"] = traceback
    return told if job.payload is None else {**told, **in_json("payload", job.payload)}


def _traceback(error: bytes) -> str:
    """The traceback of a task's exception."""
    try:
        return str(json.loads(error)["error"]["traceback"])
    except (ValueError, KeyError, TypeError):
        return ""


def _short(text: str) -> str:
    line = as_text(text.encode())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
