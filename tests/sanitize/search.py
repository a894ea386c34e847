"""The search in one target: changes inputs, keeps those that reach something new, notes those that break it.

What an input reaches is told by `_reached`. In the short form that the suite runs there is none, and each input is
a few changes away from a seed.
"""

from __future__ import annotations

import hashlib
import random
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tests.sanitize.mutations import Compared, Mutator
from tests.sanitize.target import Finding, Target

LARGE_BYTES = 100_000
SECONDS_MAX = 2.0
"""Of processor time, for an input of LARGE_BYTES."""
_GROWTH_MAX = 3.2  # of the time, for an input of twice the size: 2 is linear, 4 is quadratic
_GROWTH_SECONDS_MIN = 0.25  # below it is noise
_LARGE_MAX = 60
_FINDINGS_MAX = 20


class Reached(Protocol):
    """What an input has reached: the module `_reached`."""

    def begin(self) -> None: ...
    def end(self) -> int: ...
    def edges(self) -> int: ...
    def compared(self) -> list[Compared]: ...


class Nothing:
    """Where nothing is compiled to tell."""

    def begin(self) -> None:
        pass

    def end(self) -> int:
        return 0

    def edges(self) -> int:
        return 0

    def compared(self) -> list[Compared]:
        return []


class Broken(NamedTuple):
    """An input that breaks a target."""

    target: str
    data: bytes
    what: str
    """In a few lines."""

    @property
    def name(self) -> str:
        """Of a file for the input."""
        return f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:12]}"


class Search:
    """The search in one target."""

    def __init__(self, target: Target, seed: int, reached: Reached | None = None) -> None:
        self.target = target
        self.corpus: list[bytes] = []
        self.executions = 0
        self.broken: dict[str, Broken] = {}
        """By what was wrong, each once."""
        self.before: Callable[[bytes], None] = lambda _: None
        """Called with each input before it is tried."""
        self._reached: Reached = Nothing() if reached is None else reached
        self._guided = reached is not None
        self._chance = random.Random(seed)
        self._mutator = Mutator(seed, target.tokens, target.size_max)
        self._compared: dict[bytes, list[Compared]] = {}

    def begin(self, kept: list[bytes]) -> None:
        """Try the seeds, and what an earlier search has kept."""
        for data in [b"", *self.target.seeds()]:
            data = bytes(data)
            self.try_input(data)
            if len(data) <= self.target.size_max and data not in self.corpus:
                self.corpus.append(data)
        for data in kept:
            if self.try_input(data):
                self.corpus.append(data)

    def step(self) -> None:
        """Change an input, and try what comes of it."""
        latest = self._chance.random() < 0.3
        parent = self._chance.choice(self.corpus[-20:] if latest else self.corpus)
        if self._guided and parent not in self._compared:
            self.try_input(parent)
            self._compared[parent] = self._reached.compared()
        data = self._mutator.changed(parent, self.corpus, self._compared.get(parent, ()))
        if self.try_input(data):
            self.corpus.append(data)

    def try_input(self, data: bytes) -> bool:
        """Whether it reaches something new. What breaks the target is noted."""
        self.executions += 1
        self.before(data)
        self._reached.begin()
        error = None
        try:
            self.target.run(data)
        except self.target.refusals:
            pass
        except Exception as caught:
            error = caught
        fresh = self._reached.end()
        if error is not None:
            self._note(_key(error), data, _told(error))
        return fresh > 0

    def grow(self, seconds: float) -> None:
        """Try large inputs, made of small ones: what takes long, or grows faster than they do, is noted."""
        timed, until = self.target.timed, time.monotonic() + seconds
        if timed is None:
            return
        chosen = self._chance.sample(self.corpus, min(len(self.corpus), _LARGE_MAX))
        for data in chosen:
            part = self._mutator._part(data) or b"\0"
            head = data[: self._chance.randrange(len(data) + 1)]
            for large in (data * (LARGE_BYTES // max(len(data), 1) + 1), head + part * (LARGE_BYTES // len(part))):
                if time.monotonic() > until:
                    return
                self._try_large(timed, large[:LARGE_BYTES])

    def _try_large(self, timed: Callable[[bytes], object], data: bytes) -> None:
        self.executions += 1
        self.before(data)
        try:
            whole = _seconds(timed, data)
            if whole < _GROWTH_SECONDS_MIN:
                return
            twice = _seconds(timed, data + data)
            if (whole > SECONDS_MAX or twice > _GROWTH_MAX * whole) and _seconds(timed, data) > 0.7 * whole:
                took = f"{len(data):,} bytes take {whole:.2f} s of the processor, twice as many {twice:.2f} s"
                self._note("slow", data, took)
        except self.target.refusals:
            pass
        except Exception as error:
            self._note(_key(error), data, _told(error))

    def _note(self, key: str, data: bytes, what: str) -> None:
        if key not in self.broken and len(self.broken) < _FINDINGS_MAX:
            if key != "slow":
                data = self._shortened(key, data)
            self.broken[key] = Broken(self.target.name, data, what)

    def _shortened(self, key: str, data: bytes) -> bytes:
        """The input without what it needs not to break the target in the same way."""
        tries, size = 0, len(data) // 2
        while size and tries < 300:
            at = 0
            while at < len(data) and tries < 300:
                tries += 1
                shorter = data[:at] + data[at + size :]
                if self._breaks(key, shorter):
                    data = shorter
                else:
                    at += size
            size //= 2
        return data

    def _breaks(self, key: str, data: bytes) -> bool:
        self.before(data)
        try:
            self.target.run(data)
        except self.target.refusals:
            return False
        except Exception as error:
            return _key(error) == key
        return False


def _seconds(timed: Callable[[bytes], object], data: bytes) -> float:
    began = time.thread_time()
    timed(data)
    return time.thread_time() - began


def _key(error: Exception) -> str:
    """What is the same for inputs that break a target in the same way."""
    if isinstance(error, Finding):
        return f"{str(error).splitlines()[0]}"
    if isinstance(error, RecursionError):
        return "RecursionError"
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
        (f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in reversed(frames) if "forelog" in f.filename), ""
    )
    return f"{type(error).__name__} {place}"


def _told(error: Exception) -> str:
    if isinstance(error, Finding):
        return str(error)[:4000]
    lines = traceback.format_exception(error)
    return "".join(lines if len(lines) < 14 else [*lines[:1], "  ...\n", *lines[-12:]])[-3000:]
