"""A copy of a state log as objects: parts of its segments, and manifests that say which parts make it up.

::

    bank/
      opening-1.3-2c26b46b68ffc68f                        who writes here: epoch (term.run), word of the opening
      manifest-000000000012-1.3-9f86d081884c7d65.json     number, epoch, and a word drawn for it, or zeros
      segments/
        000000007-00000000000000000008-1048576-1.3-2c26b46b68ffc68f-fcde2b2edba56bf4.part
        segment   offset               length  epoch and word of the opening, and a word drawn for the part

A part has the bytes that the segment has there: whole records.

A primary puts an `opening` there before anything else. Of all openings that are there, the youngest one may
write (register.py).

Nothing is ever written twice under one name, so nothing depends on what a store does then. Where a store can
refuse that, a manifest's word is zeros: two processes with the same identity, as on a cloned machine, can't both
write manifest 12.

A manifest is written after everything that it names. It counts if it has the checksum that it says, and if all
that it names is there in its length; else it is as if it weren't. Of those that count, the one with the highest
epoch and then the highest number is the copy: what an old primary still writes after a younger one has, nobody
reads.

A manifest is JSON with sorted keys. `sha256` is that of the same JSON without it. `header` is what each segment
file begins with, and isn't in the parts.

>>> here = Identity(bytes(16), 1, 3, bytes.fromhex("2c26b46b68ffc68f"))
>>> part = Part(7, 8, 100, 0xE3069283, 1, 3, here.word.hex(), "fcde2b2edba56bf4")
>>> part.name, parse_part_name(part.name)
('000000007-00000000000000000008-100-1.3-2c26b46b68ffc68f-fcde2b2edba56bf4.part', (1, 3))
>>> opening_name(here), parse_opening_name(opening_name(here), here.id) == here
('opening-1.3-2c26b46b68ffc68f', True)
>>> snapshot = Snapshot(Position(7, 8), Position(7, 60))
>>> here = Manifest(12, here, snapshot, (part,), "9f86d081884c7d65")
>>> decode(here.name, here.encode(0)) == here
True
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from forelog.copies.identity import Identity, new_word
from forelog.copies.snapshot import Snapshot
from forelog.copies.store.bucket import Bucket
from forelog.errors import BadFrame
from forelog.formats.state import FORMAT
from forelog.log.position import Position
from forelog.times import format_time

__all__ = [
    "FOLDER", "NO_WORD", "PART_BYTES_MAX", "Manifest", "Named", "Part", "decode", "draw_word", "load",
    "named_manifests", "named_openings", "newest", "opening_name", "parse_opening_name", "parse_part_name",
]  # fmt: skip

logger = logging.getLogger("forelog")

VERSION = 2
NO_WORD = "0" * 16
"""In the name of a manifest that the store was asked not to write twice."""
FOLDER = "segments"
MANIFEST_BYTES_MAX = 32 << 20
PART_BYTES_MAX = 1 << 30  # of one that holds a single, huge record
_KIND = "copy of a state log"
_NUMBER_MAX = 2**63
_MANIFEST_NAME = re.compile(r"manifest-(\d{12})-(\d{1,19})\.(\d{1,19})-([0-9a-f]{16})\.json", re.ASCII)
_PART_NAME = re.compile(r"\d{9}-\d{20}-\d{1,19}-(\d{1,19})\.(\d{1,19})-[0-9a-f]{16}-[0-9a-f]{16}\.part", re.ASCII)
_OPENING_NAME = re.compile(r"opening-(\d{1,19})\.(\d{1,19})-([0-9a-f]{16})", re.ASCII)
_WORD = re.compile(r"[0-9a-f]{16}", re.ASCII)


def draw_word() -> str:
    """What makes a name one that nobody else has."""
    return new_word().hex()


class Part(NamedTuple):
    """Whole records of a segment, as an object."""

    segment: int
    offset: int
    length: int
    crc32c: int
    term: int
    run: int
    opening: str
    """The word of the opening that wrote it."""
    word: str

    @property
    def name(self) -> str:
        """Of the object, in its folder."""
        place = f"{self.segment:09d}-{self.offset:020d}-{self.length}"
        return f"{place}-{self.term}.{self.run}-{self.opening}-{self.word}.part"

    @property
    def path(self) -> str:
        """Of the object."""
        return f"{FOLDER}/{self.name}"

    @property
    def end(self) -> Position:
        """The position after it."""
        return Position(self.segment, self.offset + self.length)


class Named(NamedTuple):
    """What a manifest's name says. The greatest is the one that counts."""

    term: int
    run: int
    number: int
    word: str

    @property
    def epoch(self) -> tuple[int, int]:
        """Of the primary that wrote it."""
        return self.term, self.run

    @property
    def name(self) -> str:
        """Of the object."""
        return f"manifest-{self.number:012d}-{self.term}.{self.run}-{self.word}.json"


class Manifest(NamedTuple):
    """Everything that a copy consists of."""

    number: int
    identity: Identity
    snapshot: Snapshot
    parts: tuple[Part, ...]
    word: str

    @property
    def named(self) -> Named:
        """What its name says."""
        return Named(self.identity.term, self.identity.run, self.number, self.word)

    @property
    def name(self) -> str:
        """Of the object."""
        return self.named.name

    @property
    def position(self) -> Position:
        """Where the copy ends."""
        return self.parts[-1].end

    @property
    def length(self) -> int:
        """How many bytes the parts have."""
        return sum(part.length for part in self.parts)

    def encode(self, time_ns: int) -> bytes:
        """As bytes."""
        body = {
            "forelog": _KIND,
            "version": VERSION,
            "number": self.number,
            "word": self.word,
            "id": self.identity.id.hex(),
            "term": self.identity.term,
            "run": self.identity.run,
            "opening": self.identity.word.hex(),
            "header": FORMAT.header().hex(),
            "begin": str(self.snapshot.begin),
            "end": str(self.snapshot.end),
            "position": str(self.position),
            "time": format_time(time_ns),
            "parts": [part._asdict() for part in self.parts],
        }
        body["sha256"] = hashlib.sha256(_canonical(body)).hexdigest()
        return _canonical(body)


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii")


def decode(name: str, data: bytes) -> Manifest:
    """The manifest that these bytes are; BadFrame if they are none, or one that contradicts itself."""
    try:
        body = json.loads(data)
        said = body.pop("sha256")
        if hashlib.sha256(_canonical(body)).hexdigest() != said:
            raise BadFrame(f"{name} is damaged: its checksum isn't that of what it says")
        if body["forelog"] != _KIND or body["version"] != VERSION:
            raise BadFrame(f"{name} is of version {body['version']!r}: this forelog reads {VERSION}")
        if body["header"] != FORMAT.header().hex():
            raise BadFrame(f"{name} is of a log whose segments begin with {body['header']!r}, no state log's")
        manifest = Manifest(
            _count(body["number"]),
            Identity(
                bytes.fromhex(body["id"]),
                _count(body["term"]),
                _count(body["run"]),
                bytes.fromhex(_word(body["opening"])),
            ),
            Snapshot(Position.parse(body["begin"]), Position.parse(body["end"])),
            tuple(_part(fields) for fields in body["parts"]),
            _word(body["word"]),
        )
        position = Position.parse(body["position"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFrame(f"{name} is no manifest: {type(error).__name__}: {error}") from error
    _check(name, manifest, position)
    return manifest


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"{value!r} is no number that may be there")
    return value


def _word(value: Any) -> str:
    if type(value) is not str or not _WORD.fullmatch(value):
        raise ValueError(f"{value!r} is no word for a name")
    return value


def _part(fields: Any) -> Part:
    segment, offset, length, crc32c, term, run = (_count(fields[key]) for key in Part._fields[:-2])
    return Part(segment, offset, length, crc32c, term, run, _word(fields["opening"]), _word(fields["word"]))


def _check(name: str, manifest: Manifest, position: Position) -> None:
    """Whether it is one log's records from the beginning of the snapshot on, without a gap."""
    if manifest.name != name or len(manifest.identity.id) != 16:
        raise BadFrame(f"{name} says that it is {manifest.name}")
    at = None
    for part in manifest.parts:
        first = at is None or part.segment > at.segment
        expected = Position(part.segment, FORMAT.header_bytes) if first else at
        if Position(part.segment, part.offset) != expected:
            raise BadFrame(f"{name} has a gap: part {part.name} doesn't follow {at}")
        if not 0 < part.segment <= FORMAT.segment_number_max or part.length < FORMAT.record_bytes_min:
            raise BadFrame(f"{name} names {part.name}, which no log can have")
        if part.crc32c >= 2**32 or part.length > PART_BYTES_MAX:
            raise BadFrame(f"{name} names {part.name}, which nobody can have written")
        at = part.end
    if at is None or at != position:
        raise BadFrame(f"{name} says that it ends at {position}, but its parts at {at}")
    first_part = Position(manifest.parts[0].segment, manifest.parts[0].offset)
    if manifest.snapshot.begin != first_part or not first_part < manifest.snapshot.end <= at:
        raise BadFrame(f"{name} says that its snapshot is {manifest.snapshot}, but it has {first_part} to {at}")


def parse_part_name(name: str) -> tuple[int, int] | None:
    """The epoch of who wrote a part; None if that is no part's name."""
    match = _PART_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def opening_name(identity: Identity) -> str:
    """The name of the object that says that an opening writes here."""
    return f"opening-{identity.opening}"


def parse_opening_name(name: str, log: bytes) -> Identity | None:
    """The opening of a log that an object names; None if that is no opening's name."""
    match = _OPENING_NAME.fullmatch(name)
    return Identity(log, int(match[1]), int(match[2]), bytes.fromhex(match[3])) if match else None


def named_openings(names: Iterable[str], log: bytes) -> list[Identity]:
    """All openings of a log that objects name, the oldest first."""
    found = (parse_opening_name(name, log) for name in names)
    return sorted(one for one in found if one is not None)


def named_manifests(sizes: Mapping[str, int]) -> dict[Named, int]:
    """All manifests among objects, with their sizes, the greatest first. What they say isn't looked at."""
    found = {}
    for name, size in sizes.items():
        match = _MANIFEST_NAME.fullmatch(name)
        if match:
            found[Named(int(match[2]), int(match[3]), int(match[1]), match[4])] = size
    return dict(sorted(found.items(), reverse=True))


def load(bucket: Bucket, named: Named, size: int, parts: dict[str, int]) -> Manifest:
    """A manifest that counts: right, and all that it names is there; else BadFrame or FileNotFoundError."""
    if size > MANIFEST_BYTES_MAX:
        raise BadFrame(f"{named.name} has {size:,} bytes, more than any manifest")
    manifest = decode(named.name, bucket.read(named.name))
    for part in manifest.parts:
        if parts.get(part.name) != part.length:
            there = "isn't there" if part.name not in parts else f"has {parts[part.name]:,} bytes there"
            raise BadFrame(f"{named.name} names {part.name}, which {there}")
    return manifest


def newest(bucket: Bucket, listed: dict[Named, int], parts: dict[str, int], count: int = 1) -> list[Manifest]:
    """The manifests that count, at most so many, the one to use first. Those that don't are told of in the log."""
    found: list[Manifest] = []
    for named, size in listed.items():
        if len(found) == count:
            break
        try:
            found.append(load(bucket, named, size, parts))
        except (BadFrame, FileNotFoundError) as error:
            if not found:
                logger.warning("%s: passed over, for the one before it: %s", bucket.where, error)
    return found
