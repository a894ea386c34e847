"""The three servers, each in a process of its own, as somebody runs them: by their commands."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forelog.broker.access.passwords import change_password

__all__ = ["PASSWORD", "TOKEN", "Server", "certificate", "users_file"]

TOKEN = "open-sesame"
PASSWORD = b"correct horse"
_STARTED = {
    "broker": re.compile(rb"serving (MQTT[^\n]*?) at [^ \n]*:(\d+)"),
    "jobs": re.compile(rb"serving (jobs) at [^ \n]*:(\d+)"),
    "replica": re.compile(rb"keeping (copies) at [^ \n]*:(\d+)"),
}
_COMMANDS = {
    "broker": ("broker", "serve", "--log", "{data}", "--listen", "127.0.0.1:0"),
    "jobs": ("jobs", "serve", "-cmdlog-path", "{data}", "-listen", "127.0.0.1:0"),
    "replica": ("replica", "serve", "--dir", "{data}", "--listen", "127.0.0.1:0"),
}
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Server:
    """`forelog broker serve`, `forelog jobs serve` or `forelog replica serve`, at ports that were free."""

    def __init__(self, kind: str, folder: Path, flags: Sequence[str] = (), ports: int = 1) -> None:
        self.kind, self.folder, self.flags = kind, folder, list(flags)
        self.data = folder / "data"
        self.said_at = folder / "said"
        self._ports_wanted = ports
        self.process: subprocess.Popen[bytes] | None = None
        self.ports: dict[str, int] = {}
        self.start()

    def start(self) -> None:
        """Returns when it serves."""
        words = [word.format(data=self.data) for word in _COMMANDS[self.kind]]
        begin = self.said_at.stat().st_size if self.said_at.exists() else 0
        with self.said_at.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forelog", *words, *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        deadline = time.monotonic() + START_SECONDS
        while len(found := _STARTED[self.kind].findall(self.said_at.read_bytes()[begin:])) < self._ports_wanted:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"the server didn't start: {self.said()[-2000:]}")
            time.sleep(0.02)
        self.ports = {name.decode(): int(port) for name, port in found}

    @property
    def port(self) -> int:
        return next(iter(self.ports.values()))

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.said_at.read_text(errors="replace")

    def stop(self) -> int | None:
        """As one should; its exit code, or None if it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.close()
            return None

    def close(self) -> None:
        """In any case."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def users_file(folder: Path, *names: str) -> Path:
    """Users, each with the same password."""
    path = folder / "users"
    for name in names:
        change_password(str(path), name, PASSWORD)
    return path


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for this machine that signs itself, and its key."""
    crt, key = folder / "server.crt", folder / "server.key"
    if not crt.exists():
        command = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ]
        command += ["-keyout", str(key), "-out", str(crt), "-days", "2", "-subj", "/CN=127.0.0.1"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(command, check=True, capture_output=True)
    return crt, key


def is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
