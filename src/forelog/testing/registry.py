"""Registers histories and readers under the names of their functions, when their modules are imported."""

from __future__ import annotations

from collections.abc import Callable

from forelog.testing.sight import Sight
from forelog.testing.writer import History

Reader = Callable[[Sight], None]

histories: dict[str, History] = {}
readers: dict[str, Reader] = {}


def history(function: History) -> History:
    """Register a history by its name."""
    histories[function.__name__.replace("_", " ")] = function
    return function


def reader(function: Reader) -> Reader:
    """Register a kind of reader by its name."""
    readers[function.__name__.replace("_", " ")] = function
    return function
