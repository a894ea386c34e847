"""`forelog jobs inspect`: show jobs, queues and the server."""

from __future__ import annotations

import argparse
from typing import Any

from forelog.cli import codes, options
from forelog.cli.output import as_text, human_count, in_json, print_json, table
from forelog.jobs.client.client import Client
from forelog.jobs.client.values import JobInfo
from forelog.times import format_time

_WHAT = ("server", "queues", "queue", "job", "jobs", "scheduled-jobs")
_SHOWN = 60


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `inspect`."""
    parser.add(f"""
        [what WHAT]    {", ".join(_WHAT)} (default: server)
        [which WHICH]  a job's id, or a queue's name
        --offset N     queues, jobs: how many to skip
        --limit N      queues, jobs: the most to show (default: 100)
    """)
    parser.set_types(what=_what)
    parser.set_defaults(what="server", offset=0, limit=100)


def _what(text: str) -> str:
    if text not in _WHAT:
        raise argparse.ArgumentTypeError(f"{text!r} can't be inspected: choose from {', '.join(_WHAT)}")
    return text


def run(chosen: argparse.Namespace, client: Client) -> int:
    """Show what was asked for."""
    what, which = chosen.what, chosen.which
    if (which is None) != (what in ("server", "queues")):
        needs = "needs the name of a queue" if what != "job" else "needs the id of a job"
        raise codes.UsageError(f"inspect {what} {needs if which is None else 'takes nothing else'}")
    values, lines = _look(client, what, which, chosen.offset, chosen.limit)
    if chosen.json:
        for value in values:
            print_json(value)
    else:
        for line in lines:
            print(line)
    return codes.FINE


def _look(
    client: Client, what: str, which: str, offset: int, limit: int
) -> tuple[list[dict[str, Any]], list[str]]:
    if what == "server":
        server = client.inspect_server()
        told = {
            "active_clients": server.active_clients,
            "evicted_jobs": server.evicted_jobs,
            "started": format_time(server.started_ns),
        }
        return [told], [f"{key.replace('_', ' ')}: {value}" for key, value in told.items()]
    if what in ("queue", "queues"):
        queues = [client.inspect_queue(which)] if what == "queue" else client.inspect_queues(offset, limit)
        rows = [(queue.name, human_count(queue.ready), human_count(queue.scheduled)) for queue in queues]
        values = [{"name": queue.name, "ready": queue.ready, "scheduled": queue.scheduled} for queue in queues]
        return values, table([("queue", ">ready", ">scheduled"), *rows])
    if what == "job":
        job = client.inspect_job(which)
        told = in_words(job)
        return [told], [f"{key.replace('_', ' ')}: {value}" for key, value in _shown(job).items()]
    look = client.inspect_jobs if what == "jobs" else client.inspect_scheduled_jobs
    jobs = look(which, offset, limit)
    return [in_words(job) for job in jobs], _lines(jobs)


def in_words(job: JobInfo) -> dict[str, Any]:
    """A job as JSON has it."""
    return {
        "id": str(job.id),
        "name": job.name,
        "state": job.state,
        "priority": job.priority,
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "fails": job.fails,
        "max_fails": job.max_fails,
        "ttr_ms": job.ttr_ms,
        "ttl_ms": job.ttl_ms,
        "created": format_time(job.created_ns),
        "scheduled": None if job.scheduled_ns is None else format_time(job.scheduled_ns),
        **in_json("payload", job.payload),
    }


def _shown(job: JobInfo) -> dict[str, Any]:
    told = in_words(job)
    told.pop("payload_base64", None)
    if job.scheduled_ns is None:
        del told["scheduled"]
    return {**told, "payload": as_text(job.payload)}


def _lines(jobs: list[JobInfo]) -> list[str]:
    titles = ("id", ">priority", "state", ">attempts", ">fails", "created", "due", "payload")
    rows = []
    for job in jobs:
        text = as_text(job.payload)
        due = "-" if job.scheduled_ns is None else format_time(job.scheduled_ns)
        rows.append(
            (
                str(job.id),
                str(job.priority),
                job.state,
                str(job.attempts),
                str(job.fails),
                format_time(job.created_ns),
                due,
                text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…",
            )
        )
    return table([titles, *rows])
