"""The objects that make up a copy: parts of segments, and manifests that list the parts.

::

    bank/
      opening-1.3-2c26b46b68ffc68f                        an opening that writes here: epoch (term.run), word
      manifest-000000000012-1.3-9f86d081884c7d65.json     number, epoch, and a random word, or zeros
      segments/
        000000007-00000000000000000008-1048576-1.3-2c26b46b68ffc68f-fcde2b2edba56bf4.part
        segment   offset               length  epoch and word of the opening, and a random word

A part has the bytes of the segment at its offset: whole records.

A primary writes its `opening` before anything else. Of all openings in the store, the youngest one may write
(register.py).

No name is ever written twice, so nothing depends on what a store does then. If the store can refuse it, the word
of a manifest is zeros: two processes with the same identity, as on a cloned machine, can't both write manifest 12.

A manifest is written after everything that it names. It is valid if its checksum is right, and if all parts that
it names are there, with the right lengths. Of the valid manifests, the one with the highest epoch, then the
highest number, is the copy. So nobody reads what an old primary still writes after a younger one.

A manifest is JSON with sorted keys. `sha256` is the digest of the same JSON without this field. `header` is what
each segment file begins with; the parts don't have it.

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

logger = logging.getLogger("forelog")

VERSION = 2
NO_WORD = "0" * 16
"""The word in the name of a manifest if the store refuses to write a name twice."""
FOLDER = "segments"
MANIFEST_BYTES_MAX = 32 << 20
PART_BYTES_MAX = 1 << 30  # for a part with a single, huge record
_KIND = "copy of a state log"
_NUMBER_MAX = 2**63
_MANIFEST_NAME = re.compile(r"manifest-(\d{12})-(\d{1,19})\.(\d{1,19})-([0-9a-f]{16})\.json", re.ASCII)
_PART_NAME = re.compile(r"\d{9}-\d{20}-\d{1,19}-(\d{1,19})\.(\d{1,19})-[0-9a-f]{16}-[0-9a-f]{16}\.part", re.ASCII)
_OPENING_NAME = re.compile(r"opening-(\d{1,19})\.(\d{1,19})-([0-9a-f]{16})", re.ASCII)
_WORD = re.compile(r"[0-9a-f]{16}", re.ASCII)


def draw_word() -> str:
    """Draw a random word for a name."""
    return new_word().hex()


class Part(NamedTuple):
    """Whole records of a segment, as an object."""

    segment: int
    """The number of the segment."""
    offset: int
    """Where the part begins in the segment."""
    length: int
    """How many bytes the part has."""
    crc32c: int
    """The checksum of the part's bytes."""
    term: int
    """The term of the opening that wrote it."""
    run: int
    """The run of the opening that wrote it."""
    opening: str
    """The word of the opening that wrote it."""
    word: str
    """A random word."""

    @property
    def name(self) -> str:
        """The name of the object in its folder."""
        place = f"{self.segment:09d}-{self.offset:020d}-{self.length}"
        return f"{place}-{self.term}.{self.run}-{self.opening}-{self.word}.part"

    @property
    def path(self) -> str:
        """The name of the object, with its folder."""
        return f"{FOLDER}/{self.name}"

    @property
    def end(self) -> Position:
        """The position after the part."""
        return Position(self.segment, self.offset + self.length)


class Named(NamedTuple):
    """The name of a manifest, parsed. The greatest one is the newest."""

    term: int
    """The term of the opening that wrote it."""
    run: int
    """The run of the opening that wrote it."""
    number: int
    """The number of the manifest in its bucket."""
    word: str
    """A random word, or zeros."""

    @property
    def epoch(self) -> tuple[int, int]:
        """The epoch of the primary that wrote it."""
        return self.term, self.run

    @property
    def name(self) -> str:
        """The name of the object."""
        return f"manifest-{self.number:012d}-{self.term}.{self.run}-{self.word}.json"


class Manifest(NamedTuple):
    """The parts that a copy consists of."""

    number: int
    """The number of the manifest in its bucket."""
    identity: Identity
    """The opening that wrote it."""
    snapshot: Snapshot
    """The last whole generation in the copy."""
    parts: tuple[Part, ...]
    """The parts in the order of the log."""
    word: str
    """A random word, or zeros."""

    @property
    def named(self) -> Named:
        """The manifest's name, as fields."""
        return Named(self.identity.term, self.identity.run, self.number, self.word)

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.named.name

    @property
    def position(self) -> Position:
        """Where the copy ends."""
        return self.parts[-1].end

    @property
    def length(self) -> int:
        """The size of all parts."""
        return sum(part.length for part in self.parts)

    def encode(self, time_ns: int) -> bytes:
        """The manifest as bytes."""
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
    """The manifest in these bytes. Raises BadFrame if it is damaged or contradicts itself."""
    try:
        body = json.loads(data)
        said = body.pop("sha256")
        if hashlib.sha256(_canonical(body)).hexdigest() != said:
            raise BadFrame(f"{name} is damaged: its checksum is wrong")
        if body["forelog"] != _KIND or body["version"] != VERSION:
            raise BadFrame(f"{name} is of version {body['version']!r}: this forelog reads {VERSION}")
        if body["header"] != FORMAT.header().hex():
            raise BadFrame(f"{name} is not of a state log: its segments begin with {body['header']!r}")
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
        raise BadFrame(f"{name} is not a manifest: {type(error).__name__}: {error}") from error
    _check(name, manifest, position)
    return manifest


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"{value!r} is not a valid number")
    return value


def _word(value: Any) -> str:
    if type(value) is not str or not _WORD.fullmatch(value):
        raise ValueError(f"{value!r} is not a valid word")
    return value


def _part(fields: Any) -> Part:
    segment, offset, length, crc32c, term, run = (_count(fields[key]) for key in Part._fields[:-2])
    return Part(segment, offset, length, crc32c, term, run, _word(fields["opening"]), _word(fields["word"]))


def _check(name: str, manifest: Manifest, position: Position) -> None:
    """Raise BadFrame unless the parts are records of one log, from the snapshot on, without a gap."""
    if manifest.name != name or len(manifest.identity.id) != 16:
        raise BadFrame(f"{name} says that it is {manifest.name}")
    at = None
    for part in manifest.parts:
        first = at is None or part.segment > at.segment
        expected = Position(part.segment, FORMAT.header_bytes) if first else at
        if Position(part.segment, part.offset) != expected:
            raise BadFrame(f"{name} has a gap: part {part.name} doesn't follow {at}")
        if not 0 < part.segment <= FORMAT.segment_number_max or part.length < FORMAT.record_bytes_min:
            raise BadFrame(f"{name} names {part.name}, which is impossible")
        if part.crc32c >= 2**32 or part.length > PART_BYTES_MAX:
            raise BadFrame(f"{name} names {part.name}, whose length or checksum is impossible")
        at = part.end
    if at is None or at != position:
        raise BadFrame(f"{name} says that it ends at {position}, but its parts at {at}")
    first_part = Position(manifest.parts[0].segment, manifest.parts[0].offset)
    if manifest.snapshot.begin != first_part or not first_part < manifest.snapshot.end <= at:
        raise BadFrame(f"{name} says that its snapshot is {manifest.snapshot}, but it has {first_part} to {at}")


def parse_part_name(name: str) -> tuple[int, int] | None:
    """The epoch of the opening that wrote a part; None if the name is not that of a part."""
    match = _PART_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def opening_name(identity: Identity) -> str:
    """The name of the object that announces an opening."""
    return f"opening-{identity.opening}"


def parse_opening_name(name: str, log: bytes) -> Identity | None:
    """The opening that an object announces; None if its name is not that of an opening."""
    match = _OPENING_NAME.fullmatch(name)
    return Identity(log, int(match[1]), int(match[2]), bytes.fromhex(match[3])) if match else None


def named_openings(names: Iterable[str], log: bytes) -> list[Identity]:
    """All openings that objects announce, the oldest first."""
    found = (parse_opening_name(name, log) for name in names)
    return sorted(one for one in found if one is not None)


def named_manifests(sizes: Mapping[str, int]) -> dict[Named, int]:
    """All manifests among objects, unread, with their sizes; the newest first."""
    found = {}
    for name, size in sizes.items():
        match = _MANIFEST_NAME.fullmatch(name)
        if match:
            found[Named(int(match[2]), int(match[3]), int(match[1]), match[4])] = size
    return dict(sorted(found.items(), reverse=True))


def load(bucket: Bucket, named: Named, size: int, parts: dict[str, int]) -> Manifest:
    """Read a valid manifest, all of whose parts are there; else BadFrame or FileNotFoundError."""
    if size > MANIFEST_BYTES_MAX:
        raise BadFrame(f"{named.name} has {size:,} bytes: expected at most {MANIFEST_BYTES_MAX:,}")
    manifest = decode(named.name, bucket.read(named.name))
    for part in manifest.parts:
        if parts.get(part.name) != part.length:
            there = "is missing" if part.name not in parts else f"has {parts[part.name]:,} bytes"
            raise BadFrame(f"{named.name} names {part.name}, which {there}")
    return manifest


def newest(bucket: Bucket, listed: dict[Named, int], parts: dict[str, int], count: int = 1) -> list[Manifest]:
    """The newest valid manifests, at most `count`; the newest first. A line is logged for each invalid one."""
    found: list[Manifest] = []
    for named, size in listed.items():
        if len(found) == count:
            break
        try:
            found.append(load(bucket, named, size, parts))
        except (BadFrame, FileNotFoundError) as error:
            if not found:
                logger.warning("%s: an invalid manifest is ignored: %s", bucket.where, error)
    return found
