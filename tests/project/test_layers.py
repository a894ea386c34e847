"""Each layer imports only from those above it in the list."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "forelog"

# From the bottom up: a module may import from its own layer and from those before it.
LAYERS = [
    "errors", "lazy", "closing", "kernel", "bounds", "times", "files", "serving", "formats", "log", "copies",
    "commitlog", "conversion", "messages", "state", "jobs", "broker", "spark", "arrow", "testing", "cli",
]  # fmt: skip
WITHIN_LOG = [
    "position", "metrics",
    "directory.place", "directory.index", "directory.end", "directory.watermark", "directory.foreign",
    "directory.directory", "directory.detection", "directory.segment", "directory.trace", "directory.removed",
    "directory.tenants", "directory.journal", "directory.spare", "directory.tail",
    "seek", "damage", "walk", "recovery", "active", "commit", "aio", "appender",
    "cursor", "rules", "rewrite", "cleaner", "scan", "backup", "stream", "verify", "made", "repair",
]  # fmt: skip


def layer_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The forelog modules that a file imports, also inside of functions; `log.walk` for forelog.log.walk."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "forelog":
            parts = node.module.split(".")[1:]
            found |= {".".join([*parts, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name[8:] for alias in node.names if alias.name.startswith("forelog.")}
    return found


def modules() -> list[Path]:
    return [
        p
        for p in sorted(SOURCE.rglob("*.py"))
        if p.relative_to(SOURCE).parts[0] not in ("__init__.py", "__main__.py")
    ]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_imports_only_from_layers_below_it(path):
    own = layer_of(path)
    assert own in LAYERS, f"{own} is in no layer: add it to the list, and to the list in forelog/__init__.py"
    for name in imports(path):
        layer = name.split(".")[0]
        if layer in LAYERS:
            assert LAYERS.index(layer) <= LAYERS.index(own), f"{path.name} imports {name} from a layer above it"


@pytest.mark.parametrize("path", sorted((SOURCE / "log").rglob("[a-z]*.py")), ids=lambda p: p.name)
def test_the_engines_modules_import_only_from_those_before_them(path):
    own = ".".join(path.relative_to(SOURCE / "log").with_suffix("").parts)
    assert own in WITHIN_LOG, f"log/{path.name} is not in the list"
    for name in imports(path):
        if name.startswith("log."):
            other = next(one for one in WITHIN_LOG if f"{name}.".startswith(f"log.{one}."))
            assert WITHIN_LOG.index(other) < WITHIN_LOG.index(own), f"{path.name} imports {name}"


# -- private names

DOCUMENTED = {name for name in dir(NamedTuple("Any", [])) if name.startswith("_")}
"""Names with an underscore that Python documents: those of named tuples."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def private_definitions(tree: ast.AST) -> set[str]:
    """The private names that a module gives to something: functions, classes, attributes, variables, slots."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Constant(value=str(name)):  # of __slots__
                found.add(name)
    return {name for name in found if is_private(name)}


TREES = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
PRIVATE = {path: private_definitions(tree) for path, tree in TREES.items()}
OURS = set().union(*PRIVATE.values())


def neighbours(path: Path) -> list[Path]:
    """The modules of its own package that a module imports, and itself."""
    own = layer_of(path)
    found = {f"{name}." for name in imports(path) if name.split(".")[0] == own}
    others = {other: ".".join(other.relative_to(SOURCE).with_suffix("").parts) for other in TREES}
    return [path, *(other for other, name in others.items() if any(one.startswith(f"{name}.") for one in found))]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_private_name_is_used_only_beside_its_definition(path):
    """`thing._name` is for the module that defines it and those of its package that import that; `self._name` for
    the package. Other packages have public names to use."""
    near = set().union(*(PRIVATE[other] for other in neighbours(path)))
    package = set().union(*(PRIVATE[other] for other in TREES if layer_of(other) == layer_of(path)))
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr in OURS:
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            assert node.attr in (package if is_self else near), f"{path.name}:{node.lineno} uses {node.attr}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "forelog":
            for alias in node.names:
                parts = node.module.split(".")[1:]
                private = any(map(is_private, [*parts, alias.name]))
                assert not private or parts[:1] == [layer_of(path)], f"{path.name} imports {alias.name}"


def test_only_files_touches_the_filesystem():
    """The engine and the formats reach the disk through the files protocol alone."""
    for path in [*(SOURCE / "log").rglob("*.py"), *(SOURCE / "formats").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "open", f"{path.name}:{node.lineno} opens a file by itself"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                allowed = {"fspath", "PathLike", "path", "urandom", "register_at_fork"}
                assert node.attr in allowed, f"{path.name}:{node.lineno} uses os.{node.attr}"


CHANGES = {
    "rename", "renames", "replace", "remove", "unlink", "rmdir", "removedirs", "mkdir", "makedirs", "link",
    "symlink", "truncate", "ftruncate", "pwrite", "fsync", "fdatasync", "sync",
}  # fmt: skip


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_what_matters_after_a_crash_goes_through_files(path):
    """Others neither rename nor remove nor sync by themselves: a CrashDisk couldn't see it."""
    if layer_of(path) in (
        "files",
        "cli",
        "testing",
    ):  # the command measures bare disks, tests have temporary folders
        return
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert node.attr not in CHANGES, f"{path.name}:{node.lineno} uses os.{node.attr}"


def test_no_module_does_everything():
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.p?x"), *SOURCE.rglob("*.pxi")]:
        lines = len(path.read_text().splitlines())
        assert lines <= 500, f"{path.name} has {lines} lines: is it still one idea?"


def test_functions_fit_on_a_screen():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 70, f"{path.name}:{node.lineno} {node.name} has {lines} lines"
