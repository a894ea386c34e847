"""Whole logs whose files hold anything: what reads, checks or repairs one raises no error but forelog's own."""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

from forelog import Stream, kernel
from forelog.commitlog.check import check_entries
from forelog.copies.identity import Identity
from forelog.copies.lineage import Lineage
from forelog.errors import ForelogError
from forelog.formats import Format, FormatName, named_format
from forelog.formats.state import BEGIN, COMMIT, EVENT, FORMAT, WRITER
from forelog.log.directory.index import SegmentIndex, encode_index, map_name
from forelog.log.position import Position
from forelog.log.repair import apply_repairs
from forelog.log.verify import verify
from forelog.state.events import EventCodec
from forelog.state.replay import Replayer
from forelog.testing import CrashDisk
from tests.sanitize import seeds
from tests.sanitize.target import Finding, target
from tests.sanitize.targets_kernel import _indexes


def _disk(contents: dict[str, bytes], folder: str = "log") -> CrashDisk:
    disk = CrashDisk()
    disk.make_dir("log")
    if folder != "log":
        disk.make_dir(folder)
    for name, data in contents.items():
        file = disk.open_append(f"{folder}/{name}")
        file.write(data)
        file.close()
    return disk


def _go_through(make: Any, way: int) -> None:
    """One of the ways to deal with a log: to read it, to check it and open it to append, to repair it."""
    (_read, _open, _repair)[way % 3](make)


def _read(make: Any) -> None:
    for choice in ("skip", "stop", "raise"):
        try:
            with make().cursor(on_corruption=choice) as cursor:
                positions = [record.position for record in cursor]
        except ForelogError:
            continue
        if positions != sorted(set(positions)):
            raise Finding(f"positions don't ascend: {positions[:20]}")


def _open(make: Any) -> None:
    stream = make()
    verify(stream)
    for step in (stream.segments, stream.end, lambda: stream.appender().close(), stream.end):
        with contextlib.suppress(ForelogError):
            step()


def _repair(make: Any) -> None:
    stream = make()
    repairs = apply_repairs(stream)
    report = verify(stream)
    if not report.ok and all(repair.possible for repair in repairs):
        raise Finding(f"it isn't whole after its repair: {report.problems()[:3]}")


def _two_files(format_name: FormatName, data: bytes) -> Any:
    """A log of one file or two, each with a part of the data after its header."""
    fmt: Format = named_format(format_name)
    knobs, data = data[:4].ljust(4, b"\0"), data[4:]
    numbers = (seeds.TIME_NS, seeds.TIME_NS + 10**9) if fmt.numbered_by_time else (1, 2)
    cut = len(data) * (knobs[0] & 3) // 4 if knobs[0] & 3 else len(data)
    contents = {fmt.segment_name(numbers[0]): fmt.header() + data[:cut]}
    if cut < len(data):
        header = fmt.header() if knobs[1] < 0xF0 else b""
        contents[fmt.segment_name(numbers[1])] = header + data[cut:]
    folder = f"log/{fmt.folder}" if fmt.folder else "log"

    def make() -> Stream:
        return Stream("log", format=fmt, files=_disk(contents, folder))

    return make


@target(seeds.captain, refusals=(ForelogError,), tokens=(b"\x01" + bytes(14), bytes(20)), size_max=1500)
def log_of_records(data: bytes) -> None:
    _go_through(_two_files("captain", data), sum(data[2:3]))


@target(seeds.messages, refusals=(ForelogError,), tokens=(b"\x95\xcf", bytes(20)), size_max=1500)
def log_of_messages(data: bytes) -> None:
    _go_through(_two_files("messages", data), sum(data[2:3]))


@target(seeds.m3_files, refusals=(ForelogError,), size_max=1500)
def log_of_chunks(data: bytes) -> None:
    make = _two_files("m3", data)
    check_entries(make())
    _go_through(make, sum(data[2:3]))


def _mapped() -> list[bytes]:
    tail = kernel.captain_encode(b"b", 7)[-4:]
    index = SegmentIndex(1, 50, 900, 2, 7, 7, tail, array("q", [100, 8, 800, 29]), array("q", [100, 7]))
    return [encode_index(index)[:-4], *_indexes()]


@target(_mapped, refusals=(ForelogError,), tokens=(b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\x40" + bytes(7)))
def log_with_a_map(data: bytes) -> None:
    """A segment of two records beside a map, its checksum made right, that tells where they used to be."""
    fmt = named_format("captain")
    segment = fmt.header() + kernel.captain_encode_many([b"a", b"b"], 7)[0]
    sealed = data + kernel.crc32c(data).to_bytes(4, "big")
    name = fmt.segment_name(1)
    contents = {name: segment, map_name(name, len(segment)): sealed}
    _go_through(lambda: Stream("log", files=_disk(contents)), sum(data))


def _state_records() -> list[bytes]:
    identity = Identity(bytes(16), 1, 1, b"word1234")
    writer = WRITER + Lineage(identity, Position(0, 0)).encode(whole=True)
    one = (1).to_bytes(8, "big")
    events = [EVENT + EventCodec().encode(event) for event in ({"a": 1}, [1, "two"], 3)]
    records = [writer, BEGIN + one, *events, COMMIT + one, *events]
    return [seeds._sized(records), seeds._sized(records[1:]), seeds._sized([records[0], *events])]


@target(
    _state_records, refusals=(ForelogError,), tokens=(BEGIN + bytes(8), COMMIT + bytes(8), EVENT + b"\0", WRITER)
)
def log_of_events(data: bytes) -> None:
    """Events, and markers of generations, as they are replayed and as they are sent to a copy."""
    starts, ends = seeds.cut(data)
    payloads = [data[start:end] for start, end in zip(starts, ends, strict=True)]
    records = kernel.captain_encode_many(payloads, seeds.TIME_NS)[0]
    stream = Stream("log", format=FORMAT, files=_disk({"000000001.log": FORMAT.header() + records}))
    seen: tuple[list[Any], list[Any]] = [], []
    read, sent = (Replayer("log", EventCodec(), found.append) for found in seen)
    for block in stream.blocks():
        read.block(block)
    sent.data(Position(1, FORMAT.header_bytes), memoryview(records))
    if repr(seen[0]) != repr(seen[1]) or (read.generation, read.events) != (sent.generation, sent.events):
        raise Finding(f"read: {read.events} events, {seen[0]!r:.200}; sent: {sent.events}, {seen[1]!r:.200}")
    read.check_nothing_is_missing()
