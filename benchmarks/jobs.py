"""The job server beside beanstalkd: `make bench-jobs`.

Both serve the same client process, over as many connections, with payloads of 100 bytes. They take turns in short
slices, and ratios are formed within each round, because machines are noisy. A cycle is what a job's life takes:
add, lease and complete here; put, reserve and delete there.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks.machine import describe
from benchmarks.measure import payload

PAYLOAD = payload()
CONNECTIONS = (1, 16, 64)
GOALS = {("os", 16): 1.0, ("os", 64): 1.0, ("always", 16): 5.0, ("always", 64): 5.0}
MEMORY_GOAL = 700
STALL_GOAL = 3.0
FIGURES = ("cycles/s", "p50 µs", "p99 µs")
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
def both(policy: str, directory: Path) -> Iterator[tuple[Running, Running]]:
    folders = [Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=directory)) for name in ("ours", "theirs")]
    servers = chiplog(folders[0], policy), beanstalkd(folders[1], policy)
    try:
        yield servers
    finally:
        for server in servers:
            server.end()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


# -- clients


@dataclass
class Slice:
    """What a slice of a load came to."""

    cycles: int = 0
    running: bool = True
    latencies: list[float] = field(default_factory=list)


class Cycle(asyncio.Protocol):
    """A connection that takes one job after another through its life."""

    PROBE = b""

    def __init__(self, told: Slice) -> None:
        self._told = told
        self._step = 0
        self._began = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._send(self.first())

    def data_received(self, data: bytes) -> None:
        told = self._told
        told.latencies.append(time.perf_counter() - self._began)
        step = self._step
        if step == 0:
            self._step = 1
            self._send(self.second(data))
        elif step == 1:
            self._step = 2
            self._send(self.third(data))
        else:
            self.check(data)
            told.cycles += 1
            self._step = 0
            if told.running:
                self._send(self.first())
            elif self._transport is not None:
                self._transport.close()

    def _send(self, data: bytes) -> None:
        self._began = time.perf_counter()
        assert self._transport is not None
        self._transport.write(data)

    def first(self) -> bytes:
        raise NotImplementedError

    def second(self, data: bytes) -> bytes:
        raise NotImplementedError

    def third(self, data: bytes) -> bytes:
        raise NotImplementedError

    def check(self, data: bytes) -> None:
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

    def check(self, data: bytes) -> None:
        assert data == b"+OK\r\n", data


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

    def check(self, data: bytes) -> None:
        assert data == b"DELETED\r\n", data


async def load(server: Running, connections: int, seconds: float) -> Slice:
    told = Slice()
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: server.client(told), "127.0.0.1", server.port)
    began = time.perf_counter()
    before = told.cycles
    await asyncio.sleep(seconds)
    cycles, elapsed = told.cycles - before, time.perf_counter() - began
    told.running = False
    await asyncio.sleep(0.05)
    told.cycles = round(cycles / elapsed)
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


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def cycles(policy: str, options: argparse.Namespace) -> list[dict[str, object]]:
    rows = []
    with both(policy, options.directory) as servers:
        for server in servers:
            server.begin()
        for connections in CONNECTIONS:
            ratios, rates, latencies = [], {"chiplog": [], "beanstalkd": []}, {"chiplog": [], "beanstalkd": []}
            for number in range(options.rounds + 1):
                slices = {}
                for server in servers if number % 2 else reversed(servers):
                    slices[server.name] = uvloop.run(load(server, connections, options.seconds))
                if number == 0:
                    continue  # it warms up
                for name, found in slices.items():
                    rates[name].append(found.cycles)
                    latencies[name] += found.latencies
                ratios.append(slices["chiplog"].cycles / max(slices["beanstalkd"].cycles, 1))
            goal = GOALS.get((policy, connections))
            row: dict[str, object] = {
                "policy": policy,
                "connections": connections,
                "ratio": statistics.median(ratios),
                "low": min(ratios),
                "high": max(ratios),
                "goal": goal,
            }
            for name in rates:
                row[f"{name} cycles/s"] = statistics.median(rates[name])
                row[f"{name} p50 µs"] = percentile(latencies[name], 0.5) * 1e6
                row[f"{name} p99 µs"] = percentile(latencies[name], 0.99) * 1e6
            rows.append(row)
            say(told_cycles(row))
    return rows


def told_cycles(row: dict[str, object]) -> str:
    goal, ratio = row["goal"], row["ratio"]
    verdict = "" if goal is None else f" (goal {goal}: {'reached' if ratio >= goal else 'NOT reached'})"
    ours, theirs = ([row[f"{name} {what}"] for what in FIGURES] for name in ("chiplog", "beanstalkd"))
    return (
        f"{row['policy']:>6}, {row['connections']:>2} connections: {ours[0]:>7,.0f} cycles/s, beanstalkd "
        f"{theirs[0]:>7,.0f}: {ratio:.2f} ({row['low']:.2f} to {row['high']:.2f}){verdict}; "
        f"p50 {ours[1]:,.0f} and {theirs[1]:,.0f} µs, p99 {ours[2]:,.0f} and {theirs[2]:,.0f} µs"
    )


def restarts(options: argparse.Namespace) -> dict[str, float]:
    """With a million waiting jobs: how long a start takes, and how much memory a job."""
    figures: dict[str, float] = {}
    with both("os", options.directory) as servers:
        for server in servers:
            server.begin()
            before = server.rss_bytes()
            fill(server, options.jobs)
            figures[f"{server.name} bytes per job"] = (server.rss_bytes() - before) / options.jobs
            server.end(signal.SIGTERM)
        seconds: dict[str, list[float]] = {"chiplog": [], "beanstalkd": []}
        for _ in range(3):
            for server in servers:
                seconds[server.name].append(server.begin())
                server.end(signal.SIGTERM)
        for name, found in seconds.items():
            figures[f"{name} restart s"] = statistics.median(found)
    ratio = figures["restart ratio"] = figures["beanstalkd restart s"] / figures["chiplog restart s"]
    ours, theirs = figures["chiplog bytes per job"], figures["beanstalkd bytes per job"]
    say(
        f"restart with {options.jobs:,} waiting jobs: {figures['chiplog restart s']:.2f} s, beanstalkd "
        f"{figures['beanstalkd restart s']:.2f} s: {ratio:.2f} "
        f"(goal 1.0: {'reached' if ratio >= 1 else 'NOT reached'})"
    )
    told = "reached" if ours <= MEMORY_GOAL else "NOT reached"
    say(f"memory per waiting job: {ours:.0f} B (goal {MEMORY_GOAL}: {told}), beanstalkd {theirs:.0f} B")
    return figures


def stalls(options: argparse.Namespace) -> dict[str, float]:
    """The p99 of an answer with a million waiting jobs, while a hundred thousand become due in one second."""
    folders = [Path(tempfile.mkdtemp(prefix="bench-stall-", dir=options.directory)) for _ in range(2)]
    full, empty = (chiplog(folder, "os") for folder in folders)
    try:
        full.begin()
        empty.begin()
        fill_queue(full, "waiting", options.jobs)
        due = time.time() + 8
        schedule(full, options.jobs // 10, due)
        time.sleep(max(0.0, due - 1 - time.time()))
        latencies: dict[str, list[float]] = {"full": [], "empty": []}
        while time.time() < due + 3:
            for name, server in (("full", full), ("empty", empty)):
                latencies[name] += uvloop.run(load(server, 16, 0.25)).latencies
    finally:
        for server in (full, empty):
            server.end()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    p99 = {name: percentile(found, 0.99) for name, found in latencies.items()}
    ratio = p99["full"] / p99["empty"]
    say(
        f"p99 with {options.jobs:,} waiting jobs and {options.jobs // 10:,} due in one second: "
        f"{p99['full'] * 1e6:,.0f} µs, empty {p99['empty'] * 1e6:,.0f} µs: {ratio:.2f} "
        f"(goal at most {STALL_GOAL}: {'reached' if ratio <= STALL_GOAL else 'NOT reached'})"
    )
    return {"full p99 µs": p99["full"] * 1e6, "empty p99 µs": p99["empty"] * 1e6, "stall ratio": ratio}


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


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a slice")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="that wait, where many do")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="for the logs")
    parser.add_argument("--only", choices=["cycles", "restarts", "stalls"])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if shutil.which("beanstalkd") is None:
        say("beanstalkd is not installed: on Debian, apt-get install beanstalkd")
        return 2
    say("; ".join(f"{name}: {value}" for name, value in describe(options.directory).items()))
    figures: dict[str, object] = {"machine": describe(options.directory)}
    if options.only in (None, "cycles"):
        figures["cycles"] = [row for policy in ("os", "always") for row in cycles(policy, options)]
    if options.only in (None, "restarts"):
        figures |= restarts(options)
    if options.only in (None, "stalls"):
        figures |= stalls(options)
    if options.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
