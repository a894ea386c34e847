"""What a search begins with: files that the original programs wrote, and bytes that forelog writes on the spot.

A few knobs come before the bytes of most inputs, so that the search also varies where a scan begins and ends.
"""

from __future__ import annotations

import json
import random
from base64 import b64decode
from functools import cache
from pathlib import Path
from typing import Any

from forelog.broker.mqtt.encode import encode
from forelog.errors import BadPacket
from forelog.formats.m3 import Series
from forelog.formats.messages.msgpack import pack
from tests.broker.fuzz import connect, packet
from tests.jobs.fuzz import line
from tests.kernel import oracle

VECTORS = Path(__file__).parents[1] / "vectors"
KNOBS = bytes(4)
TIME_NS = 1_794_765_600_000_000_000


def files(pattern: str, most: int = 900) -> list[bytes]:
    """The beginnings of files of the original programs."""
    return sorted({path.read_bytes()[:most] for path in VECTORS.glob(pattern)})


def captain() -> list[bytes]:
    """Records, and damaged ones."""
    payloads = [b"", b"one", b"\x01" * 40, bytes(200), b"x" * 127, b"y" * 128]
    made = [oracle.captain_encode_many(payloads, time)[0] for time in (TIME_NS, -1, 2**63 - 1, -(10**19))]
    found = [data[8:] for data in files("captain/damaged/*/*.log") + files("captain/times/*.log")]
    return [KNOBS + data for data in [*made, *found]]


def _entries() -> list[Any]:
    series = [
        Series(b"cpu", tags={b"host": b"a", b"core": b"1"}),
        Series(b"\xff\x00", b"other", 2**32 - 1),
        Series(b"", b"", 0, []),
    ]
    return [
        (one.metadata, TIME_NS + i, value, unit, annotation, created)
        for i, one in enumerate(series * 3)
        for value, unit, annotation, created in ((0.5, 4, None, None), (float("nan"), 255, b"note", -5))
    ]


def m3_files() -> list[bytes]:
    """Chunks of M3's commit log, ours and theirs."""
    made = []
    for chunk_bytes in (65536, 50, 7):
        encoder = oracle.M3Encoder(3, chunk_bytes)
        made.append(encoder.encode_many(_entries()[:8], TIME_NS)[0])
    return [KNOBS + data for data in [*made, *files("m3/*.db", 700), *files("m3/damaged/*.db", 700)]]


def m3_data() -> list[bytes]:
    """What chunks hold, without their heads and checksums."""
    found = []
    for data in m3_files():
        scan = oracle.m3_scan(data, 4, len(data), 0, 100)
        held = b"".join(data[start:end] for start, end in zip(scan.starts, scan.ends, strict=True))
        if held:
            found.append(KNOBS + held)
    return found


PROPERTIES: list[dict[str, Any]] = [
    {},
    {"qos": 1, "retain": True, "from": "client"},
    {"qos": 2, "expiry": 1794765600, "user": [["a", "b"]], "content_type": "text/plain"},
    {"deep": [[[{"a": [1, -5, 2.5, None, True, b"bytes", 2**64 - 1, -(2**63)]}]]], "\u00fc\u20ac": "\U0001f600"},
    {"text": "x" * 300, "bytes": b"y" * 70000},
]


def properties() -> list[bytes]:
    """Properties of messages, in msgpack."""
    odd = [
        bytes.fromhex("82 a1 61 ca 3f800000 a1 62 d4 05 ff"),
        bytes.fromhex("81 a1 61 81 81 81 a1 22 01 02 03"),
        bytes.fromhex("de 0001 d9 01 61 dc 0002 c0 c3"),
        bytes.fromhex("df 00000001 da 0001 61 dd 00000001 c7 03 01 616263"),
        b"\x81\xa1a" + b"\x91" * 15 + b"\xc0",
    ]
    return [*(pack(one)[:900] for one in PROPERTIES), *odd]


def messages() -> list[bytes]:
    """Messages of a broker's log."""
    items = [(b"t", b"", b"\x80"), *((b"plant/7", b"x" * i * 40, pack(p)) for i, p in enumerate(PROPERTIES[:4]))]
    made = [oracle.messages_encode_many(items, time)[0] for time in (TIME_NS, 0)]
    made.append(oracle.messages_encode(("caf\u00e9/".encode() * 50, bytes(300), b"\x80"), 1))
    return [KNOBS + data for data in made]


def commands() -> list[bytes]:
    """Commands of a job server, each after its size in two bytes."""
    found = []
    for log in ("expected.json", "expected-2090.json"):
        records = json.loads((VECTORS / "workq" / log).read_text())["records"]
        payloads = [b64decode(record["record_payload_base64"]) for record in records]
        found += [_sized(payloads[at : at + 4]) for at in range(0, len(payloads), 4)]
    for case in json.loads((VECTORS / "workq" / "replay_cases.json").read_text()):
        if case["edit"] == "append":
            found.append(_sized([b64decode(case["append_record_payload_base64"])]))
    return [KNOBS + data for data in sorted(set(found))]


def _sized(parts: list[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def cut(data: Any, at: int = 0) -> tuple[list[int], list[int]]:
    """Where parts that each come after their size in two bytes start and end, as far as they are whole."""
    starts, ends = [], []
    while at + 2 <= len(data):
        size = data[at] << 8 | data[at + 1]
        at += 2
        starts.append(at)
        at = min(at + size, len(data))
        ends.append(at)
    return starts, ends


@cache
def _packets(version: int) -> tuple[bytes, ...]:
    chance = random.Random(version)
    found: list[bytes] = []
    while len(found) < 60:
        one: Any = packet(chance) if len(found) > 5 else connect(chance)
        try:
            data = encode(one, version, from_server=False)
        except BadPacket:
            continue
        found.append(data)
    return tuple(found)


def packets() -> list[bytes]:
    """What clients send to a broker; the first knob tells the version."""
    found = []
    for version in (4, 5):
        knobs = bytes((version, 0, 0, 0))
        found += [knobs + one for one in _packets(version)[:40]]
        found.append(knobs + b"".join(_packets(version)[10:20]))
    return found


def publishes() -> list[bytes]:
    """Messages to a broker, some of them plain."""
    made = []
    for version in (4, 5):
        plain_ones = [
            oracle.mqtt_encode_publish(version, topic, payload, qos, False, False, qos and 7 + i, b"")
            for i, (topic, payload) in enumerate(
                ((b"a", b""), (b"plant/7/temp", b"21.5"), ("\u00fc/\u20ac".encode(), b"x" * 200))
            )
            for qos in (0, 1)
        ]
        made.append(bytes((version, 0, 0, 0)) + b"".join(plain_ones))
    return made + packets()


def job_lines() -> list[bytes]:
    """What clients send to a job server."""
    transcript = json.loads((VECTORS / "workq" / "transcript.json").read_text())
    sent = [one["send"].encode("latin-1") for one in transcript if one.get("send")]
    chance = random.Random(1)
    made = [b"".join(line(chance) for _ in range(5)) for _ in range(20)]
    return [KNOBS + data[:900] for data in sorted({*sent, *made})]


def job_answers() -> list[bytes]:
    """What a job server answers."""
    transcript = json.loads((VECTORS / "workq" / "transcript.json").read_text())
    found = sorted({one["recv"].encode("latin-1")[:900] for one in transcript if one.get("recv")})
    return [bytes((kind,)) + data for data in found for kind in range(6)]
