"""What is searched: functions that take bytes from outside."""

from __future__ import annotations

import importlib
import struct
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from forelog import kernel
from tests.kernel import oracle

TARGETS: dict[str, Target] = {}
MODULES = ("targets_kernel", "targets_messages", "targets_broker", "targets_jobs", "targets_files", "targets_logs")


class Finding(Exception):
    """An input that breaks something."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of them."""

    name: str
    run: Callable[[bytes], object]
    """Raises Finding, or what the function raises."""
    seeds: Callable[[], Iterable[bytes]]
    refusals: tuple[type[BaseException], ...]
    """What it may raise. Anything else is a finding."""
    traced: bool
    """Whether lines of Python count as places."""
    tokens: tuple[bytes, ...]
    size_max: int
    timed: Callable[[bytes], object] | None
    """What must not take long for a large input; None if nothing is promised."""


def target(
    seeds: Callable[[], Iterable[bytes]],
    *,
    refusals: tuple[type[BaseException], ...] = (),
    traced: bool = True,
    tokens: tuple[bytes, ...] = (),
    size_max: int = 4096,
    timed: Callable[[bytes], object] | None = None,
) -> Callable[[Callable[[bytes], object]], Callable[[bytes], object]]:
    """A function of Python is a target. `timed` is what must not take long, if that isn't all of it."""

    def register(run: Callable[[bytes], object]) -> Callable[[bytes], object]:
        name = run.__name__
        TARGETS[name] = Target(name, run, seeds, refusals, traced, tokens, size_max, timed or run)
        return run

    return register


def twins(
    seeds: Callable[[], Iterable[bytes]], *, tokens: tuple[bytes, ...] = (), size_max: int = 1024
) -> Callable[[Callable[[ModuleType, Any], object]], Callable[[ModuleType, Any], object]]:
    """A function of the kernel is a target: the kernel and the oracle must agree on each input.

    The function gets one of them and a buffer. The kernel's ends where its memory does, so that the sanitizer
    sees a byte too many.
    """

    def register(run: Callable[[ModuleType, Any], object]) -> Callable[[ModuleType, Any], object]:
        def compare(data: bytes) -> None:
            expected, found = outcome(run, oracle, data), outcome(run, kernel, array("B", data))
            if expected != found:
                raise Finding(f"the kernel and the oracle differ\n  oracle: {expected}\n  kernel: {found}")

        def timed(data: bytes) -> None:
            outcome(run, kernel, array("B", data))

        name = run.__name__
        TARGETS[name] = Target(name, compare, seeds, (), False, tokens, size_max, timed)
        return run

    return register


def outcome(run: Callable[[ModuleType, Any], object], module: ModuleType, data: Any) -> Any:
    """What a kernel's function gives, in a form that can be compared: a value or an error."""
    try:
        return comparable(run(module, data))
    except (ValueError, TypeError, OverflowError) as error:
        return type(error).__name__, str(error)


def comparable(value: Any) -> Any:
    """A value by its bits: a NaN is equal to itself, 0.0 and -0.0 are different, and so are 1 and True."""
    if isinstance(value, array):
        return value.typecode, value.tobytes()
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, tuple | list):
        return [type(value).__name__, *map(comparable, value)]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return type(value).__name__, value


def load_targets() -> dict[str, Target]:
    """All of them, by name."""
    for name in MODULES:
        importlib.import_module(f"tests.sanitize.{name}")
    return TARGETS
