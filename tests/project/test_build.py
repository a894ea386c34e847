"""forelog builds with and without a C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from forelog import kernel

ROOT = Path(__file__).parents[2]


def test_what_is_compiled_is_compiled_as_a_whole_and_from_the_sources_as_they_are():
    """Where a module can't be compiled the build goes on without it: that must not go unseen here."""
    if not kernel.COMPILED:
        pytest.skip("no C compiler here")
    every = sorted((ROOT / "src" / "forelog" / "jobs").rglob("*.pxd"))
    for types in every:
        built = Path(import_module(f"forelog.jobs.{types.parent.name}.{types.stem}").__file__)
        assert built.suffix == ".so", f"{types.stem} is not compiled: see what `python setup.py build_ext` says"
        for source in (*every, types.with_suffix(".py")):  # a module is compiled against the types of the others
            assert source.stat().st_mtime <= built.stat().st_mtime, (
                f"{source.name} is newer than what runs: make test"
            )


@pytest.mark.parametrize("compiler", ["none", "broken"])
def test_without_a_working_compiler_it_builds_and_says_that_it_runs_on_the_plain_kernel(tmp_path, compiler):
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(".venv", ".git", "*.so", "*.c", "build", "demo", "site", "*.egg-info"),
    )
    environment = {**os.environ, "CC": "/nonexistent/cc" if compiler == "none" else "false", "PIP_NO_INDEX": "1"}
    environment.pop("FORELOG_KERNEL", None)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    result = subprocess.run(
        [*install, "--target", str(tmp_path / "lib"), str(source)], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    code = "from forelog import kernel, __file__ as f; print(kernel.COMPILED, f)"
    environment["PYTHONPATH"] = str(tmp_path / "lib")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert result.stdout == f"False {tmp_path}/lib/forelog/__init__.py\n", result.stderr
    assert "using the plain-Python one" in result.stderr
