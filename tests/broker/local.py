"""A broker in a thread of this process, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from forelog.broker import Broker
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.cli.broker.mqtt_client import BrokerClient


class Local:
    """A broker on a loop of its own. `do` runs something there."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.clients: list[Any] = []
        self.port = 0
        self.web = 0
        """The port of WebSockets, where a test listens there too."""
        try:
            self.broker: Broker = self.wait_for(self._open(path, options))
            self.port = self.listen()
        except BaseException:
            self._end()
            raise

    async def _open(self, path: str | Path, options: dict[str, Any]) -> Broker:
        broker = Broker(path, **options)
        await broker.open()
        return broker

    def wait_for(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def do(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        return self.wait_for(run())

    def listen(self, tls: ssl.SSLContext | None = None, **options: Any) -> int:
        ((_, port),) = self.wait_for(self.broker.listen("127.0.0.1", 0, tls, **options))
        return port

    def client(self, **options: Any) -> BrokerClient:
        client = BrokerClient(("127.0.0.1", options.pop("port", self.port)), **options)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.wait_for(self.broker.stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def local(path: str | Path, **options: Any) -> Iterator[Local]:
    found = Local(path, **options)
    try:
        yield found
    finally:
        found.close()


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it didn't happen in time"
        time.sleep(0.005)
    return found


def checked(answer: ReasonCode | Future[ReasonCode | None] | None) -> ReasonCode | None:
    """What comes of a login whose password is checked on a thread."""
    assert isinstance(answer, Future)
    return answer.result(60)


class Paho:
    """A paho client that keeps what it gets."""

    def __init__(self, port: int, **options: Any) -> None:
        user, password = options.pop("user", None), options.pop("password", None)
        tls, path = options.pop("tls", None), options.pop("path", None)
        self.reason: str | None = None
        self.messages: list[tuple[str, bytes, bool]] = []
        self.subscribed = 0
        options.setdefault("client_id", "")
        self.client = paho.Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5, **options)
        if user is not None:
            self.client.username_pw_set(user, password)
        if tls is not None:
            self.client.tls_set_context(tls)
        if path is not None:
            self.client.ws_set_options(path=path)
        self.client.on_connect = self._connected
        self.client.on_message = self._message
        self.client.on_subscribe = self._subscribed
        self.client.connect("localhost" if tls else "127.0.0.1", port)
        self.client.loop_start()
        until(lambda: self.reason is not None)

    def _connected(self, client, userdata, flags, reason, properties):
        self.reason = str(reason)

    def _message(self, client, userdata, message):
        self.messages.append((message.topic, message.payload, message.retain))

    def _subscribed(self, *arguments):
        self.subscribed += 1

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        for name in filters:
            self._subscribe(name, qos)

    def _subscribe(self, name: str, qos: int) -> None:
        before = self.subscribed
        self.client.subscribe(name, qos)
        until(lambda: self.subscribed > before)

    def publish(self, topic: str, payload: bytes, qos: int = 1, **options: Any) -> None:
        self.client.publish(topic, payload, qos, **options).wait_for_publish(30)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
        self.client._reset_sockets()  # it would leave its own pair of them to the garbage collector


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    crt, key = folder / "server.crt", folder / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(crt), "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return crt, key


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
