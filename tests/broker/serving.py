"""A real broker in a process of its own, and mosquitto beside it for comparison.

python -m tests.broker.serving PATH [--port 0] [--sync os] [--limits '{"clients_max": 10}'] [--file-bytes N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SERVING = re.compile(rb"serving at (\d+)")


class Served:
    """A broker. What it says on stderr is in a file beside its log."""

    def __init__(self, path: str | Path, *flags: str, port: int = 0) -> None:
        self.path, self.flags, self.port = Path(path), flags, port
        self.process: subprocess.Popen[bytes] | None = None
        self.said_at = Path(f"{path}.said")
        self.start()

    def start(self) -> None:
        """Again at the same port, if it has been there before."""
        command = [sys.executable, "-m", "tests.broker.serving", str(self.path), "--port", str(self.port)]
        with self.said_at.open("ab") as said:
            self.process = subprocess.Popen([*command, *self.flags], stdout=subprocess.PIPE, stderr=said)
        assert self.process.stdout is not None
        found = SERVING.search(self.process.stdout.readline())
        if found is None:
            code = self.process.wait()
            self.process.stdout.close()
            raise AssertionError(f"the broker ended with {code}: {self.said()}")
        self.port = int(found[1])

    def said(self) -> str:
        return self.said_at.read_text(errors="replace")

    def stop(self) -> None:
        """As one should."""
        self.process.send_signal(signal.SIGTERM)
        self._ended(0)

    def kill(self) -> None:
        self.process.kill()
        self._ended(-signal.SIGKILL)

    def _ended(self, code: int) -> None:
        found = self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        assert found == code, f"the broker ended with {found}: {self.said()}"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def rss_bytes(self) -> int:
        return rss_bytes(self.process.pid)


class Mosquitto:
    """Debian's, with persistence on and its defaults otherwise."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir()
        self.port = free_port()
        user = "user root\n" if os.geteuid() == 0 else ""
        (self.path / "conf").write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
            f"persistence_location {self.path}/\nmax_queued_messages 0\nmax_inflight_messages 0\n{user}"
        )
        self.start()

    def start(self) -> None:
        command = ["mosquitto", "-c", str(self.path / "conf")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: answers(self.port))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def served(path: str | Path, *flags: str, port: int = 0) -> Iterator[Served]:
    broker = Served(path, *flags, port=port)
    try:
        yield broker
    finally:
        broker.close()


def rss_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def wait_until(what, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it didn't come to pass"
        time.sleep(0.01)


async def _serve(options: argparse.Namespace) -> None:
    from forelog.broker import Broker, Limits

    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    more = {} if options.file_bytes is None else {"file_bytes": options.file_bytes}
    limits = Limits(**json.loads(options.limits))
    async with Broker(options.path, sync=options.sync, limits=limits, **more) as broker:
        ((_, port),) = await broker.listen("127.0.0.1", options.port)
        print(f"serving at {port}", flush=True)
        await done.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--sync", default="os")
    parser.add_argument("--limits", default="{}")
    parser.add_argument("--file-bytes", type=int)
    parser.add_argument("--room-bytes", type=int, help="no file may be larger: a disk that is full")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if options.room_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.room_bytes, resource.RLIM_INFINITY))
    try:
        import uvloop

        uvloop.run(_serve(options))
    except ImportError:
        asyncio.run(_serve(options))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
