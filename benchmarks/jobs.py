"""The job server beside beanstalkd.

Both serve the same client process, over as many connections, with payloads of 100 bytes. They take turns in short
slices, and ratios are formed within each round, because machines are noisy. A cycle is what a job's life takes:
add, lease and complete here; put, reserve and delete there.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import (
    STUCK_SECONDS,
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
GOALS = {("os", 16): 1.0, ("os", 64): 1.0, ("always", 16): 5.0, ("always", 64): 5.0}
JOBS = 1_000_000
MEMORY_GOAL = 700
STALL_GOAL = 3.0
SLICE_SECONDS = 0.5
ROUNDS_MAX = 9
RESTARTS_MAX = 3
_numbers = itertools.count(1)


# -- servers


@dataclass
class Running:
    """A server, and how to talk to it."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    client: type[Cycle]
    port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def begin(self) -> float:
        """Start it, and return how many seconds it took to answer."""
        began = time.perf_counter()
        self.process = self.start()
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port)) as connection:
                    connection.sendall(self.client.PROBE)
                    if connection.recv(1):
                        return time.perf_counter() - began
            except OSError:
                time.sleep(0.001)

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


def chiplog(folder: Path, policy: str) -> Running:
    port = free_port()
    command = [sys.executable, "-m", "chiplog.cli.jobs_serve", "-listen", f"127.0.0.1:{port}"]
    command += ["-cmdlog-path", str(folder), "-cmdlog-sync", policy]
    return Running("chiplog", lambda: spawn(command), Workq, port, folder)


def beanstalkd(folder: Path, policy: str) -> Running:
    port = free_port()
    sync = ["-f", "0"] if policy == "always" else ["-F"]
    command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), *sync]
    return Running("beanstalkd", lambda: spawn(command), Beanstalk, port, folder)


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
        servers = chiplog(folders[0], policy), beanstalkd(folders[1], policy)
        try:
            yield servers
        finally:
            for server in servers:
                server.end()


# -- clients


@dataclass
class Slice:
    """What a slice of a load came to."""

    rate: float = 0.0
    latencies: list[float] = field(default_factory=list)


class Cycle:
    """What is said to take a job through its life. Each answer leads to the next request."""

    PROBE = b""

    def first(self) -> bytes:
        raise NotImplementedError

    def second(self, data: bytes) -> bytes:
        raise NotImplementedError

    def third(self, data: bytes) -> bytes:
        raise NotImplementedError

    def again(self, data: bytes) -> bytes:
        raise NotImplementedError


class Workq(Cycle):
    PROBE = b"inspect queues 0 1\r\n"
    ADD = b" q 60000 3600000 %d\r\n" % len(PAYLOAD) + PAYLOAD + b"\r\n"

    def first(self) -> bytes:
        return b"add 00000000-0000-4000-8000-%012x" % next(_numbers) + self.ADD

    def second(self, data: bytes) -> bytes:
        assert data == b"+OK\r\n", data
        return b"lease q 1000\r\n"

    def third(self, data: bytes) -> bytes:
        assert data[:7] == b"+OK 1\r\n", data
        return b"complete " + data[7:43] + b" 0\r\n\r\n"

    def again(self, data: bytes) -> bytes:
        assert data == b"+OK\r\n", data
        return self.first()


class Beanstalk(Cycle):
    PROBE = b"stats\r\n"
    PUT = b"put 0 0 60 %d\r\n" % len(PAYLOAD) + PAYLOAD + b"\r\n"

    def first(self) -> bytes:
        return self.PUT

    def second(self, data: bytes) -> bytes:
        assert data[:8] == b"INSERTED", data
        return b"reserve-with-timeout 1\r\n"

    def third(self, data: bytes) -> bytes:
        assert data[:8] == b"RESERVED", data
        return b"delete " + data.split(b" ", 2)[1] + b"\r\n"

    def again(self, data: bytes) -> bytes:
        assert data == b"DELETED\r\n", data
        return self.PUT


class Connected:
    """A connection that takes one job after another through its life."""

    __slots__ = ("began", "receive", "send", "socket", "step")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receive, self.send = self.socket.recv, self.socket.send
        self.step = 0
        self.began = 0.0


def load(server: Running, connections: int, seconds: float) -> Slice:
    """Jobs through their lives for a while, until the last of them has ended.

    One thread serves all connections, with as little between it and the sockets as Python allows: what is to be
    seen is how fast the servers are.
    """
    cycle, told, clock = server.client(), Slice(), time.perf_counter
    requests = cycle.second, cycle.third, cycle.again
    note = told.latencies.append
    cycles, left = 0, connections
    with contextlib.ExitStack() as stack:
        ready = stack.enter_context(select.epoll())
        known: dict[int, Connected] = {}
        for _ in range(connections):
            one = Connected(server.port)
            stack.enter_context(one.socket)
            known[one.socket.fileno()] = one
            ready.register(one.socket, select.EPOLLIN)
        start = clock()
        ends, stuck = start + seconds, start + seconds + STUCK_SECONDS
        for one in known.values():
            one.began = clock()
            one.send(cycle.first())
        while left:
            for file, _ in ready.poll(1.0):
                one = known[file]
                data = one.receive(65536)
                now = clock()
                note(now - one.began)
                request = requests[one.step](data)
                one.step += 1
                if one.step == 3:
                    one.step = 0
                    if now < ends or not cycles:
                        cycles += 1
                    else:
                        left -= 1
                        continue
                one.began = clock()
                one.send(request)
            now = clock()
            if not told.rate and now >= ends and cycles:
                told.rate = cycles / (now - start)
            assert now < stuck, f"{server.name} leaves {left} clients without an answer"
    return told


def fill(server: Running, count: int) -> None:
    """Jobs that wait, added as fast as one connection takes them."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for start in range(0, count, 1000):
            some = min(1000, count - start)
            if server.client is Workq:
                adds = (b"add 00000000-0000-4000-8000-%012x" % next(_numbers) for _ in range(some))
                connection.sendall(b"".join(one + Workq.ADD for one in adds))
            else:
                connection.sendall(Beanstalk.PUT * some)
            answered = 0
            while answered < some:
                answered += connection.recv(1 << 16).count(b"\n")


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
            latencies: dict[str, list[float]] = {server.name: [] for server in servers}

            def rate(
                server: Running, count: int = connections, found: dict[str, list[float]] = latencies
            ) -> float:
                told = load(server, count, seconds)
                found[server.name] += told.latencies
                return told.rate

            ours, theirs = (
                Case(
                    f"{server.name}, {connections} connections",
                    policy if server.name == "chiplog" else {"os": "-F", "always": "-f 0"}[policy],
                    "chiplog" if server.name == "chiplog" else "peer",
                    lambda server=server, rate=rate: rate(server),
                )
                for server in servers
            )
            series = interleave(settings, [ours, theirs], min(settings.rounds, ROUNDS_MAX))
            figure.rows += [row(one, "cycles/s") for one in series]
            text = f"{policy}, {connections} connections, to beanstalkd"
            figure.goals.append(ratio_goal(text, *series, at_least=GOALS.get((policy, connections))))
            figure.notes.append(_told_latencies(connections, latencies))
    return figure


def _told_latencies(connections: int, latencies: dict[str, list[float]]) -> str:
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
            fill(server, count)
            taken = (server.rss_bytes() - before) / count
            figure.rows.append(plain_row(f"{server.name}, memory of a waiting job", "bytes", taken))
            if server.name == "chiplog":
                figure.goals.append(count_goal("memory of a waiting job", taken, "bytes", at_most=MEMORY_GOAL))
            server.end(signal.SIGTERM)
            seconds[server.name] = []
        for number in range(min(settings.rounds, RESTARTS_MAX)):
            for server in servers:
                settings.tell(f"round {number + 1}: starting {server.name}")
                seconds[server.name].append(server.begin())
                server.end(signal.SIGTERM)
    figure.rows += [row_of(f"{name}, until it answers", "s", found) for name, found in seconds.items()]
    goal = goal_of("start, to beanstalkd", seconds["beanstalkd"], seconds["chiplog"], at_least=1.0)
    figure.goals.insert(0, goal)
    return figure


def many(settings: Settings) -> Figure:
    """The p99 of an answer with a million waiting jobs, while a hundred thousand become due in one second."""
    count = settings.count(JOBS, least=1000)
    latencies: dict[str, list[float]] = {"full": [], "empty": []}
    with settings.scratch() as path:
        servers = {name: chiplog(path / name, "os") for name in latencies}
        try:
            for server in servers.values():
                server.begin()
            settings.tell("adding jobs")
            fill_queue(servers["full"], "waiting", count)
            due = time.time() + 2 + 6 * settings.scale
            schedule(servers["full"], count // 10, due)
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


def fill_queue(server: Running, name: str, count: int) -> None:
    tail = Workq.ADD.replace(b" q ", f" {name} ".encode(), 1)
    send_all(server, (b"add 00000000-0000-4000-8000-%012x" % next(_numbers) + tail for _ in range(count)))


def schedule(server: Running, count: int, due: float) -> None:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due)).encode()
    tail = b" due 60000 3600000 %b %d\r\n" % (when, len(PAYLOAD)) + PAYLOAD + b"\r\n"
    send_all(server, (b"schedule 00000000-0000-4000-8000-%012x" % next(_numbers) + tail for _ in range(count)))


def send_all(server: Running, commands: Iterator[bytes]) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        while some := list(itertools.islice(commands, 1000)):
            connection.sendall(b"".join(some))
            answered = 0
            while answered < len(some):
                answered += connection.recv(1 << 16).count(b"\n")
