"""Every option of every public constructor, at its smallest and largest value: it works, or is refused clearly."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from forelog import KeepLast, Stream, verify
from forelog.bounds import AGE_SECONDS_MAX, BYTES_MAX, COUNT_MAX, TIMER_MS_MAX, TIMER_SECONDS_MAX
from forelog.broker import Broker, Limits, MessageLogWriter
from forelog.commitlog import CommitLog
from forelog.conversion import convert
from forelog.copies.destinations import Destinations
from forelog.formats import Captain
from forelog.formats.m3 import M3, Datapoint, Series, Unit
from forelog.formats.m3.format import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from forelog.jobs import AsyncClient, Client, LocalServer, Worker
from forelog.jobs.log.commandlog import CommandLog
from forelog.log.appender import Sync
from forelog.log.directory.journal import JOURNAL_BYTES_MAX
from forelog.state import PersistentDict, ReplicaServer, StateLog
from forelog.testing import CrashDisk

pytest.importorskip("msgspec", reason="msgspec is not installed")

POLICIES: tuple[Sync, ...] = ("os", "interval", "always")


@dataclass(frozen=True)
class Option:
    """An option: from where to where it may go, and what uses it."""

    owner: str
    name: str
    least: float
    most: float
    use: Callable[..., object]
    tried: float | None = None
    """The largest that is tried, where more would take too long."""

    def __str__(self) -> str:
        return f"{self.owner}-{self.name}"


# -- what is done with each


def append(path: Path, *, format: Literal["captain", "messages"] = "captain", **options: Any) -> None:  # noqa: A002
    """Records into a log, one by one and together, and all of them read back."""
    stream = Stream(path, format=format)
    item: Any = {"messages": (b"topic", b"payload", b"\x80"), "captain": b"payload"}[format]
    for _ in range(2):
        with stream.appender(**options) as log:
            for _ in range(3):
                log.append(item)
            log.append_many([item] * 3)
            log.append_many([])
            log.roll()
            log.roll()
            asyncio.run(log.append_async(item))
            log.sync()
    with stream.cursor() as cursor:
        assert len(list(cursor)) == 14
    assert verify(stream).ok


def append_everywhere(path: Path, **options: Any) -> None:
    for number, policy in enumerate(POLICIES):
        for spare in (False, True):
            append(path / f"captain{number}{spare}", sync=policy, spare=spare, **options)
            append(path / f"messages{number}{spare}", format="messages", sync=policy, spare=spare, **options)


def commit(path: Path, **options: Any) -> None:
    for strategy in ("wait", "behind"):
        with CommitLog(path / strategy, strategy=strategy, **options) as log:
            for _ in range(3):
                log.write(b"payload")
            log.rotate_logs()
            log.write(b"payload")
        with Stream.open(path / strategy).cursor() as cursor:
            assert len(list(cursor)) == 4


def commit_m3(path: Path, **options: Any) -> None:
    fmt = M3(**options)
    with CommitLog(path, format=fmt, segment_bytes=1) as log:
        for number in range(3):
            log.write(Series(b"series" * 9), Datapoint(number, 1.0), Unit.SECOND)
    assert verify(log.stream).ok


def keep(path: Path, **options: Any) -> None:
    for policy in POLICIES:
        for _ in range(2):
            with PersistentDict(f"{path}/{policy}", sync=policy, **options) as kept:
                for number in range(5):
                    kept[str(number)] = number
        with PersistentDict(f"{path}/{policy}") as kept:
            assert dict(kept) == {str(number): number for number in range(5)}


def write_messages(path: Path, **options: Any) -> None:
    for policy in POLICIES:
        with MessageLogWriter(path / policy, sync=policy, **options) as log:
            for _ in range(3):
                log.write("topic", b"payload")
            log.flush()
            log.retain()
        assert Stream.open(path / policy).end().offset > 0


def journal(path: Path, **options: Any) -> None:
    for policy in POLICIES:
        log = CommandLog(f"{path}/{policy}", sync=policy, **options)
        log.open(0)
        for _ in range(3):
            log.write([b"\1"])
        log.close()


def serve_messages(path: Path, **options: Any) -> None:
    async def serve() -> None:
        for policy in POLICIES:
            async with Broker(path / policy, sync=policy, **options) as broker:
                await broker.listen("127.0.0.1", 0)

    asyncio.run(serve())


def serve_within(path: Path, **limits: Any) -> None:
    async def serve() -> None:
        async with Broker(path, limits=Limits(**limits)) as broker:
            await broker.listen("127.0.0.1", 0)
            await asyncio.sleep(0)

    asyncio.run(serve())


def listen(path: Path, *, port: int) -> None:
    async def serve() -> None:
        async with Broker(path) as broker:
            await broker.listen("127.0.0.1", port)

    asyncio.run(serve())


def serve_jobs(_: Path, **options: Any) -> None:
    with LocalServer(**options) as server:
        assert server.address


def ask(_: Path, **options: Any) -> None:
    with LocalServer() as server:
        with Client(server.address, **options) as client:
            client.add("queue", b"payload")

        async def ask_async() -> None:
            async with AsyncClient(server.address, **options) as client:
                assert (await client.lease("queue")) is not None

        asyncio.run(ask_async())


def work(_: Path, **options: Any) -> None:
    done = threading.Event()
    with LocalServer() as server, Client(server.address) as client:
        worker = Worker({"queue": lambda _: done.set()}, server.address, **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        client.add("queue")
        assert done.wait(30)
        worker.stop()
        client.add("queue")  # or a lease that waits long would take as long to end
        thread.join(30)
        assert not thread.is_alive()


def make_log(path: Path) -> Stream:
    stream = Stream(path)
    with stream.appender(segment_bytes=100) as log:
        for _ in range(20):
            log.append(bytes(20))
    return stream


def clean(path: Path, **options: Any) -> None:
    with make_log(path).cleaner() as cleaner:
        cleaner.clean(KeepLast(**options))


def wait_for_lock(path: Path, *, timeout: float) -> None:
    stream = make_log(path)
    stream.appender(timeout=timeout).close()
    stream.cleaner(timeout=timeout).close()
    with stream.cursor(timeout=timeout) as cursor:
        assert len(list(cursor)) == 20


def scan(path: Path, **options: Any) -> None:
    pytest.importorskip("pyarrow")
    assert sum(batch.num_rows for batch in make_log(path).scan(**options)) == 20


def mark(path: Path, **options: Any) -> None:
    stream = Stream(path, **options)
    with stream.appender() as log:
        log.append(b"payload")
    assert Stream.open(path).format == stream.format


def hold_copies(path: Path, **options: Any) -> None:
    with ReplicaServer(str(path), **options) as server:
        assert server.address


def copy(path: Path, **options: Any) -> None:
    with PersistentDict(f"{path}/log") as kept:
        kept.log.add_destination(f"{path}/copy", **options)
        kept["key"] = "value"


def convert_log(path: Path, **options: Any) -> None:
    stream = make_log(path / "source")
    assert convert(stream, path / "target", Captain(), **options).records == 20


def crash(_: Path, **options: Any) -> None:
    disk = CrashDisk(**options)
    with Stream("log", files=disk).appender(sync="always") as log:
        log.append(b"payload")
    assert any(True for _ in disk.states(limit=3))


# -- all of them

LIMITS = {
    "clients_max": (1, COUNT_MAX),
    "unconnected_max": (1, COUNT_MAX),
    "unconnected_per_address_max": (1, COUNT_MAX),
    "unconnected_bytes_max": (1, BYTES_MAX),
    "connect_bytes_max": (64, 0x1000_0004),
    "linger_seconds": (0, TIMER_SECONDS_MAX),
    "linger_bytes_max": (0, BYTES_MAX),
    "packet_bytes_max": (2, 0x1000_0004),
    "control_bytes_max": (64, 0x1000_0004),
    "properties_bytes_max": (64, 0x1000_0004),
    "partial_bytes_max": (1, BYTES_MAX),
    "out_total_bytes_max": (1, BYTES_MAX),
    "in_flight_max": (1, 65_535),
    "receive_max": (1, 65_535),
    "out_bytes_max": (1, BYTES_MAX),
    "tail_bytes_max": (0, BYTES_MAX),
    "turn_bytes_max": (1, BYTES_MAX),
    "pending_bytes_max": (0, BYTES_MAX),
    "name_bytes_max": (1, 65_535),
    "session_bytes_max": (1, 64 << 20),
    "sessions_bytes_max": (1, BYTES_MAX),
    "sessions_max": (1, COUNT_MAX),
    "alias_bytes_max": (0, BYTES_MAX),
    "lists_bytes_max": (0, BYTES_MAX),
    "retained_bytes_max": (0, BYTES_MAX),
    "session_expiry_max": (0, 2**32 - 1),
    "subscriptions_max": (1, COUNT_MAX),
    "topic_alias_max": (0, 65_535),
    "keep_alive_max": (1, 65_535),
    "connect_seconds": (1e-9, TIMER_SECONDS_MAX),
    "retained_max": (0, COUNT_MAX),
    "retain_seconds": (0, AGE_SECONDS_MAX),
    "retain_bytes": (0, BYTES_MAX),
    "retain_interval_seconds": (1e-3, TIMER_SECONDS_MAX),
    "system_interval_seconds": (0, TIMER_SECONDS_MAX),
}
OPTIONS = [
    Option("Stream.appender", "segment_bytes", 1, BYTES_MAX, append_everywhere),
    Option("Stream.appender", "batch_bytes_max", 1, BYTES_MAX, append_everywhere),
    Option("Stream.appender", "sync_interval_ms", 1, TIMER_MS_MAX, append_everywhere),
    Option("Stream.appender", "journal_bytes", 0, JOURNAL_BYTES_MAX, append_everywhere, tried=1 << 16),
    Option("Stream.appender", "timeout", 0, math.inf, wait_for_lock),
    Option("Stream.cursor", "timeout", 0, math.inf, wait_for_lock),
    Option("Stream.cleaner", "timeout", 0, math.inf, wait_for_lock),
    Option("Stream.scan", "batch_rows", 1, COUNT_MAX, scan),
    Option("Stream", "magic", 0, 2**32 - 1, mark),
    Option("Stream", "version", 0, 2**32 - 1, mark),
    Option("Stream", "mode", 0o600, 0o666, mark),
    Option("KeepLast", "byte_count", 0, BYTES_MAX, clean),
    Option("KeepLast", "segments", 0, BYTES_MAX, clean),
    Option("CommitLog", "queue_max_writes", 1, BYTES_MAX, commit),
    Option("CommitLog", "queue_max_bytes", 1, BYTES_MAX, commit),
    Option("CommitLog", "queue_timeout", 0, TIMER_SECONDS_MAX, commit),
    Option("CommitLog", "flush_bytes", 1, BYTES_MAX, commit),
    Option("CommitLog", "flush_interval_ms", 1e-3, TIMER_MS_MAX, commit),
    Option("CommitLog", "segment_bytes", 1, BYTES_MAX, commit),
    Option("CommitLog", "timeout", 0, math.inf, commit),
    Option("CommitLog", "mode", 0o600, 0o666, commit),
    Option("M3", "chunk_bytes", CHUNK_BYTES_MIN, CHUNK_BYTES_MAX, commit_m3),
    Option("convert", "segment_bytes", 1, BYTES_MAX, convert_log),
    Option("StateLog", "sync_interval_ms", 1, TIMER_MS_MAX, keep),
    Option("StateLog", "rotate_bytes", 1, BYTES_MAX, keep),
    Option("StateLog", "rotate_seconds", 1e-9, AGE_SECONDS_MAX, keep),
    Option("StateLog", "segment_bytes", 1, BYTES_MAX, keep),
    Option("StateLog", "journal_bytes", 0, JOURNAL_BYTES_MAX, keep, tried=1 << 16),
    Option("StateLog", "timeout", 0, math.inf, keep),
    Option("StateLog", "mode", 0o600, 0o666, keep),
    Option("Destinations.add", "ack_timeout", 0, TIMER_SECONDS_MAX, copy),
    Option("Destinations.add", "interval", 0, TIMER_SECONDS_MAX, copy),
    Option("Destinations.add", "mode", 0o600, 0o666, copy),
    Option("ReplicaServer", "port", 0, 65_535, hold_copies, tried=0),
    Option("ReplicaServer", "connections_max", 1, COUNT_MAX, hold_copies),
    Option("ReplicaServer", "waiting_max", 1, COUNT_MAX, hold_copies),
    Option("ReplicaServer", "waiting_per_address_max", 1, COUNT_MAX, hold_copies),
    Option("ReplicaServer", "hello_seconds", 1e-9, TIMER_SECONDS_MAX, hold_copies),
    Option("ReplicaServer", "logs_max", 1, COUNT_MAX, hold_copies),
    Option("ReplicaServer", "log_bytes_max", 1, BYTES_MAX, hold_copies),
    Option("ReplicaServer", "bytes_max", 1, BYTES_MAX, hold_copies),
    Option("ReplicaServer", "frames_bytes_max", 1, BYTES_MAX, hold_copies),
    Option("ReplicaServer", "mode", 0o600, 0o666, hold_copies),
    Option("MessageLogWriter", "buffer_bytes", 1, 1 << 40, write_messages),
    Option("MessageLogWriter", "flush_interval_ms", 1, TIMER_MS_MAX, write_messages),
    Option("MessageLogWriter", "file_bytes", 1, BYTES_MAX, write_messages),
    Option("MessageLogWriter", "sync_interval_ms", 1, TIMER_MS_MAX, write_messages),
    Option("MessageLogWriter", "retain_seconds", 0, AGE_SECONDS_MAX, write_messages),
    Option("MessageLogWriter", "retain_bytes", 0, BYTES_MAX, write_messages),
    Option("MessageLogWriter", "timeout", 0, math.inf, write_messages),
    Option("MessageLogWriter", "mode", 0o600, 0o666, write_messages),
    Option("CommandLog", "sync_interval_ms", 1, TIMER_MS_MAX, journal),
    Option("CommandLog", "segment_bytes", 1, BYTES_MAX, journal),
    Option("CommandLog", "mode", 0o600, 0o666, journal),
    Option("LocalServer", "port", 0, 65_535, serve_jobs, tried=0),
    Option("LocalServer", "mode", 0o600, 0o666, serve_jobs),
    Option("Client", "timeout", 1, TIMER_SECONDS_MAX, ask),
    Option("Client", "connect_timeout", 1, TIMER_SECONDS_MAX, ask),
    Option("Client", "retry_seconds", 0, TIMER_SECONDS_MAX, ask),
    Option("Client", "connections", 1, COUNT_MAX, ask),
    Option("Worker", "concurrency", 1, 10_000, work, tried=20),
    Option("Worker", "lease_ms", 0, 24 * 3600 * 1000, work),
    Option("Worker", "heartbeat_ms", 0, 8 * 3600 * 1000, work),
    Option("Worker", "timeout", 1, TIMER_SECONDS_MAX, work),
    Option("Worker", "connect_timeout", 1, TIMER_SECONDS_MAX, work),
    Option("Broker", "sync_interval_ms", 1, TIMER_MS_MAX, serve_messages),
    Option("Broker", "file_bytes", 1, BYTES_MAX, serve_messages),
    Option("Broker", "mode", 0o600, 0o666, serve_messages),
    Option("Broker.listen", "port", 0, 65_535, listen, tried=0),
    *(Option("Limits", name, least, most, serve_within) for name, (least, most) in LIMITS.items()),
    Option("CrashDisk", "sector_bytes", 1, 1 << 20, crash),
    Option("CrashDisk", "capacity_bytes", 0, BYTES_MAX, crash),
]
TOO_SMALL_TO_USE = {("Stream.appender", "batch_bytes_max"), ("CrashDisk", "capacity_bytes")}


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_option_works_at_its_smallest(option: Option, tmp_path: Path) -> None:
    value = option.least
    if (option.owner, option.name) in TOO_SMALL_TO_USE:
        with pytest.raises((ValueError, OSError)):
            option.use(tmp_path, **{option.name: value})
    else:
        option.use(tmp_path, **{option.name: value})


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_option_works_at_its_largest(option: Option, tmp_path: Path) -> None:
    option.use(tmp_path, **{option.name: option.most if option.tried is None else option.tried})


def wrong_values(option: Option) -> Iterator[Any]:
    exact = option.least if option.least in (0, 1, 2) or option.least >= 1 else 0
    yield exact - 1 if exact >= 1 or option.least == 0 else 0
    if option.most != math.inf:
        yield option.most + 1
        yield from (2**63, 10**30, math.inf)
    yield from (-(2**63), -math.inf, math.nan, "1", [1])


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_option_beyond_that_is_refused_by_its_name(option: Option, tmp_path: Path) -> None:
    for number, value in enumerate(wrong_values(option)):
        place = tmp_path / str(number)
        shown = ".*" if option.name in ("magic", "version", "mode") else re.escape(repr(value))
        with pytest.raises((ValueError, TypeError), match=rf"^{option.name} is {shown}: expected"):
            option.use(place, **{option.name: value})


def test_no_option_is_missing_here() -> None:
    """Whoever adds an option with a number adds it to the list above."""
    owners: dict[str, Callable[..., Any]] = {
        "Stream.appender": Stream.appender,
        "Stream.cursor": Stream.cursor,
        "Stream.cleaner": Stream.cleaner,
        "Stream": Stream,
        "KeepLast": KeepLast,
        "CommitLog": CommitLog,
        "M3": M3,
        "StateLog": StateLog,
        "Destinations.add": Destinations.add,
        "ReplicaServer": ReplicaServer,
        "MessageLogWriter": MessageLogWriter,
        "CommandLog": CommandLog,
        "LocalServer": LocalServer,
        "Client": Client,
        "Worker": Worker,
        "Broker": Broker,
        "Broker.listen": Broker.listen,
        "Limits": Limits,
        "CrashDisk": CrashDisk,
    }
    known = {(option.owner, option.name) for option in OPTIONS}
    for owner, made in owners.items():
        for name, parameter in inspect.signature(made).parameters.items():
            annotation = str(parameter.annotation)
            if re.fullmatch(r"'?(int|float)( \| None)?'?", annotation):
                assert (owner, name) in known, f"{owner}({name}=) isn't in the list"
