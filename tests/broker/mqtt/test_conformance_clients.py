"""Clients that others have written: paho, aiomqtt, and Debian's mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
from typing import Any

import pytest

from tests.broker.serving import served

paho = pytest.importorskip("paho.mqtt.client")
aiomqtt = pytest.importorskip("aiomqtt")
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion  # noqa: E402 - after the check that it is there
from paho.mqtt.packettypes import PacketTypes  # noqa: E402
from paho.mqtt.properties import Properties  # noqa: E402

WAIT_S = 60
VERSIONS = [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5]
BOTH = pytest.mark.parametrize("version", VERSIONS, ids=["3.1.1", "5"])
needs_mosquitto = pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients isn't there")


class Paho:
    """Paho's client, with what it got in a queue."""

    def __init__(self, port: int, client_id: str, version: MQTTProtocolVersion, *, durable: bool = False) -> None:
        more = {} if version == MQTTProtocolVersion.MQTTv5 else {"clean_session": not durable}
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=version, **more)
        self.messages: queue.Queue = queue.Queue()
        self.connected: queue.Queue = queue.Queue()
        self.subscribed: queue.Queue = queue.Queue()
        self.client.on_message = lambda _client, _data, message: self.messages.put(message)
        self.client.on_connect = lambda _c, _d, flags, reason, _p: self.connected.put((flags, reason))
        self.client.on_subscribe = lambda _c, _d, mid, reasons, _p: self.subscribed.put((mid, reasons))
        settings: dict[str, Any] = {}
        if version == MQTTProtocolVersion.MQTTv5:
            settings["clean_start"] = not durable
            if durable:
                settings["properties"] = Properties(PacketTypes.CONNECT)
                settings["properties"].SessionExpiryInterval = 1000
        self.client.connect("127.0.0.1", port, **settings)
        self.client.loop_start()
        self.flags, reason = self.connected.get(timeout=WAIT_S)
        assert not reason.is_failure

    def subscribe(self, name: str, qos: int) -> None:
        self.client.subscribe(name, qos)
        _, reasons = self.subscribed.get(timeout=WAIT_S)
        assert [reason.value for reason in reasons] == [qos]

    def publish(self, name: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        self.client.publish(name, payload, qos, retain).wait_for_publish(WAIT_S)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho(broker, name, version, qos):
    client = Paho(broker.port, name, version)
    try:
        client.subscribe(f"{name}/+", qos)
        for number in range(200):
            client.publish(f"{name}/{number % 3}", b"%d" % number, qos)
        found = [client.messages.get(timeout=WAIT_S) for _ in range(200)]
        assert [int(one.payload) for one in found] == list(range(200))
        assert all(one.qos == qos for one in found)
    finally:
        client.close()


@BOTH
def test_paho_misses_nothing_while_it_is_away_and_the_broker_is_killed(tmp_path, version):
    with served(tmp_path / "log") as broker:
        client = Paho(broker.port, "durable", version, durable=True)
        client.subscribe("t", 2)
        client.close()
        publisher = Paho(broker.port, "publisher", version)
        for number in range(100):
            publisher.publish("t", b"%d" % number, 1 + number % 2)
        publisher.close()
        broker.kill()
        broker.start()
        client = Paho(broker.port, "durable", version, durable=True)
        try:
            assert client.flags.session_present
            found = [client.messages.get(timeout=WAIT_S) for _ in range(100)]
            for qos in (1, 2):  # paho hands over those of QoS 2 when they are released, that is later
                assert [int(one.payload) for one in found if one.qos == qos] == list(range(qos - 1, 100, 2))
        finally:
            client.close()


@BOTH
def test_paho_keeps_retained_messages(broker, name, version):
    client = Paho(broker.port, name, version)
    try:
        client.publish(f"{name}/kept", b"here", 1, retain=True)
        client.subscribe(f"{name}/#", 1)
        message = client.messages.get(timeout=WAIT_S)
        assert (message.payload, message.retain) == (b"here", True)
    finally:
        client.close()


@BOTH
def test_aiomqtt(broker, name, version):
    async def run() -> list[int]:
        protocol = aiomqtt.ProtocolVersion(version.value)
        async with aiomqtt.Client("127.0.0.1", broker.port, identifier=name, protocol=protocol) as client:
            await client.subscribe(f"{name}/#", qos=1)
            for number in range(50):
                await client.publish(f"{name}/x", b"%d" % number, qos=1)
            found = []
            async for message in client.messages:
                found.append(int(message.payload))
                if len(found) == 50:
                    return found
        raise AssertionError("the messages ended")

    assert asyncio.run(asyncio.wait_for(run(), WAIT_S)) == list(range(50))


def mosquitto(tool: str, port: int, *arguments: str, data: bytes = b"") -> bytes:
    command = [f"mosquitto_{tool}", "-h", "127.0.0.1", "-p", str(port), *arguments]
    return subprocess.run(command, input=data, capture_output=True, check=True, timeout=WAIT_S).stdout


@needs_mosquitto
@pytest.mark.parametrize("version", ["311", "5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto_pub_and_sub(broker, name, version, qos):
    durable = ["-V", version, "-i", name, "-c", "-q", qos, *(["-x", "1000"] if version == "5" else [])]
    mosquitto("sub", broker.port, *durable, "-t", f"{name}/#", "-E")
    lines = b"".join(b"%d\n" % number for number in range(100))
    if qos == "0":  # nobody keeps these for who is away by duty, but the log has them
        mosquitto("pub", broker.port, "-V", version, "-t", f"{name}/a", "-l", "-q", "1", data=lines)
    else:
        mosquitto("pub", broker.port, "-V", version, "-t", f"{name}/a", "-l", "-q", qos, data=lines)
    assert mosquitto("sub", broker.port, *durable, "-t", f"{name}/#", "-C", "100", "-W", "50") == lines


@needs_mosquitto
@pytest.mark.parametrize("version", ["311", "5"])
def test_mosquitto_sub_replays_the_past(broker, name, version):
    """It knows nothing of replays: the filter is all that there is to it."""
    for number in range(10):
        mosquitto("pub", broker.port, "-t", name, "-m", str(number), "-q", "1")
    found = mosquitto("sub", broker.port, "-V", version, "-t", f"$replay/-15m/{name}", "-C", "10", "-W", "50")
    assert found == b"".join(b"%d\n" % number for number in range(10))


@needs_mosquitto
def test_mosquitto_rr_asks_and_is_answered(broker, name):
    if shutil.which("mosquitto_rr") is None:
        pytest.skip("this mosquitto-clients has no mosquitto_rr")
    client = Paho(broker.port, name, MQTTProtocolVersion.MQTTv5)
    try:

        def answer(_client, _data, message) -> None:
            properties = Properties(PacketTypes.PUBLISH)
            if hasattr(message.properties, "CorrelationData"):
                properties.CorrelationData = message.properties.CorrelationData
            client.client.publish(message.properties.ResponseTopic, b"42", 1, properties=properties)

        client.client.on_message = answer
        client.subscribe(f"{name}/ask", 1)
        asked = ["-V", "5", "-t", f"{name}/ask", "-e", f"{name}/answers", "-m", "6 * 7", "-q", "1", "-W", "50"]
        assert mosquitto("rr", broker.port, *asked).strip() == b"42"
    finally:
        client.close()
