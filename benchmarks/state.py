"""State: what an enumeration costs those who update meanwhile, and how fast a state is restored beside others.

A resource is a small msgspec Struct. Updates come at an even pace, where what is slow is the log, and at full
rate, where threads mostly wait for each other. Redis loads an append-only file of as many SETs, as it does when it
starts, by its own figure, without the time that a process takes to start; shelve and sqlite3 read all to objects.
"""

from __future__ import annotations

import gc
import re
import shelve
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.measure import (
    Case,
    Figure,
    Settings,
    free_port,
    goal_of,
    interleave,
    percentile,
    ratio_goal,
    row,
    row_of,
)
from forelog.state import Enumeration, StateLog

RESOURCES = 1_000_000
THREADS = 4
PACE_SECONDS = 0.001
ALONE_SECONDS_MAX = 5.0
STALL_GOAL = 3.0
REDIS_GOAL = 0.5
STORES_GOAL = 3.0
ROUNDS_MAX = 5
UPDATE_ROUNDS_MAX = 3  # each takes a minute or two
_NEVER = 1 << 48
_CHUNK = 10_000
_DECODED_AT_ONCE = 1000


class Resource(msgspec.Struct):
    id: int
    name: str
    size: int
    price: float


def resource(number: int) -> Resource:
    return Resource(number, f"resource {number}", number * 7, number / 3)


class App:
    """Resources by their ids, a lock, and a log that rotates when it is told to."""

    def __init__(self, path: Path) -> None:
        self.all: dict[int, Resource] = {}
        self.lock = threading.Lock()
        self.log = StateLog(
            str(path), replay=self.replay, enumerate=self.enumerate, types=[Resource], rotate_bytes=_NEVER
        )

    def replay(self, event: Resource) -> None:
        self.all[event.id] = event

    def put(self, one: Resource) -> None:
        with self.lock:
            self.log.update(one)
            self.all[one.id] = one

    def enumerate(self, log: Enumeration) -> None:
        with self.lock:
            numbers = list(self.all)
        for number in log.each(numbers):
            with self.lock:
                if number in self.all:
                    log.update(self.all[number])

    def fill(self, count: int) -> None:
        for number in range(count):
            self.put(resource(number))


# -- updates during an enumeration


@dataclass
class Updates:
    """What was found at one pace, with so many resources, round by round."""

    pace: float
    count: int
    alone_p99: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def title(self) -> str:
        pace = f"every {self.pace * 1000:g} ms" if self.pace else "at full rate"
        return f"{pace}, {self.count:,} resources"

    def measure(self, app: App, *, enumerated: bool) -> None:
        """Update on four threads, while all is enumerated, or about as long while nothing is."""
        gc.collect()
        if not enumerated:
            seconds = min(self.count / 200_000, ALONE_SECONDS_MAX)
            _, latencies = update_meanwhile(app, self.count, self.pace, lambda: time.sleep(seconds))
            self.alone_p99.append(percentile(latencies, 0.99))
            return
        took, latencies = update_meanwhile(app, self.count, self.pace, app.log.rotate)
        self.p99.append(percentile(latencies, 0.99))
        self.rates.append(len(latencies) / took)
        self.seconds.append(took)


def state_updates(settings: Settings) -> Figure:
    """The p99 of an update by each of four threads, while everything is enumerated and while nothing is."""
    count = settings.count(RESOURCES, least=1000)
    paces = [Updates(PACE_SECONDS, count), Updates(0, max(count // 10, 1000))]
    for one in paces:
        with settings.scratch() as path:
            _measure_updates(settings, one, App(path / "state"))
    figure = Figure("state-updates", f"{THREADS} threads update while everything is enumerated")
    for one in paces:
        figure.rows += [
            row_of(f"update {one.title}, meanwhile", "records/s", one.rates, "os"),
            row_of(f"update {one.title}, meanwhile: p99", "µs", [value * 1e6 for value in one.p99], "os"),
            row_of(f"update {one.title}, alone: p99", "µs", [value * 1e6 for value in one.alone_p99], "os"),
            row_of(f"enumeration, with updates {one.title}", "s", one.seconds, "os"),
        ]
        text = f"p99 of an update {one.title}, enumerated to alone"
        figure.goals.append(goal_of(text, one.p99, one.alone_p99, at_most=STALL_GOAL))
    figure.notes.append(
        "One lock for all resources, which the enumeration takes for one resource at a time. A latency is that of "
        "lock, update and change together. At full rate the enumeration has to wait for the lock so often that a "
        "tenth of the resources is enough."
    )
    return figure


def _measure_updates(settings: Settings, one: Updates, app: App) -> None:
    rounds = min(settings.rounds, UPDATE_ROUNDS_MAX)
    with app.log:
        settings.tell("writing")
        app.fill(one.count)
        for number in range(1, rounds + 1):
            for turn in range(2):
                enumerated = bool((turn + number) % 2)
                what = "enumerated" if enumerated else "alone"
                settings.tell(f"round {number} of {rounds}: {one.title}, {what}")
                one.measure(app, enumerated=enumerated)


def update_meanwhile(app: App, count: int, pace: float, work: Callable[[], object]) -> tuple[float, array[float]]:
    """Update on four threads while something is done; how long that took, and how long each update did."""
    stop = threading.Event()
    found = [array("d") for _ in range(THREADS)]
    ready = threading.Barrier(THREADS + 1)

    def update(thread: int) -> None:
        note, put, clock, stopped = found[thread].append, app.put, time.perf_counter, stop.is_set
        number = thread
        ready.wait()
        due = clock()
        while not stopped():
            if pace:
                due = max(due + pace, clock() - pace)  # who was kept waiting doesn't make up for it in a rush
                time.sleep(max(0.0, due - clock()))
            number = (number + 7919 * THREADS) % count
            one = resource(number)
            start = clock()
            put(one)
            note(clock() - start)

    threads = [threading.Thread(target=update, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    try:
        work()
        took = time.perf_counter() - start
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return took, sum(found, array("d"))


# -- restoring


def state_restore(settings: Settings) -> Figure:
    """A million resources come back: from a state log, from Redis's file, from shelve and from sqlite3."""
    count = settings.count(RESOURCES, least=1000)
    few = max(count // 10, 100)  # shelve takes minutes for a million
    figure = Figure("state-restore", f"Restore {count:,} resources")
    with settings.scratch() as path:
        settings.tell("writing")
        app = App(path / "state")
        with app.log:
            app.fill(count)
        app.all.clear()
        _fill_sqlite(path, count)
        _fill_shelve(path, few)
        parts = _encoded(count)
        cases = [
            Case("StateLog.open", "os", "forelog", lambda: count / restore_state(path, count)),
            Case("sqlite3, SELECT to objects", "-", "peer", lambda: count / restore_sqlite(path, count)),
            Case(f"shelve, items() of {few:,}", "-", "peer", lambda: few / restore_shelve(path, few)),
            Case("msgspec and a dict alone", "-", "limit", lambda: count / restore_in_memory(parts, count)),
        ]
        if shutil.which("redis-server") is None:
            figure.notes.append("redis-server is not installed, so not measured: on Debian, apt-get install it.")
        else:
            _fill_redis(path, count)
            redis = Case(
                "Redis, loads its append-only file", "-", "peer", lambda: count / restore_redis(path, count)
            )
            cases.append(redis)
        series = interleave(settings, cases, min(settings.rounds, ROUNDS_MAX))
    figure.rows = [row(one, "records/s") for one in series]
    for one in series[1:]:
        name = one.case.name.split(",")[0]
        goal = None if one.case.role == "limit" else REDIS_GOAL if name == "Redis" else STORES_GOAL
        figure.goals.append(ratio_goal(f"restore, to {name}", series[0], one, at_least=goal))
    figure.notes.append(
        "A restore decodes each event to a Struct and calls replay, which puts it into a dict. Redis keeps the "
        "same bytes as strings, in C. All read from the page cache. Without a log, from bytes in memory, msgspec "
        "and the dict alone take most of a restore's time."
    )
    return figure


def restore_state(path: Path, count: int) -> float:
    app = App(path / "state")
    start = time.perf_counter()
    with app.log:
        took = time.perf_counter() - start
    assert len(app.all) == count
    return took


def _encoded(count: int) -> list[bytes]:
    """All resources, in msgpack, some in each of the parts."""
    encode = msgspec.msgpack.Encoder().encode
    starts = range(0, count, _DECODED_AT_ONCE)
    return [encode([*map(resource, range(at, min(at + _DECODED_AT_ONCE, count)))]) for at in starts]


def restore_in_memory(parts: list[bytes], count: int) -> float:
    decode = msgspec.msgpack.Decoder(list[Resource]).decode
    start = time.perf_counter()
    resources = {one.id: one for part in parts for one in decode(part)}
    took = time.perf_counter() - start
    assert len(resources) == count
    return took


def _fill_sqlite(path: Path, count: int) -> None:
    with closing(sqlite3.connect(path / "resources.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE resources (id INTEGER PRIMARY KEY, name TEXT, size INTEGER, price REAL)")
        rows = ((one.id, one.name, one.size, one.price) for one in map(resource, range(count)))
        connection.executemany("INSERT INTO resources VALUES (?, ?, ?, ?)", rows)


def restore_sqlite(path: Path, count: int) -> float:
    with closing(sqlite3.connect(path / "resources.sqlite")) as connection:
        start = time.perf_counter()
        found = connection.execute("SELECT id, name, size, price FROM resources")
        resources = {number: Resource(number, name, size, price) for number, name, size, price in found}
        took = time.perf_counter() - start
    assert len(resources) == count
    return took


def _fill_shelve(path: Path, count: int) -> None:
    with shelve.open(str(path / "shelf"), "n") as shelf:
        for number in range(count):
            shelf[str(number)] = resource(number)


def restore_shelve(path: Path, count: int) -> float:
    start = time.perf_counter()
    with shelve.open(str(path / "shelf"), "r") as shelf:
        resources = {int(key): one for key, one in shelf.items()}
        took = time.perf_counter() - start
    assert len(resources) == count
    return took


@contextmanager
def redis(path: Path) -> Iterator[tuple[socket.socket, Path]]:
    """A Redis of our own, its log, and a connection to it once it answers; it is ended, and waited for."""
    folder = path / "redis"
    folder.mkdir(exist_ok=True)
    said = folder / "said.txt"
    said.unlink(missing_ok=True)
    port = free_port()
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--aof-use-rdb-preamble", "no", "--appendfsync", "no"]
    command += ["--auto-aof-rewrite-percentage", "0", "--logfile", str(said)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        with _connected(port, process) as connection:
            yield connection, said
    finally:
        process.terminate()
        process.wait()


def _connected(port: int, process: subprocess.Popen[bytes]) -> socket.socket:
    while process.poll() is None:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.01)
            continue
        while True:
            connection.sendall(b"PING\r\n")
            if connection.recv(1000).startswith(b"+PONG"):
                return connection
            time.sleep(0.01)  # it is loading
    raise RuntimeError(f"redis-server ended with {process.returncode}")


def _fill_redis(path: Path, count: int) -> None:
    encode = msgspec.msgpack.Encoder().encode
    with redis(path) as (connection, _):
        for first in range(0, count, _CHUNK):
            numbers = range(first, min(first + _CHUNK, count))
            words = [(b"SET", b"resource:%d" % number, encode(resource(number))) for number in numbers]
            connection.sendall(b"".join(_command(*some) for some in words))
            answered = 0
            while answered < len(numbers):
                answered += connection.recv(1 << 16).count(b"\n")


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def restore_redis(path: Path, count: int) -> float:
    with redis(path) as (connection, said):
        connection.sendall(b"DBSIZE\r\n")
        assert int(connection.recv(100)[1:]) == count
        loaded = re.findall(r"DB loaded from append only file: ([\d.]+) seconds", said.read_text())
    return max(float(loaded[-1]), 0.001)
