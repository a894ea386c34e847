"""Job queues end to end, with their workers: forelog beside RQ, Huey, Dramatiq, Celery and arq on Redis.

All do the same task, which does nothing, with the client and the worker that each comes with, and hiredis. A round
adds jobs with one client, starts the worker, and takes the time from the first job to the last: starting isn't
counted. Redis has an append-only file with `appendfsync everysec`, or `always`. forelog syncs once a second, or
always.

RQ has its worker without a fork for each job, the quicker one. It has no threads, and arq has tasks in place of
them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Figure, NotInstalled, Settings, free_port, goal_of, percentile, require, row_of

ROOT = Path(__file__).parents[1]
JOBS = {"forelog": 5000, "huey": 5000, "dramatiq": 3000, "celery": 2000, "rq": 1000, "arq": 2000}
WAITING = 20_000
ROUNDS_MAX = 3
RATE = 200.0
PACED = 600
STUCK_SECONDS = 120.0
MODES = {"1 thread": (1, 1), "8 threads": (8, 1), "2 processes": (1, 2)}
REDIS = {"interval": "everysec", "always": "always"}
PYTHON = sys.executable


@dataclass
class System:
    """A job queue: its server, and how its workers are started."""

    name: str
    start: Callable[[int], subprocess.Popen[bytes]]
    """Starts its server."""
    workers: Callable[[int, int], list[list[str]]]
    """The commands of its workers, of so many threads and processes."""
    port: int = 0
    server: subprocess.Popen[bytes] | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)
    """What was measured, by what it is: a value for each round."""

    def can(self, threads: int, processes: int) -> bool:
        return bool(self.workers(threads, processes))


# -- the systems


def systems(folder: Path, policy: str) -> list[System]:
    """Those that are installed, forelog first."""
    require("redis-server")
    missing = [name for name in ("redis", "hiredis") if importlib.util.find_spec(name) is None]
    peers = [name for name in WORKERS if importlib.util.find_spec(name) is not None]
    if missing or not peers:
        raise NotInstalled("the other job queues are not installed: pip install -r requirements/bench.txt")

    def ours(port: int) -> subprocess.Popen[bytes]:
        command = [PYTHON, "-m", "forelog.cli.jobs.serve", "-listen", f"127.0.0.1:{port}"]
        return _spawn([*command, "-cmdlog-path", str(folder / "cmdlog"), "-cmdlog-sync", policy], {})

    def redis(port: int) -> subprocess.Popen[bytes]:
        place = tempfile.mkdtemp(dir=folder)
        command = ["redis-server", "--port", str(port), "--dir", place, "--save", "", "--appendonly", "yes"]
        return _spawn([*command, "--appendfsync", REDIS[policy]], {})

    return [System("forelog", ours, _forelog), *(System(name, redis, WORKERS[name]) for name in peers)]


def _forelog(threads: int, processes: int) -> list[list[str]]:
    command = [PYTHON, "-m", "forelog", "jobs", "worker", "benchmarks.worker_child:app"]
    return [[*command, "--threads", str(threads), "--processes", str(processes)]]


def _huey(threads: int, processes: int) -> list[list[str]]:
    kind, count = ("process", processes) if processes > 1 else ("thread", threads)
    command = [PYTHON, "-m", "huey.bin.huey_consumer", "benchmarks.worker_child.queue"]
    return [[*command, "-w", str(count), "-k", kind, "-q", "-n"]]


def _dramatiq(threads: int, processes: int) -> list[list[str]]:
    command = [PYTHON, "-m", "dramatiq", "benchmarks.worker_child"]
    return [[*command, "--threads", str(threads), "--processes", str(processes)]]


def _celery(threads: int, processes: int) -> list[list[str]]:
    command = [PYTHON, "-m", "celery", "-A", "benchmarks.worker_child:celery_app", "worker", "-l", "ERROR"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    if processes > 1:
        return [[*command, "-P", "prefork", "-c", str(processes)]]
    return [[*command, "-P", "threads", "-c", str(threads)] if threads > 1 else [*command, "-P", "solo"]]


def _rq(threads: int, processes: int) -> list[list[str]]:
    if threads > 1:
        return []
    return [[PYTHON, "-m", "benchmarks.worker_child", "work"]] * processes


def _arq(_: int, processes: int) -> list[list[str]]:
    return [[PYTHON, "-m", "arq", "benchmarks.worker_child.WorkerSettings"]] * processes


WORKERS = {"huey": _huey, "dramatiq": _dramatiq, "celery": _celery, "rq": _rq, "arq": _arq}


def _spawn(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and those that it has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# -- a round


@contextmanager
def served(system: System) -> Iterator[None]:
    """The system's server, on a new port, with nothing in it."""
    system.port = free_port()
    system.server = server = system.start(system.port)
    try:
        deadline = time.monotonic() + STUCK_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", system.port)).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server of {system.name} doesn't start") from None
                time.sleep(0.01)
        yield
    finally:
        _end(server)


def environment(system: System, marks: Path, threads: int = 1) -> dict[str, str]:
    """What the children of a system know."""
    return {
        "BENCH_SYSTEM": system.name,
        "BENCH_PORT": str(system.port),
        "BENCH_MARKS": str(marks),
        "BENCH_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def child(system: System, marks: Path, *words: object) -> float:
    """Run a command of worker_child.py."""
    command = [PYTHON, "-m", "benchmarks.worker_child", *map(str, words)]
    known = {**os.environ, **environment(system, marks)}
    done = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{system.name}: {done.stderr[-500:]}")
    return float(done.stdout)


@contextmanager
def working(system: System, marks: Path, threads: int, processes: int) -> Iterator[None]:
    """The system's workers."""
    with ExitStack() as stack:
        for command in system.workers(threads, processes):
            stack.callback(_end, _spawn(command, environment(system, marks, threads)))
        yield


def wait_for(what: Callable[[], bool], system: System) -> None:
    """Wait for what workers do."""
    deadline = time.monotonic() + STUCK_SECONDS
    while not what():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{system.name}: its workers have done nothing for {STUCK_SECONDS:.0f} s")
        time.sleep(0.01)


def process(system: System, folder: Path, count: int, threads: int, processes: int) -> tuple[float, float]:
    """Add jobs, and have them done. Returns both rates."""
    marks = Path(tempfile.mkdtemp(dir=folder))
    with served(system):
        seconds = child(system, marks, "enqueue", count)
        with working(system, marks, threads, processes):
            wait_for((marks / "end").exists, system)
    begin, end = (float((marks / name).read_text()) for name in ("begin", "end"))
    return count / seconds, count / max(end - begin, 1e-9)


def latency(system: System, folder: Path, count: int) -> list[float]:
    """How long jobs take from being added to being done, while they come at a rate."""
    marks = Path(tempfile.mkdtemp(dir=folder))
    stamps = marks / "stamps"
    with served(system), working(system, marks, 8 if system.can(8, 1) else 1, 1):
        child(system, marks, "pace", 20, 20)  # until the worker is there
        wait_for(lambda: stamps.exists() and len(stamps.read_text().splitlines()) >= 20, system)
        stamps.unlink()
        child(system, marks, "pace", count, RATE)
        wait_for(lambda: stamps.exists() and len(stamps.read_text().splitlines()) >= count, system)
    return [float(line) for line in stamps.read_text().splitlines()]


def memory(system: System, folder: Path, count: int) -> float:
    """Bytes of the server's memory that a waiting job takes."""
    with served(system):
        child(system, folder, "enqueue", 100)
        before = _rss(system)
        child(system, folder, "enqueue", count)
        return (_rss(system) - before) / count


def _rss(system: System) -> int:
    assert system.server is not None
    for line in Path(f"/proc/{system.server.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


# -- figures


def workers(settings: Settings) -> Figure:
    """Synced once a second."""
    return _figure(settings, "interval", "Tasks that do nothing, added and done, synced once a second")


def workers_always(settings: Settings) -> Figure:
    """Synced before each answer."""
    return _figure(settings, "always", "Tasks that do nothing, added and done, each synced")


def workers_latency(settings: Settings) -> Figure:
    """How long a task waits, and how much memory it takes meanwhile."""
    figure = Figure("tasks-latency", f"Tasks at {RATE:.0f} a second, from being added to being done")
    with settings.scratch() as folder:
        for system in systems(folder, "interval"):
            settings.tell(f"latency: {system.name}")
            found = latency(system, folder, settings.count(PACED, least=20))
            role: Any = "forelog" if system.name == "forelog" else "peer"
            for share in (0.5, 0.99):
                text = f"{system.name}, p{share * 100:.0f}"
                figure.rows.append(row_of(text, "ms", [percentile(found, share) * 1e3], "-", role))
            settings.tell(f"memory: {system.name}")
            taken = memory(system, folder, settings.count(WAITING, least=100))
            figure.rows.append(row_of(f"{system.name}, memory of a waiting job", "bytes", [taken], "-", role))
    own, others = figure.rows[0], [row for row in figure.rows[3:] if row.name.endswith("p50")]
    best = min(row.value for row in others)
    figure.goals.append(goal_of("latency, the quickest other to forelog", [best], [own.value], at_least=1.0))
    return figure


def _figure(settings: Settings, policy: str, title: str) -> Figure:
    figure = Figure("tasks" if policy == "interval" else "tasks-always", title)
    with settings.scratch() as folder:
        found = systems(folder, policy)
        for number in range(min(settings.rounds, ROUNDS_MAX)):
            for mode, (threads, processes) in MODES.items():
                for turn in range(len(found)):
                    system = found[(turn + number) % len(found)]
                    if not system.can(threads, processes):
                        continue
                    settings.tell(f"round {number + 1}: {system.name}, {mode}")
                    count = settings.count(JOBS[system.name], least=20)
                    added, done = process(system, folder, count, threads, processes)
                    system.rates.setdefault(mode, []).append(done)
                    if mode == "1 thread":
                        system.rates.setdefault("added", []).append(added)
                shutil.rmtree(folder / "cmdlog", ignore_errors=True)
    _rows(figure, found, policy)
    return figure


def _rows(figure: Figure, found: list[System], policy: str) -> None:
    own = found[0]
    for what in ("added", *MODES):
        measured = [system for system in found if what in system.rates]
        for system in measured:
            name = f"{system.name}, {'added by one client' if what == 'added' else what}"
            role: Any = "forelog" if system is own else "peer"
            sync = policy if system is own else REDIS[policy]
            figure.rows.append(row_of(name, "tasks/s", system.rates[what], sync, role))
        best = max((one for one in measured if one is not own), key=lambda one: statistics.median(one.rates[what]))
        text = f"{what}, {policy}: to {best.name}, the quickest other"
        figure.goals.append(goal_of(text, own.rates[what], best.rates[what], at_least=1.0))
    goal = goal_of(f"8 threads to 1, {policy}", own.rates["8 threads"], own.rates["1 thread"], at_least=1.0)
    figure.goals.append(goal)
