"""Processes of a run, and the CPU time that they use."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
END_SECONDS = 20.0


class Child:
    """A Python module in a process of its own. It says a word on each line of its standard output."""

    def __init__(self, module: str, *words: object, said: Path) -> None:
        self._said = said
        with said.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # so that its own children end with it
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def wait_for(self, word: str) -> None:
        """Read lines up to this one."""
        assert self.process.stdout is not None
        while (line := self.process.stdout.readline()).decode().strip() != word:
            if not line:
                raise RuntimeError(f"it never said {word!r}, and ended with {self.process.wait()}: {self.said()}")

    def let_go(self) -> None:
        """Close its standard input, on which it waits."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self, number: signal.Signals | None = None) -> str | None:
        """Have it end, by a signal or by itself; what is wrong with how it ended."""
        if number is not None and self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it hangs: {self.said() or 'without a word'}"
        return None if code == 0 else f"it ended with {code}: {self.said()}"

    def kill(self) -> None:
        """With SIGKILL, and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Whatever it does, it ends."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def said(self) -> str:
        """The last line that it wrote to its standard error: of a traceback, the error."""
        lines = self._said.read_text(errors="replace").strip().splitlines()
        return lines[-1][:500] if lines else ""


def errors_in(text: str) -> list[str]:
    """The last lines of all tracebacks in a text."""
    errors, inside = [], False
    for line in text.splitlines():
        if line.startswith("Traceback "):
            inside = True
        elif inside and not line.startswith(" "):
            errors.append(line)
            inside = False
    return errors


def cpu_seconds(pids: list[int], leave_out: tuple[str, ...] = ()) -> float:
    """The CPU time of processes and of their descendants, but of none with one of these names."""
    total = 0
    for pid in _with_descendants(pids):
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # it has ended
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        if name not in leave_out:
            total += int(rest[11]) + int(rest[12])
    return total / TICK


def _with_descendants(pids: list[int]) -> list[int]:
    found: list[int] = []
    left = list(pids)
    while left:
        pid = left.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += [int(word) for word in (task / "children").read_text().split()]
    return found


def wait_until(what: Callable[[], bool], seconds: float, progress: Callable[[], object] = lambda: None) -> bool:
    """Look every now and then, until there was no progress for so long; whether it came to pass."""
    deadline, known = time.monotonic() + seconds, progress()
    while not what():
        if (now := progress()) != known:
            deadline, known = time.monotonic() + seconds, now
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
