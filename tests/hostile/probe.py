"""A well-behaved client in a process of its own: how long its round trips take while others misbehave.

    broker     publishes at QoS 1, waits for its PUBACK and for the message, then for the answer to a PINGREQ
    jobs       adds a job, leases it, completes it, deletes it: one of them in a round
    replica    an update of a state log, which waits until the server has it

Beside that, a newcomer connects every now and then, says who it is, and waits until it is let in.

`python -m tests.hostile.probe KIND PORT PID FOLDER [secret] [tls]` answers each line on its standard input
(`begin`, `pause`, `resume`, `report`) with a line of JSON.

A busy machine makes everybody wait. The kernel counts for how long a thread was ready to run and had no
processor. A round trip less those times, of the server and of the probe, is the *stall*: see `stall_seconds`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from forelog.broker.mqtt.packets import Pingresp, Puback, Publish, Subscription
from tests.broker.talking import Talk
from tests.hostile.figures import queued_ns, stall_seconds, threads
from tests.hostile.servers import PASSWORD, TOKEN

__all__ = ["Probe"]

ROUND_SECONDS = 0.01
NEWCOMER_SECONDS = 0.2
WAIT_SECONDS = 60.0
LOGIN: dict[str, Any] = {"user_name": "probe", "password": PASSWORD}


class Probe:
    """The harness's side."""

    def __init__(
        self, kind: str, port: int, pid: int, folder: Path, *, secret: bool = False, tls: bool = False
    ) -> None:
        command = [sys.executable, "-m", "tests.hostile.probe", kind, str(port), str(pid), str(folder)]
        command += [word for word, wanted in (("secret", secret), ("tls", tls)) if wanted]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def begin(self) -> None:
        """Measure from now on."""
        self._ask("begin")

    def pause(self) -> None:
        """Finish the round trip, and wait."""
        self._ask("pause")

    def begin_again(self) -> None:
        """After a pause, without forgetting what was measured before it."""
        self._ask("resume")

    def report(self) -> dict[str, Any]:
        """What was measured since `begin`; a round trip that isn't over counts as long as it takes already."""
        return self._ask("report")

    def _ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the probe has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Watch:
    """Round trips of one kind: the longest, and what was wrong."""

    def __init__(self, server: int, every: float) -> None:
        self._server, self._every = server, every
        self._lock = threading.Lock()
        self._began: float | None = None
        self.running = threading.Event()
        self.idle = threading.Event()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._worst = self._stall = 0.0
            self._rounds = 0
            self._wrong: list[str] = []
            self._epoch = time.monotonic()

    def run(self, work: Callable[[], None]) -> None:
        """For ever. What goes wrong is noted, and tried again."""
        own = f"self/task/{threading.get_native_id()}"
        while True:
            if not self.running.is_set():
                self.idle.set()
                self.running.wait()
                self.idle.clear()
            given, queued = threads(self._server), queued_ns(own)
            self._began = began = time.monotonic()
            try:
                work()
            except Exception as error:
                with self._lock:
                    self._wrong.append(f"{type(error).__name__}: {error}"[:200])
                time.sleep(0.05)
            took = time.monotonic() - began
            since = threads(self._server).since(given)
            stall = stall_seconds(took, since, queued_ns(own) - queued)
            with self._lock:
                self._began = None
                self._rounds += 1
                self._note(took, stall)
            time.sleep(self._every)

    def _note(self, took: float, stall: float) -> None:
        self._worst = max(self._worst, took)
        self._stall = max(self._stall, stall)

    def report(self) -> dict[str, Any]:
        with self._lock:
            if self._began is not None:
                pending = time.monotonic() - max(self._began, self._epoch)
                self._note(pending, pending)
            return {
                "worst_ms": self._worst * 1e3,
                "stall_ms": self._stall * 1e3,
                "rounds": self._rounds,
                "wrong": self._wrong[:5],
                "wrong_count": len(self._wrong),
            }


# -- the broker


class Publisher:
    """Gets what it publishes, all of it, in order."""

    def __init__(self, port: int, secret: bool) -> None:
        self._port, self._login = port, LOGIN if secret else {}
        self._talk: Talk | None = None
        self._number = 0

    def __call__(self) -> None:
        try:
            self._round()
        except BaseException:
            if self._talk is not None:
                self._talk.close()
            self._talk = None
            raise

    def _round(self) -> None:
        if self._talk is None:
            self._talk = Talk(self._port)
            self._talk.connect("probe", **self._login)
            self._talk.subscribe(Subscription("probe/#", 1))
        talk, self._number = self._talk, self._number + 1
        packet_id = self._number % 60_000 + 1
        talk.send(Publish("probe/round", b"%d" % self._number, 1, packet_id=packet_id))
        acknowledged = False
        while True:
            packet = talk.read()
            if isinstance(packet, Puback):
                acknowledged = packet.packet_id == packet_id and packet.reason_code in (0, 0x10)
            elif isinstance(packet, Publish):
                talk.send(Puback(packet.packet_id))
                assert packet.payload == b"%d" % self._number, f"{packet.payload!r} for {self._number}"
                break
        assert acknowledged, "its own message came before the PUBACK"
        talk.raw(b"\xc0\x00")
        talk.expect(Pingresp)


def new_client(port: int, secret: bool) -> None:
    with Talk(port) as talk:
        answer = talk.connect("newcomer", **(LOGIN if secret else {}))
        assert answer.reason_code == 0, f"a newcomer is answered {answer.reason_code}"


# -- the job server


class Jobs:
    """A job's life: a request in each round."""

    def __init__(self, port: int, secret: bool) -> None:
        self._port, self._secret = port, secret
        self._socket: socket.socket | None = None
        self._left = b""
        self._life = self._requests()

    def __call__(self) -> None:
        try:
            self._round()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._left = None, b""

    def connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port), WAIT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._secret:
            assert self.ask(f"auth {TOKEN}\r\n".encode()) == b"+OK"

    def ask(self, data: bytes) -> bytes:
        assert self._socket is not None
        self._socket.sendall(data)
        return self._read_line()

    def _read_line(self) -> bytes:
        assert self._socket is not None
        while b"\r\n" not in self._left:
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("closed by the server")
            self._left += more
        line, _, self._left = self._left.partition(b"\r\n")
        return line

    def _round(self) -> None:
        if self._socket is None:
            self.connect()
            self._life = self._requests()
        if next(self._life, None) is None:
            self._life = self._requests()
            next(self._life)

    def _requests(self) -> Iterator[bool]:
        number = bytearray(os.urandom(16))
        number[6], number[8] = 0x40 | number[6] & 15, 0x80 | number[8] & 63
        text = number.hex()
        job = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}".encode()
        answer = self.ask(b"add %b probe.queue 60000 60000 2\r\nhi\r\n" % job)
        assert answer == b"+OK", answer
        yield True
        answer = self.ask(b"lease probe.queue 1000\r\n")
        assert answer == b"+OK 1", answer
        leased, payload = self._read_line(), self._read_line()
        assert leased.startswith(job), f"{leased!r} was leased for {job!r}"
        assert payload == b"hi"
        yield True
        answer = self.ask(b"complete %b 2\r\nok\r\n" % job)
        assert answer == b"+OK", answer
        yield True
        answer = self.ask(b"delete %b\r\n" % job)
        assert answer == b"+OK", answer
        yield True


def new_worker(port: int, secret: bool) -> None:
    jobs = Jobs(port, secret)
    try:
        jobs.connect()
        answer = jobs.ask(b"inspect server\r\n")
        assert answer.startswith(b"+OK"), answer
    finally:
        jobs.close()


# -- the replica server


class Primary:
    """A state log with a copy at the server, which each update waits for."""

    def __init__(self, port: int, secret: bool, folder: str, tls: ssl.SSLContext | None) -> None:
        from forelog.state import PersistentDict

        self._things: Any = PersistentDict(os.path.join(folder, "primary")).open()
        more: dict[str, Any] = {"tls": tls} | ({"token": TOKEN} if secret else {})
        self._things.log.add_destination(
            f"replica://127.0.0.1:{port}/probe", ack="received", ack_timeout=WAIT_SECONDS, **more
        )
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._things.log.health().healthy and time.monotonic() < deadline:
            time.sleep(0.01)
        self._number = 0

    def __call__(self) -> None:
        self._number += 1
        self._things[self._number % 100] = self._number


def new_follower(port: int, secret: bool, tls: ssl.SSLContext | None = None) -> None:
    from forelog.copies.wire import VERSION, Address, Kind, connect

    link = connect(Address("127.0.0.1", port, "probe"), tls)
    try:
        more = {"token": TOKEN} if secret else {}
        link.send_fields(Kind.HELLO, version=VERSION, role="follower", log="probe", **more)
        link.expect(Kind.WELCOME)
    finally:
        link.close()


def main(words: list[str]) -> int:
    kind, port, pid, folder = words[0], int(words[1]), int(words[2]), words[3]
    secret = "secret" in words[4:]
    tls = ssl.create_default_context(cafile=os.path.join(folder, "server.crt")) if "tls" in words[4:] else None
    sys.setswitchinterval(0.0005)
    work: Callable[[], None]
    newcomer: Callable[[int, bool], None]
    if kind == "broker":
        work, newcomer = Publisher(port, secret), new_client
    elif kind == "jobs":
        work, newcomer = Jobs(port, secret), new_worker
    else:
        work, newcomer = Primary(port, secret, folder, tls), functools.partial(new_follower, tls=tls)
    rounds, newcomers = Watch(pid, ROUND_SECONDS), Watch(pid, NEWCOMER_SECONDS)
    work()
    with contextlib.suppress(Exception):
        newcomer(port, secret)
    for watch, what in ((rounds, work), (newcomers, lambda: newcomer(port, secret))):
        threading.Thread(target=watch.run, args=(what,), daemon=True).start()
    print("{}", flush=True)
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        for watch in (rounds, newcomers):
            if line == "begin\n":
                watch.clear()
                watch.running.set()
            elif line == "resume\n":
                watch.running.set()
            elif line == "pause\n":
                watch.running.clear()
                watch.idle.wait(5)
        if line == "report\n":
            answer = {"rounds": rounds.report(), "newcomers": newcomers.report()}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
