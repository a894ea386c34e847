"""Several processes of a worker, which are started again when they end, and when the program changes.

Each process is a command of its own, so nothing is inherited that a fork would break: threads, connections, locks.
A process whose parent is gone stops, as on SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

logger = logging.getLogger("forelog")

PARENT = "FORELOG_WORKER_PARENT"
"""The variable that has the number of a process's parent."""
_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = (0.5, 10.0)
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


class Processes:
    """Processes that run a command, until `run` is interrupted by SIGTERM or SIGINT.

    With `folder`, all are stopped and started again when one of its Python files changes.
    """

    def __init__(self, command: Sequence[str], count: int, *, folder: Path | None = None) -> None:
        self._command = list(command)
        self._count = count
        self._folder = folder
        self._stopping = threading.Event()
        self._running: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Start the processes, and keep them running. Returns the exit code of a process that can't run, or 0."""
        with self._signals():
            seen = self._files()
            self._running = [self._start() for _ in range(self._count)]
            pauses = [_AGAIN_SECONDS[0]] * self._count
            due = [0.0] * self._count
            while not self._stopping.wait(_LOOK_SECONDS):
                if self._folder is not None and (found := self._files()) != seen:
                    seen = found
                    logger.info("the program has changed: its workers start again")
                    self._end()
                    self._running = [self._start() for _ in range(self._count)]
                for number, process in enumerate(self._running):
                    code = process.poll()
                    if code is None:
                        continue
                    if code == 2 and self._folder is None:  # it was started in a wrong way: so would be the next
                        self._end()
                        return code
                    if not due[number]:
                        logger.error("worker process %d ended with %d", process.pid, code)
                        due[number] = time.monotonic() + pauses[number]
                        pauses[number] = min(2 * pauses[number], _AGAIN_SECONDS[1])
                    elif time.monotonic() >= due[number]:
                        due[number] = 0.0
                        self._running[number] = self._start()
            self._end()
        return 0

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in a terminal is for the parent, which then stops all of them once.
        environment = {**os.environ, PARENT: str(os.getpid())}
        return subprocess.Popen(self._command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)

    def _end(self) -> None:
        """Stop all, and wait until they have finished what they have begun."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            process.wait()

    def _files(self) -> dict[str, int]:
        """When each Python file of the folder was last changed."""
        found: dict[str, int] = {}
        if self._folder is None:
            return found
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
            for name in names:
                if name.endswith(".py"):
                    with contextlib.suppress(OSError):
                        found[f"{folder}/{name}"] = os.stat(f"{folder}/{name}").st_mtime_ns
        return found

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop on the first signal. On a second one, kill the processes."""

        def stop(*_: object) -> None:
            if self._stopping.is_set():
                for process in self._running:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
            self._stopping.set()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop_with_parent() -> None:
    """In a process of `Processes`: stop when the parent is gone."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="forelog-parent", daemon=True).start()
