"""How forelog is built: what is compiled, what is said where nothing can be, one version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from forelog import kernel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_what_runs_was_compiled_from_the_sources_as_they_are() -> None:
    """Modules of the job server run as plain Python too: a missing one would go unseen."""
    folder = ROOT / "src" / "forelog" / "kernel"
    parts = [path for path in folder.rglob("*") if path.suffix in (".pyx", ".pxi", ".h")]
    built = {Path(sys.modules[kernel.crc32c.__module__].__file__): parts}
    types = sorted((ROOT / "src" / "forelog" / "jobs").rglob("*.pxd"))
    for one in types:
        module = import_module(f"forelog.jobs.{one.parent.name}.{one.stem}")
        built[Path(module.__file__)] = [*types, one.with_suffix(".py")]  # compiled against the others' types
    for path, sources in built.items():
        assert path.suffix == ".so", f"{path} is not compiled: run python setup.py build_ext --inplace"
        for source in sources:
            assert source.stat().st_mtime <= path.stat().st_mtime, f"{source} is newer than {path}: make test"


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", "false"])
def test_without_a_compiler_pip_install_ends_with_one_sentence(tmp_path: Path, compiler: str) -> None:
    left_out = (".venv", ".git", "*.so", "*.c", "build", "demo", "site", "*.egg-info", ".hypothesis", "docs")
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(*left_out))
    words = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            *words,
            "--target",
            str(tmp_path / "lib"),
            str(tmp_path / "source"),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "CC": compiler},
    )
    assert done.returncode == 1
    (sentence,) = {line.strip() for line in done.stderr.splitlines() if "forelog has to be compiled" in line}
    why = "there is no C compiler (/nonexistent/cc isn't found)" if compiler != "false" else "can't compile"
    assert why in sentence
    assert "apt install gcc python3-dev" in sentence
    assert "pip install ziglang" in sentence
    assert "[1 lines of output]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("works", [True, False])
def test_where_there_is_no_compiler_that_of_a_wheel_is_taken(tmp_path: Path, works: bool) -> None:
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang" / "__init__.py").touch()
    (tmp_path / "ziglang" / "__main__.py").write_text(f"raise SystemExit({0 if works else 1})\n")
    environment = {key: value for key, value in os.environ.items() if key != "CC"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "setup.py"), "compiler"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == (0 if works else 1)
    assert works or "ziglang cc -mcpu=baseline can't compile what includes Python.h" in done.stderr


def test_every_source_goes_into_a_distribution_and_is_compiled_again_when_it_changes() -> None:
    """A part of the kernel that no pattern named was left out, and the source distribution couldn't be built."""
    package = ROOT / "src" / "forelog"
    packed = set(package.rglob("*.py"))
    for name, patterns in PROJECT["tool"]["setuptools"]["package-data"].items():
        folder = ROOT / "src" / name.replace(".", "/")
        packed |= {file for pattern in patterns for file in folder.glob(pattern)}
    written = subprocess.run(["git", "ls-files", "src/forelog"], capture_output=True, text=True, cwd=ROOT).stdout
    assert {ROOT / name for name in written.split()} <= packed
    rebuilt = re.search(r"ready: (.*)", (ROOT / "Makefile").read_text())
    assert rebuilt
    listed = {file for pattern in re.findall(r"src/[^\s)]+", rebuilt[1]) for file in ROOT.glob(pattern)}
    assert {file for file in packed if file.suffix in (".pyx", ".pxi", ".h", ".pxd")} <= listed


def test_the_version_is_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "forelog.__version__"}


def test_a_build_takes_any_fitting_version_of_its_tools() -> None:
    for requirement in PROJECT["build-system"]["requires"]:
        assert ">=" in requirement, f"{requirement} binds everybody who builds the source distribution"


def test_a_source_tree_that_is_not_compiled_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src" / "forelog", tmp_path / "forelog", ignore=shutil.ignore_patterns("*.so"))
    done = subprocess.run(
        [sys.executable, "-c", "from forelog import kernel"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert "in a source tree run python setup.py build_ext --inplace" in done.stderr
