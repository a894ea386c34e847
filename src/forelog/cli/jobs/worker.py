"""`forelog jobs worker MODULE:APP`: do the jobs of an app's tasks."""

from __future__ import annotations

import argparse
import os
import ssl
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from forelog.cli import codes, options
from forelog.jobs.app.app import App
from forelog.jobs.app.processes import PARENT, Processes, stop_with_parent


def add_options(_: str, parser: options.CommandParser) -> None:
    """Add the options of `worker`."""
    parser.add("""
        app MODULE:APP   the app: a module, looked for in this folder too, and the app's name in it
        --queues NAMES   the queues, with commas; earlier ones go first (default: all that tasks name)
        --processes N    so many processes (default: 1)
        --threads N      jobs at a time, in each process (default: 1)
        --reload         start again when a Python file in this folder changes
        --heartbeat MS   how often to say that a job is still being done (default: 2000)
    """)
    parser.set_types(processes=options.positive_count, threads=options.positive_count)
    parser.set_defaults(serves=True, processes=1, threads=1, heartbeat=2000)


def run(chosen: argparse.Namespace, tls: ssl.SSLContext | None, token: str | bytes | None) -> int:
    """Do jobs until SIGTERM or Ctrl-C."""
    if PARENT not in os.environ and (chosen.processes > 1 or chosen.reload):
        folder = Path.cwd() if chosen.reload else None
        return Processes([sys.executable, "-m", "forelog", *sys.argv[1:]], chosen.processes, folder=folder).run()
    stop_with_parent()
    app = load(chosen.app)
    app.use_server(chosen.server, token=token, tls=tls)
    queues = None if chosen.queues is None else [name for name in chosen.queues.split(",") if name]
    app.run_worker(queues, concurrency=chosen.threads, heartbeat_ms=chosen.heartbeat, timeout=chosen.timeout)
    return codes.FINE


def load(place: str) -> App:
    """The app at MODULE:APP."""
    module_name, colon, name = place.partition(":")
    if not colon or not module_name or not name:
        raise codes.UsageError(f"{place!r} isn't an app: expected MODULE:APP, as in shop.tasks:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the app's own needs
        raise codes.UsageError(
            f"there is no module {module_name}, in {os.getcwd()} or among those installed"
        ) from None
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        raise codes.UsageError(f"{name} in {module_name} isn't an App")
    return found
