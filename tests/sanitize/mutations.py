"""An input that is a little different from others: most of what a search tries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

Compared = tuple[int, int, int]
"""Two values that differed where the code compared them, and their size in bytes."""

_SIZES = (1, 2, 4, 8)
_ORDERS: tuple[Literal["big", "little"], ...] = ("big", "little")
_EDGES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
)


class Mutator:
    """Changes inputs, by chance. The same seed makes the same changes."""

    def __init__(self, seed: int, tokens: Sequence[bytes] = (), size_max: int = 4096) -> None:
        self._chance = random.Random(seed)
        self._tokens = tuple(tokens)
        self._size_max = size_max

    def changed(self, data: bytes, others: Sequence[bytes], compared: Sequence[Compared] = ()) -> bytes:
        """The input with one to some changes. `others` are inputs to take parts from."""
        chance, out = self._chance, bytearray(data)
        for _ in range(1 << chance.randrange(4)):
            kind = chance.random()
            if kind < 0.25 and compared:
                self._answer(out, chance.choice(compared))
            elif kind < 0.35 and self._tokens:
                self._put(out, chance.choice(self._tokens))
            elif kind < 0.45 and others:
                self._put(out, self._part(chance.choice(others)))
            else:
                chance.choice(_CHANGES)(self, out)
        return bytes(out[: self._size_max])

    # -- changes

    def _flip(self, out: bytearray) -> None:
        if out:
            out[self._chance.randrange(len(out))] ^= 1 << self._chance.randrange(8)

    def _set(self, out: bytearray) -> None:
        if out:
            out[self._chance.randrange(len(out))] = self._chance.randrange(256)

    def _add(self, out: bytearray) -> None:
        """A number that is a little larger or smaller: lengths and counts."""
        chance, size = self._chance, self._chance.choice(_SIZES)
        if len(out) >= size:
            at, order = chance.randrange(len(out) - size + 1), chance.choice(_ORDERS)
            number = int.from_bytes(out[at : at + size], order) + chance.randint(-16, 16)
            out[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, order)

    def _edge(self, out: bytearray) -> None:
        """A number at which something overflows."""
        chance, size = self._chance, self._chance.choice(_SIZES)
        if len(out) >= size:
            at = chance.randrange(len(out) - size + 1)
            number = chance.choice(_EDGES) % (1 << 8 * size)
            out[at : at + size] = number.to_bytes(size, chance.choice(("big", "little")))

    def _insert(self, out: bytearray) -> None:
        chance = self._chance
        at = chance.randrange(len(out) + 1)
        out[at:at] = chance.randbytes(chance.randrange(1, 9))

    def _delete(self, out: bytearray) -> None:
        if out:
            at = self._chance.randrange(len(out))
            del out[at : at + self._size(len(out) - at)]

    def _double(self, out: bytearray) -> None:
        """A part again, here or elsewhere."""
        if out:
            self._put(out, self._part(bytes(out)) * self._chance.choice((1, 1, 1, 2, 30)))

    def _cut(self, out: bytearray) -> None:
        if out:
            del out[self._chance.randrange(len(out)) :]

    def _put(self, out: bytearray, part: bytes) -> None:
        """Between two bytes, or over others."""
        at = self._chance.randrange(len(out) + 1)
        out[at : at if self._chance.random() < 0.5 else at + len(part)] = part

    def _part(self, data: bytes) -> bytes:
        at = self._chance.randrange(len(data) + 1)
        return data[at : at + self._size(len(data) - at)]

    def _size(self, most: int) -> int:
        """Small ones more often than large ones."""
        return self._chance.randrange(1, max(2, self._chance.choice((2, 4, 16, 64, most)) + 1))

    def _answer(self, out: bytearray, compared: Compared) -> None:
        """Where the input has one of two values that were compared, the other one, or nearly: a checksum, say."""
        left, right, size = compared
        if self._chance.random() < 0.5:
            left, right = right, left
        right = (right + self._chance.choice((0, 0, 0, 0, 1, -1))) % (1 << 8 * size)
        for width in sorted({size, 4, 2}, reverse=True):
            if max(left, right) >> 8 * width:
                continue
            for order in ("big", "little"):
                found = _places(out, left.to_bytes(width, order))
                if found:
                    at = self._chance.choice(found)
                    out[at : at + width] = right.to_bytes(width, order)
                    return


_CHANGES = (
    Mutator._flip, Mutator._flip, Mutator._set, Mutator._add, Mutator._add, Mutator._edge, Mutator._insert,
    Mutator._delete, Mutator._double, Mutator._cut,
)  # fmt: skip


def _places(data: bytearray, wanted: bytes) -> list[int]:
    """Where some bytes are, the first few times."""
    found: list[int] = []
    at = data.find(wanted)
    while at >= 0 and len(found) < 16:
        found.append(at)
        at = data.find(wanted, at + 1)
    return found
