"""Starting: what `import forelog`, the servers and the command cost before they do anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.measure import Case, Figure, Settings, interleave, ratio_goal, row
from forelog import Stream

_SERVERS = {
    "asyncio, uvloop, msgspec": "import asyncio, uvloop, msgspec",
    "the job server": "import uvloop, forelog.cli.jobs.serve, forelog.jobs.server.server",
    "the broker": "import uvloop, forelog.cli.broker.serve, forelog.broker.broker",
}
_CUMULATIVE = re.compile(r"import time:\s*\d+ \|\s*(\d+) \| (\S+)$", re.MULTILINE)


def bytecode_in(directory: Path) -> dict[str, str]:
    """An environment in which all modules are compiled once, into `directory`, as installing a package does."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": str(directory)}


def import_ms(module: str, environment: dict[str, str]) -> float:
    """The cumulated time of importing a module in a new interpreter, by its own account."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    for microseconds, name in _CUMULATIVE.findall(done.stderr):
        if name == module:
            return int(microseconds) / 1000
    raise RuntimeError(f"the interpreter told no import time of {module}")


def process_ms(command: list[str], environment: dict[str, str]) -> float:
    """How long a process takes, from start to end."""
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def starting(settings: Settings) -> Figure:
    """Imports, and `forelog --help`."""
    rounds = settings.count(2 * settings.rounds, least=2)
    command = _command()
    with settings.scratch() as path:
        environment = bytecode_in(path)
        cases = [
            Case("import forelog", "-", "forelog", lambda: import_ms("forelog", environment)),
            Case("import asyncio", "-", "peer", lambda: import_ms("asyncio", environment)),
        ]
        for what, code in _SERVERS.items():
            measure = partial(process_ms, [sys.executable, "-c", code], environment)
            cases.append(Case(f"python, importing {what}", "-", "forelog" if "the" in what else "limit", measure))
        if command:
            idle = [sys.executable, "-c", "pass"]
            with Stream(path / "log").appender() as log:
                log.append_many([b"record"] * 10)
            dump = [*command, "dump", str(path / "log")]
            cases += [
                Case("forelog --help", "-", "forelog", lambda: process_ms([*command, "--help"], environment)),
                Case("python -c pass", "-", "limit", lambda: process_ms(idle, environment)),
                Case("forelog dump of 10 records", "-", "forelog", lambda: process_ms(dump, environment)),
            ]
        series = interleave(settings, cases, rounds)
    figure = Figure("start", "Starting", [row(one, "ms") for one in series])
    figure.notes.append("In new interpreters, with every module's bytecode in its cache since the warm-up.")
    figure.goals.append(ratio_goal("import forelog to import asyncio", series[0], series[1], at_most=1.0))
    for server in series[3:5]:
        text = f"{server.case.name} to {series[2].case.name}"
        figure.goals.append(ratio_goal(text, server, series[2], at_most=2.0))
    if command:
        figure.goals.append(ratio_goal("forelog --help to python -c pass", series[5], series[6], at_most=6.0))
        text = f"{series[7].case.name} to {series[2].case.name}"
        figure.goals.append(ratio_goal(text, series[7], series[2], at_most=2.0))
    else:
        figure.notes.append("The command `forelog` isn't installed, so not measured.")
    return figure


def _command() -> list[str]:
    """The installed command `forelog`; empty if there is none."""
    import forelog.cli

    script = Path(sys.executable).with_name("forelog")
    if not hasattr(forelog.cli, "main"):
        return []
    return [str(script)] if script.exists() else [sys.executable, "-m", "forelog"]
