"""The job server: what clients send to it, what it answers them, and what its log says.

Its compiled modules are compared with their own source, which Python runs as it is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import forelog.jobs
from forelog import kernel
from forelog.errors import BadCommand, BadReply
from forelog.formats import Block
from forelog.formats.commands.commands import decode, encode
from forelog.jobs.client.replies import ReplyReader
from tests.sanitize import seeds
from tests.sanitize.target import Finding, comparable, target

NOW_NS = seeds.TIME_NS


class _Source(importlib.abc.MetaPathFinder):
    """Finds modules of the job server as Python source, also where they are compiled."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith("forelog.jobs."):
            return None
        parts = name.split(".")[2:]
        file = Path(forelog.jobs.__path__[0], *parts[:-1], f"{parts[-1]}.py")
        if not file.exists():
            return None
        return importlib.util.spec_from_file_location(
            name, file, loader=importlib.machinery.SourceFileLoader(name, str(file))
        )


class _Jobs(NamedTuple):
    """Modules of the job server that fit together."""

    machine: Any
    session: Any
    outage: Any
    replay: Any
    rare: Any
    beyond: Any


def _imported() -> _Jobs:
    names = ("machine.machine", "server.session", "server.outage", "log.replay", "server.rare", "server.beyond")
    return _Jobs(*(importlib.import_module(f"forelog.jobs.{name}") for name in names))


COMPILED = _imported()


@cache
def _plain() -> _Jobs:
    """The same modules a second time, and all that they use of the job server, not compiled."""
    compiled = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("forelog.jobs.")}
    finder = _Source()
    sys.meta_path.insert(0, finder)
    try:
        return _imported()
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith("forelog.jobs.")]:
            del sys.modules[name]
        sys.modules.update(compiled)
        for name, module in compiled.items():
            parent, _, leaf = name.rpartition(".")
            setattr(sys.modules[parent], leaf, module)


class _Clients:
    """The clients of a server, as a session sees them."""

    started = b"1970-01-01T00:00:00Z"

    def __init__(self, knobs: bytes) -> None:
        self.token = b"secret" if knobs[0] & 2 else None

    def __len__(self) -> int:
        return 1

    def complain(self, connection: Any, what: str) -> None:
        pass

    def admit(self, connection: Any) -> bytes | None:
        return None

    def refuse(self, connection: Any, tried: bool) -> float:
        return 0.0


class _Connection:
    """A connection whose turn is over after every so many commands, or never."""

    def __init__(self, knobs: bytes) -> None:
        self._share, self._commands = knobs[3] % 4, 0

    def has_time(self) -> bool:
        self._commands += 1
        return not self._share or self._commands % self._share != 0


def _talk(jobs: _Jobs, data: bytes) -> object:
    """All that a session answers to these bytes, which come in pieces, while time passes."""
    knobs, data = data[:4].ljust(4, b"\0"), data[4:]
    now_ns, size, found = NOW_NS, (len(data), knobs[1], 1 + (knobs[1] & 7))[knobs[1] % 3] or 1, []
    machine = jobs.machine.Machine(now_ns)
    outage = jobs.outage.Outage(None, machine, None, None, None)
    outage.read_only = bool(knobs[0] & 1)
    clients, beyond = _Clients(knobs), jobs.beyond.Beyond(machine, outage)
    rare = jobs.rare.Rare(machine, clients, outage, None)
    session = jobs.session.Session(machine, clients, outage, None, rare, beyond, _Connection(knobs))
    for at in range(0, len(data), size):
        session.feed(data[at : at + size], now_ns)
        while (session.waiting is not None or session.in_line) and not session.closed:
            if session.waiting is not None:
                session.end_wait()
                session.resume(now_ns)
            else:
                session.go_on(now_ns)
        found.append(session.take())
        if knobs[2]:
            now_ns += knobs[2] * 10**8
            machine.tick(now_ns, 1000)
            for waited in machine.ended:
                found.append(type(waited).__name__)
            machine.ended.clear()
        if session.closed:
            break
    records = [bytes(record) for record in machine.ledger.records]
    return found, session.closed, session.buffered(), records, sorted(machine.jobs)


@target(
    seeds.job_lines,
    traced=False,
    tokens=(
        b"\r\n",
        b"-priority=",
        b"-max-fails=",
        b"61000000-0001-4000-8000-000000000001",
        b"lease q 0\r\n",
        b"9" * 18,
    ),
    size_max=1024,
    timed=lambda data: _talk(COMPILED, data),
)
def job_protocol(data: bytes) -> None:
    found, expected = _outcome(COMPILED, data), _outcome(_plain(), data)
    if found != expected:
        raise Finding(f"compiled and not, it answers differently\n  plain:    {expected}\n  compiled: {found}")


def _outcome(jobs: _Jobs, data: bytes) -> object:
    return comparable(_talk(jobs, data))


@target(
    seeds.job_answers,
    refusals=(BadReply,),
    tokens=(
        b"\r\n",
        b"+OK 1\r\n",
        b"+OK 99999999999\r\n",
        b"payload-size 5\r\npayload ",
        b"-CLIENT-ERROR ",
        b"-SERVER-ERROR ",
    ),
)
def job_replies(data: bytes) -> None:
    """Where a read ends makes no difference."""
    found = []
    for size in (len(data) or 1, 1, 7):
        reader = ReplyReader()
        try:
            reader.expect(data[0] % 6 if data else 0)
            for at in range(1, len(data), size):
                if reader.take() is None:
                    reader.feed(data[at : at + size])
            found.append(repr(reader.take()))
        except BadReply:
            found.append("refused")
    if found[0] != "None" and "refused" not in found and found[1:] != found[:1] * 2:
        raise Finding(f"the answer depends on where reads end: {found}")


def _log_of(data: bytes) -> tuple[list[bytes], bytes]:
    """Payloads, and the records that have them."""
    knobs, data = data[:4].ljust(4, b"\0"), data[4:]
    starts, ends = seeds.cut(data)
    payloads = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    log, _ = kernel.captain_encode_many(payloads, NOW_NS)
    return payloads, _with_zone(log) if knobs[3] & 1 else log  # as if workq had written it


@target(seeds.commands, traced=False, size_max=800, timed=lambda data: _replayed(COMPILED, _log_of(data)[1]))
def job_log(data: bytes) -> None:
    """Commands, as a server reads them at its start: compiled and not, at once and one by one."""
    payloads, log = _log_of(data)
    found = [comparable(_replayed(jobs, log)) for jobs in (COMPILED, _plain())]
    if found[0] != found[1]:
        raise Finding(f"compiled and not, the jobs differ\n  plain:    {found[1]}\n  compiled: {found[0]}")
    for payload in payloads:
        try:
            command = decode(payload)
        except BadCommand:
            continue
        if decode(encode(command)) != command:
            raise Finding(f"{command} isn't what it encodes to")


def _with_zone(log: bytes) -> bytes:
    """The same records with the zone that workq gives its times, and their checksums."""
    out, scan = bytearray(log), kernel.captain_scan(log, 0, len(log), 0, 10**6)
    for start, end in zip(scan.offsets, scan.ends, strict=True):
        out[start + 13 : start + 15] = b"\xff\xff"
        out[end : end + 4] = kernel.crc32c(out[start:end]).to_bytes(4, "big")
    return bytes(out)


def _replayed(jobs: _Jobs, log: bytes) -> object:
    scan = kernel.captain_scan(log, 0, len(log), 8, 10**6)
    rows = len(scan.offsets)
    block = Block(1, "log/1", memoryview(log), 8, scan, scan.offsets, 0, rows, 8 + scan.end)
    replay = jobs.replay.Replay(NOW_NS)
    replay.apply_block(block)
    told = [[getattr(job, name) for name in _FIELDS] for job in replay.jobs.values()]
    counts = replay.conflict_count, replay.bad_count, replay.expired_count, replay.machine.unknown
    replay.machine.start(NOW_NS)
    replay.machine.tick(NOW_NS + 10**12, 10_000)
    after = [(job.id, int(job.state), job.attempts, job.fails) for job in replay.machine.jobs.values()]
    return told, counts, after, [bytes(record) for record in replay.machine.ledger.records]


_FIELDS = (
    "id", "name", "ttr_ms", "ttl_ms", "created_ns", "payload", "priority", "max_attempts", "max_fails",
    "scheduled_ns", "attempts", "fails", "result", "leased_ns",
)  # fmt: skip
