"""No module imports one that imports it, directly or by others.

Imports inside of functions count, and so do those for the type checker alone: a module that can only be understood
together with another one isn't a module of its own.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "forelog"

KNOWN: set[frozenset[str]] = set()
"""Cycles that are still there. The set only shrinks: a cycle that is gone, or smaller, has to leave it."""

ROOMS = {"broker": ["mqtt", "access", "log", "sessions", "flow", "clients", "connections"]}
"""The rooms of a package, from the bottom up."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a module names in its imports. `from a import b` is a.b if that is a module, and else a."""
    own = name_of(path)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{own} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name in known and name != own}


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that import each other (Tarjan's strongly connected components of more than one)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(frozenset(stack[at:]))
            del stack[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return found


def test_no_module_imports_one_that_imports_it():
    known = modules()
    found = cycles({name: imports(path, known) for name, path in known.items()})
    new = {", ".join(sorted(cycle)) for cycle in found - KNOWN}
    gone = {", ".join(sorted(cycle)) for cycle in KNOWN - found}
    assert not new, "modules that import each other"
    assert not gone, "these cycles are gone, or smaller: take them from the set of known ones"


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_imports_only_from_those_before_it(package):
    known, rooms = modules(), ROOMS[package]
    for name, path in known.items():
        own = name.removeprefix(f"forelog.{package}.").split(".")[0]
        for other in imports(path, known) if own in rooms else ():
            room = other.removeprefix(f"forelog.{package}.").split(".")[0]
            if other.startswith(f"forelog.{package}.") and room in rooms:
                assert rooms.index(room) <= rooms.index(own), f"{name} imports {other}"


def test_a_cycle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert cycles(graph) == {frozenset("abc")}
    assert cycles(graph | {"e": {"d"}}) == {frozenset("abc"), frozenset("de")}
    assert cycles(graph | {"c": {"d"}}) == set()
