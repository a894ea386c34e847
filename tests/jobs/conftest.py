"""A job server as a process of its own, on a free port of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest


class Served:
    """A server that runs. `kill` and `start` again keep its address."""

    def __init__(self, flags: tuple[str, ...]) -> None:
        self._flags = flags
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forelog.cli.jobs.serve", "-listen", self.address, *self._flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"serving jobs at (\S+)", line):
                self.address = found[1]
                return
        raise AssertionError(f"the server didn't start: {''.join(said)}")

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """End it as an operator does; returns its exit code."""
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        return self._reap()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _reap(self) -> int:
        code = self.process.wait(timeout=20)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code


Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts servers with given flags, each with a command log of its own unless `-cmdlog-path` says which."""
    started: list[Served] = []

    def start(*flags: str) -> Served:
        path = tmp_path_factory.mktemp("cmdlog")
        if "-cmdlog-path" not in flags:
            flags = ("-cmdlog-path", str(path / "cmdlog"), "-cmdlog-sync", "os", *flags)
        started.append(Served(flags))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.process.kill()
        served._reap()


@pytest.fixture(scope="module")
def server(serve: Serve) -> Served:
    """A server that the tests of a module share."""
    return serve()
