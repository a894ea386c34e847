"""`make sanitize`: the compiled modules under sanitizers, and a search for inputs that break a parser.

    python -m tests.sanitize                                    all of it, for ten minutes
    python -m tests.sanitize --seconds 60 --only mqtt,job       only targets whose name has one of these words
    python -m tests.sanitize --run TARGET FILE                  one input again

First the modules are compiled (build.py), then the kernel's tests run with them, then every target is searched.
Each finding is saved in build/sanitize/findings, and printed with the command that runs it again. The input of a
finding that was mended goes to tests/sanitize/findings, named TARGET-words: the suite runs all that is there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.sanitize.build import FOLDER, ROOT, Missing, build, environment
from tests.sanitize.target import load_targets
from tests.sanitize.worker import NOTE, NOTE_BYTES

TESTS = (
    "tests/kernel",
    "tests/formats",
    "tests/sanitize",
    "tests/jobs/test_machine.py",
    "tests/jobs/test_wheel.py",
)
HANGS_SECONDS = 60.0  # without a new input
CRASHES_MAX = 3  # of a target: then it is given up


class Figures(NamedTuple):
    """What a search came to."""

    executions: int
    edges: int
    corpus: int
    findings: int


class Hunt:
    """The search in one target, over as many processes as it takes."""

    def __init__(self, target: str, seconds: float, seed: int) -> None:
        self._target = target
        self._until = time.monotonic() + seconds
        self._seed = seed
        self.executions = self.edges = self.corpus = 0
        self.found: dict[str, str] = {}
        """What is wrong, by the name of the input's file."""

    def run(self) -> Figures:
        crashes = 0
        while True:
            left = self._until - time.monotonic()
            if left < 1 and (self.executions or crashes):
                break
            if self._search(max(left, 3.0)):
                break
            crashes += 1
            self._seed += 1_000_003  # another way than the one that led there
            if crashes == CRASHES_MAX:
                print(f"  {self._target} is given up after {crashes} crashes", flush=True)
                break
        return Figures(self.executions, self.edges, self.corpus, len(self.found))

    def _search(self, seconds: float) -> bool:
        """Whether the process came to its end."""
        trying, said = FOLDER / "trying", FOLDER / "said"
        trying.write_bytes(bytes(NOTE_BYTES))
        command = [sys.executable, "-m", "tests.sanitize.worker", self._target, "--folder", str(FOLDER)]
        command += ["--seconds", str(seconds), "--seed", str(self._seed)]
        with open(said, "w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment()
            )
        hangs = self._watch(process, trying)
        if process.returncode == 0:
            return True
        count, size = NOTE.unpack_from(trying.read_bytes())
        self.executions += count
        data = trying.read_bytes()[NOTE.size : NOTE.size + size]
        what = "it hangs" if hangs else _summary(said.read_text(errors="replace"), process.returncode)
        self._save(f"{self._target}-{hashlib.sha256(data).hexdigest()[:12]}", data, what)
        return False

    def _watch(self, process: subprocess.Popen[str], trying: Path) -> bool:
        """Take in what the process says, until it ends; whether it had to be ended because nothing happened."""
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        moved, count = time.monotonic(), -1
        while True:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                now_at = NOTE.unpack_from(trying.read_bytes())[0]
                if now_at != count:
                    moved, count = time.monotonic(), now_at
                if time.monotonic() - moved > HANGS_SECONDS:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    return True
                continue
            if line is None:
                process.wait()
                return False
            self._take(json.loads(line))

    def _take(self, told: dict[str, Any]) -> None:
        if told["kind"] == "broken":
            self._save(told["name"], bytes.fromhex(told["data"]), told["what"])
        else:
            self.executions += told["executions"]
            self.edges, self.corpus = told["edges"], told["corpus"]

    def _save(self, name: str, data: bytes, what: str) -> None:
        path = FOLDER / "findings" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        self.found[name] = what
        shown = data.hex() if len(data) <= 100 else f"{data[:100].hex()}... {len(data):,} bytes"
        print(
            f"\n{self._target}: {what.rstrip()}\n  input: {shown}\n  again: {again(self._target, path)}\n",
            flush=True,
        )


def again(target: str, path: Path) -> str:
    """How to run an input again."""
    return f"python -m tests.sanitize --run {target} {path.relative_to(ROOT)}"


def _summary(said: str, code: int) -> str:
    """The first lines of what a sanitizer says."""
    lines = said.splitlines()
    begins = [i for i, line in enumerate(lines) if "ERROR: " in line or "runtime error: " in line]
    part = lines[begins[0] : begins[0] + 14] if begins else lines[-14:]
    return "\n".join([f"the process has ended with {code}", *part])


def run_tests() -> int:
    """The kernel's tests, with the sanitized modules. How many findings: 0 or 1."""
    paths = [path for path in TESTS if (ROOT / path).exists()]
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(command, cwd=ROOT, env=environment(bounded=False), capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1:] or ["nothing"]
    print(f"tests with sanitizers: {last[0]}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        print(done.stdout[-4000:], _summary(done.stderr, done.returncode), sep="\n", flush=True)
    return int(done.returncode != 0)


def search_all(names: list[str], seconds: float, seed: int) -> int:
    """Search every target; how many findings."""
    total, began = 0, time.monotonic()
    rows: list[tuple[str, Figures]] = []
    for number, name in enumerate(names):
        left = seconds - (time.monotonic() - began)
        figures = Hunt(name, max(left / (len(names) - number), 3.0), seed).run()
        rows.append((name, figures))
        total += figures.findings
        print(
            f"{name:28} {figures.executions:>9,} inputs {figures.edges:>7,} edges {figures.corpus:>6,} kept "
            f"{figures.findings:>3} findings",
            flush=True,
        )
    inputs, edges = sum(f.executions for _, f in rows), sum(f.edges for _, f in rows)
    print(
        f"{len(rows)} targets, {inputs:,} inputs, {edges:,} edges, {total} findings, "
        f"{time.monotonic() - began:.0f} s, seed {seed}",
        flush=True,
    )
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="that the search takes, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="words, separated by commas")
    parser.add_argument("--no-tests", action="store_true", help="search only")
    parser.add_argument("--run", nargs=2, metavar=("TARGET", "FILE"), help="run one input again")
    options = parser.parse_args()
    try:
        began = time.monotonic()
        build()
    except Missing as missing:
        print(f"make sanitize needs more than there is: {missing}", file=sys.stderr)
        return 2
    if options.run:
        command = [sys.executable, "-m", "tests.sanitize.worker", options.run[0], "--input", options.run[1]]
        return subprocess.call(command, cwd=ROOT, env=environment())
    print(f"compiled with sanitizers in {time.monotonic() - began:.0f} s", flush=True)
    words = [word for word in options.only.split(",") if word]
    names = [name for name in load_targets() if not words or any(word in name for word in words)]
    findings = 0 if options.no_tests else run_tests()
    findings += search_all(names, options.seconds, options.seed)
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
