"""What `values()` and `items()` of a dict return: each iteration sees one moment."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Values(ValuesView[V]):
    """Values, of one moment in each iteration. `now` returns the items of the moment."""

    def __init__(self, mapping: Mapping[Any, V], now: Callable[[], dict[Any, V]]) -> None:
        super().__init__(mapping)
        self._now = now

    def __iter__(self) -> Iterator[V]:
        return iter(self._now().values())

    def __contains__(self, value: object) -> bool:
        return value in self._now().values()


class Items(ItemsView[K, V]):
    """Keys and values, of one moment in each iteration. `now` returns the items of the moment."""

    def __init__(self, mapping: Mapping[K, V], now: Callable[[], dict[K, V]]) -> None:
        super().__init__(mapping)
        self._now = now

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return iter(self._now().items())
