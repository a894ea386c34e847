"""Compile the kernel and the job modules under sanitizers, into a folder of their own.

The folder has a copy of the package, with the modules that are compiled here. Those in `src` stay as they are.
Only what has changed since the last time is compiled again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "forelog"
HERE = Path(__file__).parent
FOLDER = ROOT / "build" / "sanitize"

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_COMMON = ("-shared", "-fPIC", "-g", "-fno-strict-aliasing", "-fno-omit-frame-pointer", "-w")
_SANITIZERS = (
    "-O1",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
)
_COVERAGE = ("-fsanitize-coverage=trace-pc,trace-cmp",)
_ALLOCATION_MIB_MAX = 64
"""An input has a few kilobytes: whoever allocates more for it believed a length that nothing backs."""
_RSS_MIB_MAX = 2048


class Missing(Exception):
    """Something that has to be installed first. The text says what."""


class Library(NamedTuple):
    """A compiled module."""

    module: str
    source: Path
    depends: tuple[Path, ...]
    options: tuple[str, ...]
    """Of Cython."""


def libraries() -> list[Library]:
    """What is compiled: as setup.py has it."""
    headers = (*sorted((SOURCE / "kernel").glob("include/*.h")), *sorted((SOURCE / "kernel").glob("*/*.pxi")))
    found = [Library("kernel._kernel", SOURCE / "kernel" / "_kernel.pyx", headers, ())]
    types = tuple(sorted((SOURCE / "jobs").rglob("*.pxd")))
    for one in types:
        options = ("-3", "-X", "annotation_typing=False")
        found.append(Library(f"jobs.{one.parent.name}.{one.stem}", one.with_suffix(".py"), types, options))
    return found


def build(folder: Path = FOLDER, only: tuple[str, ...] = ()) -> Path:
    """Compile what has changed; the folder that has to be in PYTHONPATH. Raises Missing if a tool isn't there."""
    compiler = find_compiler()
    package = folder / "lib" / "forelog"
    _copy_package(package)
    (folder / "c").mkdir(parents=True, exist_ok=True)
    todo = [(number, one) for number, one in enumerate(libraries(), 1) if not only or one.module in only]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda pair: _build(compiler, folder, package, *pair), todo))
    _build_reached(compiler, folder)
    return folder / "lib"


def find_compiler() -> str:
    """The compiler, if it and its sanitizers are there."""
    compiler = os.environ.get("CC", "gcc")
    if shutil.which(compiler) is None:
        raise Missing(
            f"{compiler} isn't installed, which compiles the kernel with sanitizers: apt-get install gcc"
        )
    for name in ("libasan.so", "libubsan.so"):
        if not Path(_library_path(compiler, name)).is_absolute():
            raise Missing(f"{compiler} has no {name}: its sanitizers have to be installed with it")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise Missing("Python.h isn't installed, which extensions are compiled with: apt-get install python3-dev")
    return compiler


def environment(folder: Path = FOLDER, *, bounded: bool = True) -> dict[str, str]:
    """What a process needs to load the compiled modules. If it is `bounded`, large allocations fail."""
    compiler = find_compiler()
    runtime = [_library_path(compiler, name) for name in ("libasan.so", "libstdc++.so.6")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(path for path in runtime if Path(path).is_absolute()),
        "PYTHONPATH": str(folder / "lib"),
        "PYTHONMALLOC": "malloc",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ASAN_OPTIONS": (
            "detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=16:malloc_context_size=12"
            + (
                f":max_allocation_size_mb={_ALLOCATION_MIB_MAX}:hard_rss_limit_mb={_RSS_MIB_MAX}"
                if bounded
                else ""
            )
        ),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }


def _copy_package(package: Path) -> None:
    """The Python files as they are now. What was compiled stays."""
    wanted = set()
    for path in SOURCE.rglob("*"):
        if path.suffix in (".so", ".c", ".pyc") or path.is_dir():
            continue
        target = package / path.relative_to(SOURCE)
        wanted.add(target)
        if not target.exists() or target.read_bytes() != path.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    for path in package.rglob("*.py"):
        if path not in wanted:
            path.unlink()


def _build(compiler: str, folder: Path, package: Path, number: int, library: Library) -> None:
    target = package / Path(*library.module.split(".")).with_suffix(_SUFFIX)
    inputs = (library.source, *library.depends, HERE / "callbacks.c", HERE / "reached.h")
    key = _key(inputs, compiler)
    key_path = folder / "c" / f"{library.module}.key"
    if target.exists() and key_path.exists() and key_path.read_text() == key:
        return
    key_path.unlink(missing_ok=True)
    made = folder / "c" / f"{library.module}.c"
    copied = package / library.source.relative_to(SOURCE)
    _run(
        [
            sys.executable,
            "-m",
            "cython",
            *library.options,
            "-I",
            str(package.parent),
            "-I",
            str(package / "kernel"),
        ],
        ["--module-name", f"forelog.{library.module}", str(copied), "-o", str(made)],
    )
    callbacks = folder / "c" / f"{library.module}.callbacks.o"
    _run([compiler, "-c", "-O2", "-fPIC", f"-DLIBRARY={number}", str(HERE / "callbacks.c"), "-o", str(callbacks)])
    include = ["-I", sysconfig.get_path("include"), "-I", str(package / "kernel" / "include")]
    flags = [*_COMMON, *_SANITIZERS, *_COVERAGE, *include]
    _run([compiler, *flags, str(made), str(callbacks), "-o", str(target), "-ldl"])
    key_path.write_text(key)


def _build_reached(compiler: str, folder: Path) -> None:
    """The module that the search reads; without sanitizers."""
    target = folder / "lib" / f"_reached{_SUFFIX}"
    source, key_path = HERE / "_reached.c", folder / "c" / "_reached.key"
    key = _key((source, HERE / "reached.h"), compiler)
    if target.exists() and key_path.exists() and key_path.read_text() == key:
        return
    include = sysconfig.get_path("include")
    _run([compiler, "-shared", "-fPIC", "-O2", "-I", include, str(source), "-o", str(target)])
    key_path.write_text(key)


def _key(paths: tuple[Path, ...], compiler: str) -> str:
    digest = hashlib.sha256(f"{compiler} {sys.version} {_COMMON} {_SANITIZERS} {_COVERAGE}".encode())
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _library_path(compiler: str, name: str) -> str:
    """Where a library of the compiler is; its name alone if it has none."""
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def _run(*parts: list[str]) -> None:
    command = [word for part in parts for word in part]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} has failed:\n{done.stdout}{done.stderr}")
