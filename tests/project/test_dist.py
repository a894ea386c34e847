"""What `make dist` builds is complete, installs into an empty environment, and works there."""

from __future__ import annotations

import os
import subprocess
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from forelog.cli.doctor import EXTRAS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "forelog"
WRITTEN = (".java", ".py", ".pyi", ".pyx", ".pxi", ".pxd", ".h", ".typed")
LIGHT = ("arrow", "cli", "metrics", "state", "jobs", "broker", "remote")


def built(config: pytest.Config, pattern: str) -> Path:
    folder = config.getoption("--dist-folder")
    if not folder:
        pytest.skip("needs --dist-folder, or make dist")
    (found,) = Path(folder).resolve().glob(pattern)
    return found


@pytest.fixture
def wheel(pytestconfig: pytest.Config) -> Path:
    return built(pytestconfig, "forelog-*.whl")


@pytest.fixture
def sdist(pytestconfig: pytest.Config) -> Path:
    return built(pytestconfig, "forelog-*.tar.gz")


def sources() -> set[str]:
    return {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*") if path.suffix in WRITTEN}


def call(*words: object, **options: Any) -> str:
    """What a program prints; without what this environment would lend it."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FORELOG", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=580,
        **{**options, "env": {**environment, **options.get("env", {})}},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The programs of an environment with nothing but pip in it."""
    venv.create(tmp_path / "empty", with_pip=True)
    return tmp_path / "empty" / "bin"


def install(empty: Path, *what: object) -> None:
    call(empty / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def works(programs: dict[str, list[object]], folder: Path, **environment: str) -> dict[str, str]:
    """Append, dump, verify; and what doctor says."""
    options = {"cwd": folder, "env": environment}
    forelog = programs["forelog"]
    (folder / "lines").write_text("one\ntwo\nthree\n")
    with (folder / "lines").open("rb") as lines:
        call(*forelog, "append", "orders.log", stdin=lines, **options)
    assert [line.split()[-1] for line in call(*forelog, "dump", "orders.log", **options).splitlines()] == [
        "one",
        "two",
        "three",
    ]
    call(*forelog, "verify", "orders.log", **options)
    assert "cmdlog" in call(*programs["workq-server"], "--help", **options)
    facts = call(*forelog, "doctor", **options).splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in facts}


def scripts(folder: Path) -> dict[str, list[object]]:
    return {name: [folder / name] for name in ("forelog", "workq-server")}


def test_the_wheel_has_every_source_what_was_compiled_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    compiled = {name for name in names if name.endswith(".so")}
    assert names - compiled == sources()
    assert len(compiled) == (1 + len(list((SOURCE / "jobs").rglob("*.pxd"))))


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(name).decode())
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    assert (said["Name"], said["License-Expression"]) == ("forelog", "Apache-2.0")
    assert said["Requires-Python"] == ">=3.11"
    assert said.get_payload() == (ROOT / "README.md").read_text()
    assert {extra for _, extra, _ in EXTRAS} <= set(said.get_all("Provides-Extra"))
    assert all("extra ==" in requirement for requirement in said.get_all("Requires-Dist")), "it depends on nothing"


def test_the_source_distribution_has_all_that_a_build_needs_and_nothing_generated(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources()} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".c", ".so"))]


def test_the_wheel_works_in_an_empty_environment(wheel: Path, empty: Path, tmp_path: Path) -> None:
    install(empty, "--no-index", wheel)
    call(empty / "python", "-c", "import forelog; forelog.Stream", cwd=tmp_path)
    facts = works(scripts(empty), tmp_path)
    for name, extra, _ in EXTRAS:
        assert facts[name].startswith(f"not installed: pip install 'forelog[{extra}]', or '.[{extra}]'")


def test_the_wheel_works_with_extras(wheel: Path, empty: Path, tmp_path: Path) -> None:
    install(empty, f"{wheel}[{','.join(LIGHT)}]")
    facts = works(scripts(empty), tmp_path)
    for name, extra, _ in EXTRAS:
        assert facts[name].startswith("not installed") is (extra not in LIGHT), name
    code = (
        "import asyncio; from forelog import Stream; from forelog.broker import Broker\n"
        "from forelog.state import PersistentDict\n"
        "print(sum(batch.num_rows for batch in Stream.open('orders.log').scan(['payload'])))\n"
        "with PersistentDict('prices') as prices: prices['chips'] = 250\n"
        "async def main():\n"
        "    async with Broker('messages') as broker: print(len(await broker.listen('127.0.0.1', 0)))\n"
        "asyncio.run(main())\n"
    )
    assert call(empty / "python", "-c", code, cwd=tmp_path) == "3\n1\n"
