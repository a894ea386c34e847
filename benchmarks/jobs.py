"""The job server beside beanstalkd.

Both serve the same client, a small program in C so that it is the servers that are measured, over as many
connections, with payloads of 100 bytes. They take turns in short slices, and ratios are formed within each round,
because machines are noisy. A cycle is what a job's life takes: add, lease and complete here; put, reserve and
delete there.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.measure import (
    Case,
    Figure,
    Settings,
    count_goal,
    free_port,
    goal_of,
    interleave,
    payload,
    percentile,
    plain_row,
    ratio_goal,
    require,
    row,
    row_of,
)

PAYLOAD = payload()
CONNECTIONS = (1, 16, 64)
GOALS = {
    ("os", 1): 1.0,
    ("os", 16): 1.0,
    ("os", 64): 1.0,
    ("always", 1): 1.0,
    ("always", 16): 5.0,
    ("always", 64): 5.0,
}
JOBS = 1_000_000
MEMORY_GOAL = 700
STALL_GOAL = 3.0
SLICE_SECONDS = 0.5
ROUNDS_MAX = 9
RESTARTS_MAX = 3
_numbers, _prefixes = itertools.count(1), itertools.count(1)


# -- servers


@dataclass
class Running:
    """A server, and how to talk to it."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    protocol: Protocol
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def begin(self) -> float:
        """Start it, and return how many seconds it took to answer."""
        began = time.perf_counter()
        self.process = self.start()
        while self.process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as connection:
                    connection.sendall(self.protocol.probe)
                    if connection.recv(1):
                        return time.perf_counter() - began
            except OSError:
                time.sleep(0.001)
        raise RuntimeError(f"{self.name} ended with {self.process.returncode} instead of serving")

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def rss_bytes(self) -> int:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


def forelog(folder: Path, policy: str) -> Running:
    port = free_port()
    command = [sys.executable, "-m", "forelog.cli.jobs.serve", "-listen", f"127.0.0.1:{port}"]
    command += ["-cmdlog-path", str(folder), "-cmdlog-sync", policy]
    return Running("forelog", lambda: spawn(command), WORKQ, port, folder)


def beanstalkd(folder: Path, policy: str) -> Running:
    port = free_port()
    sync = ["-f", "0"] if policy == "always" else ["-F"]
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), *sync]
    return Running("beanstalkd", lambda: spawn(command), BEANSTALK, port, folder)


def spawn(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@contextmanager
def both(settings: Settings, policy: str) -> Iterator[tuple[Running, Running]]:
    """Ours and theirs, with empty folders; whatever was begun is ended."""
    require("beanstalkd")
    with settings.scratch() as path:
        folders = path / "ours", path / "theirs"
        for folder in folders:
            folder.mkdir()
        servers = forelog(folders[0], policy), beanstalkd(folders[1], policy)
        try:
            yield servers
        finally:
            for server in servers:
                server.end()


# -- clients


@dataclass
class Slice:
    """What a slice of a load came to."""

    rate: float
    latencies: array[float]


@dataclass(frozen=True)
class Protocol:
    """How a server is spoken to: what it answers at once, whatever it holds, and how a job is added."""

    name: str
    probe: bytes
    add: Callable[[], bytes]


def load(server: Running, connections: int, seconds: float) -> Slice:
    """Jobs through their lives for a while, until the last of them has ended; see cycles.c."""
    words = [server.protocol.name, server.port, connections, seconds, next(_prefixes), len(PAYLOAD)]
    done = subprocess.run([client(), *map(str, words)], capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{server.name}: {done.stderr.decode().strip()}")
    found = array("d", done.stdout)
    return Slice(found[0] / found[1], found[2:])


@functools.cache
def client() -> str:
    """The program that loads a server, compiled."""
    require("gcc")
    folder = tempfile.mkdtemp(prefix="bench-client-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    program = f"{folder}/cycles"
    subprocess.run(["gcc", "-O2", "-o", program, str(Path(__file__).with_name("cycles.c"))], check=True)
    return program


def add_to(queue: str) -> bytes:
    """A job for a queue, in workq's words."""
    return b"add %b %b 60000 3600000 %b" % (new_id(), queue.encode(), _BODY)


def new_id() -> bytes:
    return b"00000000-0000-4000-8000-%012x" % next(_numbers)


_BODY = b"%d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD)
WORKQ = Protocol("workq", b"inspect queues 0 1\r\n", lambda: add_to("q"))
BEANSTALK = Protocol("beanstalk", b"stats\r\n", lambda: b"put 0 0 60 " + _BODY)


def send_all(server: Running, commands: Iterator[bytes]) -> None:
    """Commands whose answers are a line each, as fast as one connection takes them."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        while some := list(itertools.islice(commands, 1000)):
            connection.sendall(b"".join(some))
            answered = 0
            while answered < len(some):
                data = connection.recv(1 << 16)
                if not data:
                    raise RuntimeError(f"{server.name} has closed the connection")
                answered += data.count(b"\n")


# -- figures


def cycles_os(settings: Settings) -> Figure:
    """Without a sync on either side."""
    return _cycles(settings, "os", "Jobs added, leased and completed")


def cycles_always(settings: Settings) -> Figure:
    """With a sync before each answer, on either side."""
    return _cycles(settings, "always", "Jobs added, leased and completed, each synced")


def _cycles(settings: Settings, policy: str, title: str) -> Figure:
    figure = Figure(f"jobs-{policy}", title)
    seconds = max(SLICE_SECONDS * settings.scale, 0.05)
    with both(settings, policy) as servers:
        for server in servers:
            server.begin()
        for connections in CONNECTIONS:
            latencies = {server.name: array("d") for server in servers}

            def rate(
                server: Running, count: int = connections, found: dict[str, array[float]] = latencies
            ) -> float:
                told = load(server, count, seconds)
                found[server.name] += told.latencies
                return told.rate

            ours, theirs = (
                Case(
                    f"{server.name}, {connections} connections",
                    policy if server.name == "forelog" else {"os": "-F", "always": "-f 0"}[policy],
                    "forelog" if server.name == "forelog" else "peer",
                    partial(rate, server),
                )
                for server in servers
            )
            series = interleave(settings, [ours, theirs], min(settings.rounds, ROUNDS_MAX))
            figure.rows += [row(one, "cycles/s") for one in series]
            text = f"{policy}, {connections} connections, to beanstalkd"
            figure.goals.append(ratio_goal(text, *series, at_least=GOALS.get((policy, connections))))
            figure.notes.append(_told_latencies(connections, latencies))
    return figure


def _told_latencies(connections: int, latencies: dict[str, array[float]]) -> str:
    told = [
        f"{name} {percentile(found, 0.5) * 1e6:,.0f} µs and {percentile(found, 0.99) * 1e6:,.0f} µs"
        for name, found in latencies.items()
    ]
    return f"p50 and p99 of an answer, {connections} connections: {', '.join(told)}."


def restarts(settings: Settings) -> Figure:
    """With a million waiting jobs: how long a start takes, and how much memory a job."""
    count = settings.count(JOBS, least=1000)
    figure = Figure("jobs-restart", f"A start with {count:,} waiting jobs")
    seconds: dict[str, list[float]] = {}
    with both(settings, "os") as servers:
        for server in servers:
            settings.tell(f"adding jobs: {server.name}")
            server.begin()
            before = server.rss_bytes()
            send_all(server, (server.protocol.add() for _ in range(count)))
            taken = (server.rss_bytes() - before) / count
            figure.rows.append(plain_row(f"{server.name}, memory of a waiting job", "bytes", taken))
            if server.name == "forelog":
                figure.goals.append(count_goal("memory of a waiting job", taken, "bytes", at_most=MEMORY_GOAL))
            server.end(signal.SIGTERM)
            seconds[server.name] = []
        for number in range(min(settings.rounds, RESTARTS_MAX)):
            for server in servers:
                settings.tell(f"round {number + 1}: starting {server.name}")
                seconds[server.name].append(server.begin())
                server.end(signal.SIGTERM)
    figure.rows += [row_of(f"{name}, until it answers", "s", found) for name, found in seconds.items()]
    goal = goal_of("start, to beanstalkd", seconds["beanstalkd"], seconds["forelog"], at_least=1.0)
    figure.goals.insert(0, goal)
    return figure


def many(settings: Settings) -> Figure:
    """The p99 of an answer with a million waiting jobs, while a hundred thousand become due in one second."""
    count = settings.count(JOBS, least=1000)
    latencies = {"full": array("d"), "empty": array("d")}
    with settings.scratch() as path:
        servers = {name: forelog(path / name, "os") for name in latencies}
        try:
            for server in servers.values():
                server.begin()
            settings.tell("adding jobs")
            send_all(servers["full"], (add_to("waiting") for _ in range(count)))
            due = time.time() + 2 + 6 * settings.scale
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due)).encode()
            words = b"schedule %b due 60000 3600000 %b %b"
            send_all(servers["full"], (words % (new_id(), when, _BODY) for _ in range(count // 10)))
            settings.tell("answering")
            time.sleep(max(0.0, due - 1 - time.time()))
            while time.time() < due + 3:
                for name, server in servers.items():
                    latencies[name] += load(server, 16, 0.25).latencies
        finally:
            for server in servers.values():
                server.end()
    full, empty = (percentile(found, 0.99) for found in latencies.values())
    figure = Figure("jobs-many", f"Answers with {count:,} waiting jobs and {count // 10:,} due in one second")
    figure.rows = [plain_row("p99 of an answer", "µs", full * 1e6), plain_row("with no job", "µs", empty * 1e6)]
    text = f"p99 of an answer with {count:,} jobs, to none"
    figure.goals = [goal_of(text, [full], [empty], at_most=STALL_GOAL)]
    return figure
