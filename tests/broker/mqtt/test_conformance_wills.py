"""Wills: what is published for a client that is lost. Numbers are those of MQTT 5.0."""

from __future__ import annotations

import time

import pytest

from forelog.broker.mqtt.packets import Disconnect, Properties, Publish, Will
from forelog.broker.mqtt.reasons import ReasonCode

BOTH = pytest.mark.parametrize("version", [4, 5])


@pytest.fixture
def watcher(talk, name):
    client = talk()
    client.connect()
    client.subscribe(f"{name}/#", qos=2)
    return client


@BOTH
@pytest.mark.parametrize("how", ["cut", "malformed", "taken over"])
def test_a_client_that_is_lost_leaves_its_will(talk, name, version, watcher, how):
    """[MQTT-3.1.2-7] [MQTT-3.1.2-8] [MQTT-3.1.2-10]"""
    client = talk(version)
    client.connect(name, will=Will(f"{name}/will", b"farewell", 1))
    if how == "cut":
        client.close()
    elif how == "malformed":
        client.raw(b"\x00\x00")
    else:
        second = talk(version)
        second.connect(name)
        second.disconnect()
    (message,) = watcher.take()
    assert (message.topic, message.payload, message.qos) == (f"{name}/will", b"farewell", 1)
    assert [one for one in watcher.drain() if isinstance(one, Publish)] == []


@BOTH
def test_a_client_that_says_goodbye_takes_its_will_along(talk, name, version, watcher):
    """[MQTT-3.14.4-3] [MQTT-3.1.2-10]"""
    client = talk(version)
    client.connect(name, will=Will(f"{name}/will", b"x"))
    client.disconnect()
    assert watcher.drain() == []


@BOTH
def test_without_a_will_there_is_none(talk, name, version, watcher):
    """[MQTT-3.1.2-8]"""
    client = talk(version)
    client.connect(name, clean=False, expiry=100, will=Will(f"{name}/will", b"x"))
    client.disconnect()
    client = talk(version)
    client.connect(name, clean=False, expiry=100)
    client.close()
    other = talk(version)
    other.connect(name, clean=False, expiry=100)  # by then the broker has noticed
    assert watcher.drain() == []


def test_a_goodbye_can_ask_for_the_will(talk, name, watcher):
    """[MQTT-3.1.2-8]"""
    client = talk()
    client.connect(name, will=Will(f"{name}/will", b"x"))
    client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE))
    assert watcher.messages() == [(f"{name}/will", b"x")]


@BOTH
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_has_its_quality_and_may_be_retained(talk, name, version, watcher, retain, qos):
    """[MQTT-3.1.2-14] [MQTT-3.1.2-15]"""
    client = talk(version)
    client.connect(name, will=Will(f"{name}/will", b"x", qos, retain))
    client.close()
    assert watcher.take()[0].qos == qos
    late = talk()
    late.connect()
    late.subscribe(f"{name}/will")
    assert [one.retain for one in late.drain()] == ([True] if retain else [])


def test_what_is_said_of_a_will_is_passed_on(talk, name, watcher):
    """[MQTT-3.1.3-10] [MQTT-3.3.2-17]"""
    told: Properties = {
        "content_type": "text/plain",
        "response_topic": "somewhere",
        "correlation_data": b"17",
        "payload_format_indicator": 1,
        "user_properties": [("b", "1"), ("a", "2"), ("b", "0")],
    }
    client = talk()
    client.connect(name, will=Will(f"{name}/will", b"x", 1, properties=told.copy()))
    client.close()
    assert watcher.take()[0].properties == told


def test_a_will_waits_for_its_delay(talk, name, watcher):
    """[MQTT-3.1.2-8]"""
    client = talk()
    will = Will(f"{name}/will", b"x", properties={"will_delay_interval": 1})
    client.connect(name, expiry=100, will=will)
    cut = time.monotonic()
    client.close()
    assert watcher.messages() == [(f"{name}/will", b"x")]
    assert time.monotonic() - cut >= 0.9


def test_who_is_back_before_the_delay_leaves_no_will(talk, name, watcher):
    """[MQTT-3.1.3-9]"""
    client = talk()
    will = Will(f"{name}/will", b"x", properties={"will_delay_interval": 1})
    client.connect(name, expiry=100, will=will)
    client.close()
    back = talk()
    assert back.connect(name, clean=False, expiry=100).session_present
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        assert watcher.quiet()
    back.disconnect()
    assert watcher.drain() == []


@pytest.mark.parametrize("how", ["expires", "clean start"])
def test_the_end_of_a_session_is_the_latest_moment_for_its_will(talk, name, watcher, how):
    """[MQTT-3.1.2-8]"""
    client = talk()
    will = Will(f"{name}/will", b"x", properties={"will_delay_interval": 1000})
    client.connect(name, expiry=1 if how == "expires" else 1000, will=will)
    client.close()
    if how == "clean start":
        talk().connect(name, clean=True)
    assert watcher.messages() == [(f"{name}/will", b"x")]
