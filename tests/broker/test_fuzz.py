"""A little of what `make fuzz` does at length, and packets cut at every byte."""

from __future__ import annotations

import pytest

from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import (
    Connack,
    Connect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Subscribe,
    Subscription,
)
from tests.broker.fuzz import run


def test_packets_that_no_client_would_send_do_no_harm():
    told: list[str] = []
    run(6000, 1, told.append)
    assert "has sent and got" in told[-1]


@pytest.mark.parametrize("version", [4, 5])
def test_where_a_read_ends_makes_no_difference(talk, name, version):
    packets: list[Packet] = [
        Connect(name, version),
        Subscribe(9, [Subscription(name, 1)]),
        Publish(name, b"one", 1, packet_id=1),
        Publish(name, b"2" * 200, 1, packet_id=2),
        Publish(name, b"three", 1, retain=True, packet_id=3),
        Pingreq(),
    ]
    data = b"".join(encode(packet, version, from_server=False) for packet in packets)
    for at in range(1, len(data)):
        client = talk(version)
        client.raw(data[:at])
        client.raw(data[at:])
        found = [client.read()]
        while sum(isinstance(one, Puback | Pingresp) for one in found) < 4:
            found.append(client.read())
        assert isinstance(found[0], Connack)
        assert [one.packet_id for one in found if isinstance(one, Puback)] == [1, 2, 3]
        client.close()
