"""The processes of the demo: started, killed, started again at the same address, and ended whatever happens."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

START_SECONDS = 60
END_SECONDS = 20
_SERVING = re.compile(r"serving .+? at (\S+)")


class Child:
    """A process that tells where it serves, and then perhaps what it has acknowledged, line by line."""

    def __init__(self, name: str, command: list[str], acknowledged: Callable[[str], None] | None = None) -> None:
        self.name, self.command = name, command
        self.address = ""
        self.starts = 0
        self.said: deque[str] = deque(maxlen=20)
        self.process: subprocess.Popen[str] | None = None
        self._acknowledged = acknowledged
        self._serving = threading.Event()
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid

    def start(self) -> None:
        """One that has been there before is given its address again."""
        command = [part.format(address=self.address or "127.0.0.1:0") for part in self.command]
        self._serving.clear()
        # A session of its own: a Ctrl-C is for us, and we end it then.
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.starts += 1
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def wait(self) -> None:
        """Until it serves."""
        if not self._serving.wait(START_SECONDS) or not self.address:
            self.end()
            raise SystemExit(f"{self.name} didn't start:\n  " + "\n  ".join(self.said))

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ack ") and line.endswith("\n") and self._acknowledged is not None:
                self._acknowledged(line[4:-1])
                continue
            self.said.append(line.rstrip())
            if (found := _SERVING.search(line)) and not self._serving.is_set():
                self.address = found[1].rstrip(":")
                self._serving.set()
        self._serving.set()  # it has ended: nobody needs to wait any longer

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self._ended(self.process)

    def end(self) -> None:
        """As one should: a signal, and the end of its input. By kill -9 if that isn't heard."""
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        self._ended(process)

    def _ended(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        if self._reader is not None:
            self._reader.join()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None


class Factory:
    """All four of them. Leaving its `with` block ends those that run."""

    def __init__(self, logs: Path, stock_changed: Callable[[str], None], metered: Callable[[str], None]) -> None:
        self.broker = Child(
            "broker", ["forelog", "broker", "serve", "--listen", "{address}", "--log", str(logs / "broker")]
        )
        self.jobs = Child(
            "job server",
            ["forelog", "jobs", "serve", "-listen", "{address}", "-cmdlog-path", str(logs / "jobs")],
        )
        writers = "examples.demo.writers"
        self.stock = Child("state log", [writers, "stock", str(logs / "stock")], stock_changed)
        self.meters = Child("commit log", [writers, "meters", str(logs / "meters")], metered)
        self.children = (self.broker, self.jobs, self.stock, self.meters)

    def __enter__(self) -> Factory:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """All at once; returns when all of them serve."""
        for child in self.children:
            child.start()
        for child in self.children:
            child.wait()

    def kill(self) -> None:
        for child in self.children:
            child.kill()

    def end(self) -> None:
        for child in self.children:
            child.end()
