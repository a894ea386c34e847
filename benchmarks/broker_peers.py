"""The brokers that are measured, and how each is spoken to: bytes to publish, to subscribe, and to count."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import free_port, payload

PAYLOAD = payload()
TOPIC = b"bench/topic"


@dataclass
class Peer:
    """A broker, in a process of its own."""

    name: str
    policy: str
    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        self.port = self.port or free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError(f"{self.name} doesn't start: {' '.join(self.command())}") from None
                time.sleep(0.01)
        self.prepare()

    def prepare(self) -> None:
        """Whatever it needs once."""

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    # What a client says and hears.

    def hello(self, client_id: str, durable: bool = False) -> tuple[bytes, int]:
        """What a client begins with, and how many bytes the answer has at least."""
        raise NotImplementedError

    def publish(self, number: int, qos: int, payload: bytes = PAYLOAD) -> bytes:
        """One message. `number` tells it from others that aren't acknowledged yet."""
        raise NotImplementedError

    def acknowledgements(self, data: bytes) -> int:
        """How many messages were acknowledged by what was heard; data may end anywhere."""
        raise NotImplementedError

    def subscribe(self, qos: int) -> bytes:
        """What a subscriber says after its hello."""
        raise NotImplementedError


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def _length(count: int) -> bytes:
    out = bytearray()
    while True:
        count, digit = divmod(count, 128)
        out.append(digit | (0x80 if count else 0))
        if not count:
            return bytes(out)


class Mqtt(Peer):
    """Whatever speaks MQTT 3.1.1."""

    def hello(self, client_id: str, durable: bool = False) -> tuple[bytes, int]:
        body = _text(b"MQTT") + bytes((4, 0 if durable else 2, 0, 0)) + _text(client_id.encode())
        return b"\x10" + _length(len(body)) + body, 4

    def publish(self, number: int, qos: int, payload: bytes = PAYLOAD) -> bytes:
        identifier = (number % 60_000 + 1).to_bytes(2, "big") if qos else b""
        body = _text(TOPIC) + identifier + payload
        return bytes((0x30 | qos << 1,)) + _length(len(body)) + body

    def acknowledgements(self, data: bytes) -> int:
        return len(data) // 4

    def subscribe(self, qos: int) -> bytes:
        body = b"\x00\x01" + _text(TOPIC) + bytes((qos,))
        return b"\x82" + _length(len(body)) + body


class Forelog(Mqtt):
    def command(self) -> list[str]:
        where = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "forelog", "broker", "serve"]
        return [*command, "--listen", where, "--log", str(self.folder / "log"), "--sync", self.policy]


class Mosquitto(Mqtt):
    def command(self) -> list[str]:
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {self.folder}/",
            "max_queued_messages 0",
            "max_inflight_messages 1000",
            "log_type none",
        ]
        configuration = self.folder / "mosquitto.conf"
        configuration.write_text("\n".join(lines) + "\n")
        shutil.chown(self.folder, "mosquitto")
        return ["mosquitto", "-c", str(configuration)]


class Redis(Peer):
    """A stream, with XADD and XREAD."""

    def command(self) -> list[str]:
        sync = "always" if self.policy == "always" else "no"
        options = {"port": self.port, "bind": "127.0.0.1", "appendonly": "yes", "appendfsync": sync, "save": ""}
        command = ["redis-server", "--dir", str(self.folder)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        return command

    def hello(self, client_id: str, durable: bool = False) -> tuple[bytes, int]:  # noqa: ARG002
        return b"*1\r\n$4\r\nPING\r\n", 7

    def publish(self, number: int, qos: int, payload: bytes = PAYLOAD) -> bytes:  # noqa: ARG002
        return b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\np\r\n$%d\r\n%b\r\n" % (len(payload), payload)

    def acknowledgements(self, data: bytes) -> int:
        return data.count(b"\n") // 2


class Nats(Peer):
    """A JetStream stream on files. The nats-server of Debian can't sync every message: it is unsynced."""

    def command(self) -> list[str]:
        return ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)]

    def prepare(self) -> None:
        stream = json.dumps({"name": "bench", "subjects": ["bench.>"], "storage": "file"}).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as talk:
            talk.sendall(b'CONNECT {"verbose":false}\r\nSUB in 1\r\n')
            talk.sendall(b"PUB $JS.API.STREAM.CREATE.bench in %d\r\n%b\r\n" % (len(stream), stream))
            heard = b""
            while b"stream_create_response" not in heard:
                heard += talk.recv(65536)

    def hello(self, client_id: str, durable: bool = False) -> tuple[bytes, int]:  # noqa: ARG002
        inbox = client_id.encode()
        return b'CONNECT {"verbose":false}\r\nSUB in.%b 1\r\nPING\r\n' % inbox, 6

    def publish(self, number: int, qos: int, payload: bytes = PAYLOAD, inbox: bytes = b"p0") -> bytes:  # noqa: ARG002
        reply = b"in.%b " % inbox if qos else b""
        return b"PUB bench.topic %b%d\r\n%b\r\n" % (reply, len(payload), payload)

    def acknowledgements(self, data: bytes) -> int:
        return data.count(b"MSG ")
