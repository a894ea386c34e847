"""What a package exports, loaded when it is first used.

A program that needs one name of a package, or a command that only prints its help, doesn't pay for the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def exports(package: str, homes: Mapping[str, str]) -> tuple[list[str], Callable[[str], object]]:
    """The `__all__` and the `__getattr__` of a package. `homes` has the names, by the module that defines them."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(home_of), load
