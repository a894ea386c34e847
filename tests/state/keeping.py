"""Programs that keep state, in processes of their own: a replica server, and a primary that is told what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from forelog.copies.wire import VERSION, Address, Kind, connect
from forelog.state import Follower, PersistentDict

KEEPING = re.compile(r"keeping copies at 127\.0\.0\.1:(\d+)")

PRIMARY = """
import json, sys
from forelog.state import PersistentDict

path, options = sys.argv[1], json.loads(sys.argv[2])
with PersistentDict(path, rotate_bytes=options.pop("rotate_bytes", 1 << 30)) as things:
    if options:
        things.log.add_destination(options.pop("where"), **options)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *rest = json.loads(line)
        try:
            if what == "put":
                for number in range(*rest[:2]):
                    things[number] = rest[2]
                    print(number, flush=True)
            elif what == "rotate":
                things.rotate()
            answer = "done"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer, flush=True)
"""


class Process:
    """A child, ended with the test in any case."""

    def __init__(self, command: list[str], **settings) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings
        )
        self.said: list[str] = []

    def line(self) -> str:
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}: {''.join(self.said)}"
        self.said.append(line)
        return line.rstrip("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


class Replica(Process):
    """`forelog replica serve`."""

    def __init__(self, folder: Path, *flags: str, port: int = 0, prefix: tuple[str, ...] = ()) -> None:
        place = ["--dir", str(folder), "--listen", f"127.0.0.1:{port}"]
        super().__init__([*prefix, sys.executable, "-m", "forelog", "replica", "serve", *place, *flags])
        while (found := KEEPING.search(self.line())) is None:
            pass
        self.port = int(found[1])

    def url(self, log: str = "things") -> str:
        return f"replica://127.0.0.1:{self.port}/{log}"


class Primary(Process):
    """A dict that is kept, and that is told what to do line by line."""

    def __init__(self, folder: Path, **options) -> None:
        super().__init__(
            [sys.executable, "-c", PRIMARY, str(folder), json.dumps(options)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        while self.line() != "ready":
            pass

    def ask(self, *what) -> str:
        """Have it do something, and return how that ended."""
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> str:
        while (line := self.line()).isdecimal():
            pass
        return line

    def put(self, start: int, stop: int, value: object) -> None:
        assert self.ask("put", start, stop, value) == "done"


def wait_until(what: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it didn't come to pass"
        time.sleep(0.01)


def restored(path) -> dict:
    """What a restart would have, without changing anything."""
    copy = f"{path}-looked-at"
    shutil.copytree(path, copy)
    try:
        with PersistentDict(copy) as things:
            return dict(things)
    finally:
        shutil.rmtree(copy)


def converged(things: PersistentDict, name: str) -> bool:
    health = things.log.health().destinations[name]
    return health.state == "live" and health.lag_bytes == 0


class Follows:
    """A follower, and the dict that it makes."""

    def __init__(self, where: str, path, **options) -> None:
        self.state: dict = {}
        self.resets = 0
        self.lock = threading.Lock()
        self.follower = Follower(where, str(path), replay=self.replay, reset=self.reset, **options)

    def replay(self, event) -> None:
        with self.lock:
            if len(event) == 2:
                self.state[event[0]] = event[1]
            else:
                self.state.pop(event[0], None)

    def reset(self) -> None:
        with self.lock:
            self.state.clear()
            self.resets += 1

    def enumerate(self, log) -> None:
        for key in list(self.state):
            log.update([key, self.state[key]])


def hello(address: Address, role: str, **fields):
    """A connection to a replica that was welcome."""
    link = connect(address, None)
    try:
        link.send_fields(Kind.HELLO, version=VERSION, role=role, log=address.log, token="", **fields)
        if role == "primary":
            link.expect(Kind.KNOWN)
            link.send_fields(Kind.CLAIM, continues=True)
        link.expect(Kind.WELCOME)
    except BaseException:
        link.close()
        raise
    return link
