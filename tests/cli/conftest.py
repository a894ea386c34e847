"""Ways to run the command: in this process, and as one of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from forelog import Stream
from forelog.cli import main

SECOND = 1_000_000_000


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]
Start = Callable[..., subprocess.Popen[bytes]]


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, whatever it was doing, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """main() with arguments and input; its exit code and what it printed."""

    def call(*words: object, stdin: bytes = b"") -> Result:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        with source.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            code = main([str(word) for word in words])
        sys.stdout.flush()
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture
def start() -> Iterator[Start]:
    """The command as a process of its own, ended with the test."""
    processes: list[subprocess.Popen[bytes]] = []
    # Buffered as in a shell, or a flush that is missing would not be missed.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}

    def call(*words: object, stdin: int = subprocess.DEVNULL, **options: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "forelog", *map(str, words)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            **options,  # type: ignore[call-overload]
        )
        processes.append(process)
        return process

    yield call
    for process in processes:
        end(process)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three segments with two records each, a second apart from 1970-01-01T00:16:40Z on."""
    path = tmp_path / "orders.log"
    ticks = iter(range(1000 * SECOND, 2000 * SECOND, SECOND))
    with Stream(path, clock=lambda: next(ticks)).appender() as appender:
        for number in range(1, 4):
            if number > 1:
                appender.roll()
            for record in range(2):
                appender.append(b"order %d.%d" % (number, record))
    return path


def damage(path: Path, offset: int = 25) -> None:
    """Flip a byte of a segment: by default one in the payload of its first record."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def payloads(path: Path) -> list[bytes]:
    with Stream.open(path).cursor() as cursor:
        return [record.payload for record in cursor]
