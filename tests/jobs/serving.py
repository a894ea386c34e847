"""A real server in a process of its own, and a socket to talk to it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SERVING = re.compile(rb"serving jobs at ([^ ]+):(\d+)")


class Served:
    """A job server. What it says is in `said` once it has ended."""

    def __init__(
        self, *flags: str | Path, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
    ) -> None:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "forelog.cli.jobs.serve",
            "-listen",
            "127.0.0.1:0",
            *map(str, flags),
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, **(env or {})})
        self.said = b""
        self._talks: list[Talk] = []
        assert self.process.stderr is not None
        while (found := SERVING.search(self.said)) is None:
            line = self.process.stderr.readline()
            if not line:
                self.process.stderr.close()
                raise AssertionError(f"the server ended with {self.process.wait()}: {self.said.decode()}")
            self.said += line
        self.port = int(found[2])

    def connect(self) -> Talk:
        self._talks.append(Talk(self.port))
        return self._talks[-1]

    def close(self) -> None:
        """End it in any case, and let go of everything."""
        if self.process.poll() is None:
            self.kill()
        for talk in self._talks:
            talk.close()
        if self.process.stderr is not None:
            self.process.stderr.close()

    def stop(self) -> str:
        """End it as one should, and return what it said."""
        self.process.send_signal(signal.SIGTERM)
        return self._end(0)

    def kill(self) -> str:
        self.process.kill()
        return self._end(-signal.SIGKILL)

    def _end(self, code: int) -> str:
        _, rest = self.process.communicate(timeout=30)
        self.said += rest
        assert self.process.returncode == code, self.said.decode()
        return self.said.decode()

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024


@contextlib.contextmanager
def served(*flags: str | Path, **settings) -> Iterator[Served]:
    server = Served(*flags, **settings)
    try:
        yield server
    finally:
        server.close()


class Talk:
    """A connection that sends and reads bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.settimeout(10)
        self._left = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        """That many bytes, or fewer if the server closes the connection, or says no more."""
        data = self._left
        while len(data) < count:
            try:
                more = self.socket.recv(1 << 20)
            except (ConnectionResetError, TimeoutError):
                break
            if not more:
                break
            data += more
        data, self._left = data[:count], data[count:]
        return data

    def silence(self, seconds: float = 0.05) -> bytes:
        """What comes within a while, although nothing should."""
        self.socket.settimeout(seconds)
        try:
            return self.read(1)
        finally:
            self.socket.settimeout(10)

    def ask(self, data: bytes) -> bytes:
        """Send something that is answered by one line, and return it."""
        self.send(data)
        return self.line()

    def line(self) -> bytes:
        while b"\r\n" not in self._left:
            more = self.socket.recv(1 << 20)
            if not more:
                raise ConnectionResetError("closed by the server")
            self._left += more
        line, _, self._left = self._left.partition(b"\r\n")
        return line

    def lease(self, names: str, wait_ms: int = 0) -> tuple[bytes, bytes] | None:
        """A job's id and payload."""
        reply = self.ask(f"lease {names} {wait_ms}\r\n".encode())
        if reply == b"-TIMEOUT":
            return None
        assert reply == b"+OK 1", reply
        job_id, _, _, size = self.line().split(b" ")
        return job_id, self.read(int(size) + 2)[:-2]

    def is_closed(self) -> bool:
        self.socket.settimeout(10)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


def job_id(number: int) -> bytes:
    return b"%08x-0000-4000-8000-%012x" % (number >> 48, number & 0xFFFFFFFFFFFF)


def add(
    number: int, name: str = "q", payload: bytes = b"x", ttr_ms: int = 60_000, ttl_ms: int = 3_600_000
) -> bytes:
    head = b"add %b %b %d %d %d\r\n" % (job_id(number), name.encode(), ttr_ms, ttl_ms, len(payload))
    return head + payload + b"\r\n"


def wait_until(what, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it didn't come to pass"
        time.sleep(0.01)
