"""The states in which a disk may be found after a power loss.

There are independent choices: for each unsynced sector, which of its versions is on the disk, or zeros, or
garbage; for each such file, which of its sizes; for each unsynced change of a directory, whether it happened. A
state is one option of each choice. If there are at most `limit` states, all of them come. Otherwise the extremes
come (all kept, all lost, one thing lost, one thing kept), then a random sample, which is the same for the same
seed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from forelog.testing.model import DiskModel

_GARBAGE_SEED = 0x5EED


@dataclass(slots=True)
class _Choice:
    """One independent choice. The last option is what happens if everything was kept, the first if nothing."""

    kind: str
    key: tuple[object, ...]
    options: list[object]


def possible_contents(model: DiskModel, *, limit: int, seed: int, moment: int) -> Iterator[dict[str, bytes]]:
    """What the disk of a model may hold after a power loss: its files by path, each state once."""
    choices = _choices(model, seed)
    seen = set()
    for picks in _picks(choices, limit, random.Random(seed * 1_000_003 + moment)):
        contents = _build(model, choices, picks)
        key = tuple(sorted(contents.items()))
        if key not in seen:
            seen.add(key)
            yield contents


def one_of(model: DiskModel, rng: random.Random) -> dict[str, bytes]:
    """One possible content of a model's disk after a power loss, chosen at random."""
    choices = _choices(model, rng.getrandbits(32))
    counts = [len(choice.options) for choice in choices]
    return _build(model, choices, _chance(counts, rng))


def _choices(model: DiskModel, seed: int) -> list[_Choice]:
    choices: list[_Choice] = []
    choices.extend(_Choice("move", (move.target,), [move.path, move.target]) for move in model.moves)
    for path, directory in sorted(model.directories.items()):
        choices.extend(_Choice("entry", (path, i), [False, True]) for i in range(len(directory.pending)))
    linked = _possible_inodes(model)
    for inode, file in sorted(model.files.items()):
        if inode not in linked:
            continue
        if len(set(file.sizes)) > 1:
            choices.append(_Choice("size", (inode,), list(dict.fromkeys(file.sizes))))
        for number, sector in sorted(file.dirty.items()):
            fills = [
                sector.filled("zeros", 0),
                sector.filled("garbage", hash((seed, inode, number, _GARBAGE_SEED))),
            ]
            options: list[object] = [sector.versions[0], *fills, *sector.versions[1:]]
            choices.append(_Choice("sector", (inode, number), list(dict.fromkeys(options))))
    return choices


def _possible_inodes(model: DiskModel) -> set[int]:
    inodes = set()
    for directory in model.directories.values():
        inodes |= set(directory.durable.values()) | set(directory.entries.values())
        inodes |= {event.inode for event in directory.pending if event.kind == "create"}
    return inodes


def _picks(choices: list[_Choice], limit: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    counts = [len(choice.options) for choice in choices]
    if math.prod(counts) <= limit:
        yield from itertools.product(*(range(count) for count in counts))
        return
    kept = tuple(count - 1 for count in counts)
    lost = (0,) * len(counts)
    structured = itertools.chain(
        (kept, lost),
        ((*kept[:i], option, *kept[i + 1 :]) for i in range(len(counts)) for option in range(counts[i] - 1)),
        ((*lost[:i], option, *lost[i + 1 :]) for i in range(len(counts)) for option in range(1, counts[i])),
    )
    yield from itertools.islice(structured, limit // 2)
    for _ in range(limit - limit // 2):
        yield _chance(counts, rng)


def _chance(counts: list[int], rng: random.Random) -> tuple[int, ...]:
    weight = rng.random()  # from states that lost nearly all to states that kept nearly all
    return tuple(
        count - 1 if rng.random() < weight else rng.randrange(count) if rng.random() < 0.5 else 0
        for count in counts
    )


def _build(model: DiskModel, choices: list[_Choice], picks: tuple[int, ...]) -> dict[str, bytes]:
    picked = {
        (choice.kind, *choice.key): choice.options[pick] for choice, pick in zip(choices, picks, strict=True)
    }
    contents = {}
    for path, directory in model.directories.items():
        kept = [bool(picked["entry", path, i]) for i in range(len(directory.pending))]
        place = path
        for move in reversed(model.moves):
            if place == move.target or place.startswith(f"{move.target}/"):
                place = f"{picked['move', move.target]}{place[len(move.target) :]}"
        for name, inode in directory.after(kept).items():
            contents[f"{place}/{name}"] = _content(model, inode, picked)
    return contents


def _content(model: DiskModel, inode: int, picked: dict[tuple[object, ...], object]) -> bytes:
    file = model.files[inode]
    size = picked.get(("size", inode), file.sizes[-1])
    assert isinstance(size, int)
    content = bytearray(file.content)
    for number in file.dirty:
        version = picked["sector", inode, number]
        assert isinstance(version, bytes)
        start = number * file.sector_bytes
        content[start : start + file.sector_bytes] = version
    return bytes(content[:size]).ljust(size, b"\0")
