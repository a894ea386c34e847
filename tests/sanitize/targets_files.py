"""Small files beside logs, frames of the replica protocol, and texts that people write: read without harm."""

from __future__ import annotations

import hashlib
import json
import socket
import struct
import threading
from itertools import pairwise
from typing import Any

from forelog import kernel
from forelog.broker.log.history import History
from forelog.copies import lineage, wire
from forelog.copies.identity import Identity
from forelog.copies.server.receiver import Receiver
from forelog.copies.slots import Slots, read_identity
from forelog.copies.snapshot import Resume, Snapshot, read_snapshot
from forelog.copies.store import manifest
from forelog.copies.wire import parse_address
from forelog.errors import BadFrame, BadPosition, ForelogError, ReplicaError, TimeOutOfRange
from forelog.formats import Captain, named_format
from forelog.formats.m3 import Series
from forelog.formats.m3.exchange import NotADatapoint, from_json
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import EndMark, read_end
from forelog.log.directory.journal import read_journal
from forelog.log.directory.removed import read_removed
from forelog.log.directory.watermark import read_mark, read_own_from
from forelog.log.position import Position
from forelog.testing import CrashDisk
from forelog.times import format_time, parse_duration, parse_time
from tests.sanitize import seeds
from tests.sanitize.target import Finding, target

HERE = Identity(bytes(range(16)), 1, 3, b"word1234")


def _disk(name: str, data: bytes) -> CrashDisk:
    """A disk with one file in the directory `log`."""
    disk = CrashDisk()
    disk.make_dir("log")
    file = disk.open_append(f"log/{name}")
    file.write(data)
    file.close()
    return disk


def _sealed(data: bytes) -> bytes:
    return data + kernel.crc32c(data).to_bytes(4, "big")


# -- beside a log's segments


def _journal_entries() -> list[bytes]:
    head = struct.Struct(">4sIQQQI")
    first = head.pack(b"CLJR", 1, 77, 3, 100, 5) + b"12345"
    return [
        bytes((5,)) + first,
        bytes((0,)) + first,
        bytes((9,)) + head.pack(b"CLJR", 2, 77, 3, 105, 9) + b"123456789",
    ]


@target(_journal_entries, tokens=(b"CLJR\0\0\0\1", b"CLJR\0\0\0\2"))
def journal_of_a_log(data: bytes) -> None:
    """Entries whose checksums are made right, one behind the other."""
    content = data[1:]
    if data[:1] > b"\x04":
        content = (
            _sealed(content) * 3 if data[:1] < b"\x80" else _sealed(content).ljust(4096, b"\0") + _sealed(content)
        )
    entries = read_journal(Directory(_disk("append.journal", content), "log", Captain()))
    for before, after in pairwise(entries):
        if (before.segment, before.offset + len(before.data)) != (after.segment, after.offset):
            raise Finding(f"{after.offset} follows {before.offset} and {len(before.data)} bytes")


def _ends() -> list[bytes]:
    disk = CrashDisk()
    disk.make_dir("log")
    directory = Directory(disk, "log", Captain())
    mark = EndMark(directory)
    mark.move(3, 500)
    file = disk.open_read("log/append.end")
    data = bytearray(file.size())
    file.read_into(memoryview(data), 0)
    return [bytes(data)]


@target(_ends, size_max=100)
def end_mark_of_a_log(data: bytes) -> None:
    end = read_end(Directory(_disk("append.end", data), "log", Captain()))
    if end.committed > end.intended:
        raise Finding(f"{end} counts further than it was meant to")


def _marks() -> list[bytes]:
    mark = struct.pack(">4sIQQQ16sI", b"CLSY", 1, 5, 3, 1000, bytes(16), 1)
    return [mark + struct.pack(">4sIQ", b"CLTO", 1, 3), mark]


@target(_marks, size_max=100)
def watermark_of_a_log(data: bytes) -> None:
    content = bytearray(8300)
    mark, own = _sealed(data[:52].ljust(52, b"\0")), _sealed(data[52:68].ljust(16, b"\0"))
    content[0:56], content[4096:4152], content[8192:8212] = mark, mark, own
    directory = Directory(_disk("append.synced", bytes(content)), "log", Captain())
    read_mark(directory)
    read_own_from(directory)


def _removed() -> list[bytes]:
    return [struct.pack(">4sQQQ", b"GONE", number, 100, number + 1) for number in (1, 2**63)]


@target(_removed, size_max=28)
def ends_of_removed_segments(data: bytes) -> None:
    notes = read_removed(Directory(_disk("removed.ends", _sealed(data.ljust(28, b"\0"))), "log", Captain()))
    if any(entry.following <= number for number, entry in notes.items()):
        raise Finding(f"{notes} lead backward")


# -- copies of a state log


def _snapshots() -> list[bytes]:
    return [b'{"begin": "000000003:8", "end": "000000003:100", "sequence": 4, "term": 1}', b"[[[[]]]]", b"1e999"]


@target(_snapshots, tokens=(b"null", b"1e999", b'"', b"[", b"{}", b"9" * 30, b"NaN", b"-1"))
def snapshot_of_a_copy(data: bytes) -> None:
    read_snapshot(_disk("snapshot", data), "log")


@target(lambda: [HERE.encode()], refusals=(BadFrame,), size_max=100)
def identity_of_a_copy(data: bytes) -> None:
    read_identity("log", _disk("identity", data))


def _lineages() -> list[bytes]:
    first = lineage.Lineage(HERE, Position(0, 0))
    second = first.next(HERE.next_run(), Position(3, 500))
    return [first.encode(whole=True), second.encode(whole=True)]


@target(_lineages, refusals=(struct.error,))
def openings_of_a_log(data: bytes) -> None:
    if not lineage.is_encoded(len(data)):
        return
    identity, openings = lineage.decode(data)
    lineage.merged(openings, openings)


_PART = manifest.Part(7, 8, 100, 0xE3069283, 1, 3, HERE.word.hex(), "fcde2b2edba56bf4")
_MANIFEST = manifest.Manifest(12, HERE, Snapshot(Position(7, 8), Position(7, 60)), (_PART,), "9f86d081884c7d65")


def _manifests() -> list[bytes]:
    return [_MANIFEST.encode(0), b'{"sha256": 1}', b"[]", b"[" * 3000]


@target(
    _manifests, refusals=(BadFrame,), tokens=(b"null", b"1e999", b"{", b"[", b'"term":', b"9" * 30, b"-1", b"true")
)
def manifest_of_a_copy(data: bytes) -> None:
    """A manifest, its checksum made right if it is JSON."""
    try:
        body = json.loads(data)
        if isinstance(body, dict):
            body.pop("sha256", None)
            body["sha256"] = hashlib.sha256(manifest._canonical(body)).hexdigest()
            data = manifest._canonical(body)
    except (ValueError, RecursionError):
        pass
    found = manifest.decode(_MANIFEST.name, data)
    if manifest.decode(found.name, found.encode(0)) != found:
        raise Finding(f"{found} isn't what it encodes to")


@target(lambda: [_PART.name.encode(), _MANIFEST.name.encode(), manifest.opening_name(HERE).encode()])
def names_in_a_store(data: bytes) -> None:
    name = data.decode("utf-8", "replace")
    manifest.parse_part_name(name)
    manifest.parse_opening_name(name, HERE.id)
    manifest.named_manifests({name: 5})


# -- the replica protocol


def _frames() -> list[bytes]:
    hello = wire.pack(
        {"version": 2, "log": "bank", "role": "primary", "token": "t", **wire.identity_fields(HERE)}
        | wire.resume_fields(Resume(Position(3, 500), b"tail"))
    )
    bodies = [
        (wire.Kind.HELLO, hello),
        (wire.Kind.KNOWN, hello),
        (wire.Kind.CLAIM, wire.pack({"continues": True})),
        (wire.Kind.REFUSED, wire.pack({"why": "no", "code": "superseded"})),
        (wire.Kind.DATA, struct.pack(">QQ", 3, 8) + b"records"),
        (wire.Kind.FLUSH, b"\1"),
        (wire.Kind.ACK, struct.pack(">QQ", 3, 8) + b"tail"),
        (wire.Kind.COMMITTED, struct.pack(">QQQQ", 3, 8, 4, 9)),
        (wire.Kind.RESTART, b""),
        (wire.Kind.HELLO, b"\x81\xa3log" + b"\x91" * 2000 + b"\xc0"),
    ]
    return [struct.pack(">IB", 1 + len(body), kind) + body for kind, body in bodies]


@target(
    _frames,
    refusals=(ReplicaError,),
    tokens=(b"\xa2id", b"\xa4term", b"\xa7segment", b"\xc0", b"\xcf", b"\xa4tail"),
)
def replica_frames(data: bytes) -> None:
    """What the other side sends, as either side reads it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data[: 64 << 10])
        theirs.shutdown(socket.SHUT_WR)
        link = wire.Link(ours, who="a client")
        while (frame := link.receive()) is not None:
            _take(frame)


def _take(frame: wire.Frame) -> None:
    kind, body = frame
    if kind in (wire.Kind.HELLO, wire.Kind.KNOWN, wire.Kind.CLAIM, wire.Kind.WELCOME):
        fields = wire.Fields("a client", body)
        fields.identity()
        fields.resume()
        for name, expected in (("log", str), ("version", int), ("token", str), ("continues", bool)):
            fields.get(name, expected)
    elif kind is wire.Kind.REFUSED:
        wire.refusal("a server", body)
    elif kind is wire.Kind.DATA:
        wire.parse_data(body)
    elif kind is wire.Kind.ACK:
        wire.parse_ack(body)
    elif kind is wire.Kind.COMMITTED:
        wire.parse_snapshot(body)


def _frame(kind: wire.Kind, body: bytes) -> bytes:
    return struct.pack(">IB", 1 + len(body), kind) + body


def _shipped() -> list[bytes]:
    records = kernel.captain_encode_many([b"\x02" + bytes(8), b"\x01\x00\x05", b"\x03" + bytes(8)], 7)[0]
    end = 8 + len(records)
    data = _frame(wire.Kind.DATA, struct.pack(">QQ", 1, 8) + records)
    more = _frame(wire.Kind.DATA, struct.pack(">QQ", 1, end) + records)
    later = _frame(wire.Kind.DATA, struct.pack(">QQ", 3, 8) + records)
    flush, restart = _frame(wire.Kind.FLUSH, b"\1"), _frame(wire.Kind.RESTART, b"")
    committed = _frame(wire.Kind.COMMITTED, struct.pack(">QQQQ", 1, 8, 1, end))
    renewed = _frame(wire.Kind.COMMITTED, struct.pack(">QQQQ", 3, 8, 3, end))
    return [data + committed + more + flush, data + committed + restart + data + committed + later + renewed]


@target(_shipped, refusals=(ForelogError,), tokens=(struct.pack(">QQ", 1, 8), struct.pack(">QQ", 2**63, 8)))
def replica_copies(data: bytes) -> None:
    """What a primary sends, into copies; then they are opened again."""
    ours, theirs = socket.socketpair()
    disk = CrashDisk()
    with ours, theirs:
        theirs.sendall(data[: 64 << 10])
        theirs.shutdown(socket.SHUT_WR)
        slots = Slots("copies", disk)
        try:
            Receiver(wire.Link(ours, who="a primary"), slots, threading.Lock()).run()
        finally:
            slots.close()
            whole = slots.whole is not None and not slots.whole.damaged
            again = Slots("copies", disk)
            again.close()
            if whole and again.whole is None:
                raise Finding("a whole copy isn't there any more after it was closed")


# -- texts


_TIMES = (
    "2026-11-15T18:00:00.000000001Z",
    "2026-11-15",
    "-15m",
    "@-5.25",
    "2016-12-31T23:59:60+01:00",
    "-1.5h",
    "9999-12-31",
)


@target(lambda: [text.encode() for text in _TIMES], refusals=(TimeOutOfRange,), size_max=200)
def times_as_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    try:
        parse_duration(text)
    except TimeOutOfRange:
        pass
    time_ns = parse_time(text, now_ns=seeds.TIME_NS)
    if parse_time(format_time(time_ns)) != time_ns:
        raise Finding(f"{text!r} is {time_ns}, which is {format_time(time_ns)!r}")


@target(lambda: [b"000000007:1048576", b"1:0", b"\xd9\xa1:\xd9\xa2"], refusals=(BadPosition,), size_max=200)
def positions_as_text(data: bytes) -> None:
    position = Position.parse(data.decode("utf-8", "replace"))
    if Position.parse(str(position)) != position:
        raise Finding(f"{position} isn't what it says")


@target(
    lambda: [b"replica://host:9923/bank", b"replica://[::1]/bank", b"replica://h:99999/b"], refusals=(ValueError,)
)
def addresses_of_replicas(data: bytes) -> None:
    parse_address(data.decode("utf-8", "replace"))


_DATAPOINT = (
    b'{"id": {"base64": "/w=="}, "namespace": "default", "shard": 0, "tags": [["a", "b"]], "timestamp_ns": 5, '
    b'"value": "NaN", "unit": 1, "annotation": ""}'
)


@target(
    lambda: [_DATAPOINT, _DATAPOINT.replace(b'"NaN"', b'{"bits": "7ff8000000000001"}')],
    refusals=(NotADatapoint,),
    tokens=(b"null", b"1e999", b'{"base64": "', b"[", b"9" * 400, b"\\ud800", b"true", b'"Infinity"'),
)
def datapoints_as_json(data: bytes) -> None:
    from_json(data)


@target(lambda: [Series(b"cpu", tags={b"host": b"a"}).metadata], refusals=(ValueError,))
def metadata_of_a_series(data: bytes) -> None:
    series = Series.of_metadata(data)
    if Series.of_metadata(series.metadata) != series:
        raise Finding(f"{series} isn't what its metadata says")


@target(lambda: [b'{"bytes": 500, "topics": ["a", "b/c"]}', b"[" * 3000, b'{"bytes": 500, "topics": ["\\ud800"]}'])
def topics_of_a_file(data: bytes) -> None:
    history = History.__new__(History)
    history._files = _disk("19700101T000000.000000001Z.topics", data)
    history._stream = _OneFile()  # type: ignore[assignment]
    history._read_list(1)


class _OneFile:
    """A log whose only file has 500 bytes."""

    path, format = "log", named_format("messages")

    def segment_bytes(self, number: int) -> Any:
        return 500
