"""A broker for the tests of a module, and clients for one test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from forelog.broker.mqtt.packets import MQTT_5_0
from tests.broker.serving import Served, served
from tests.broker.talking import Talk


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("broker") / "log") as broker:
        yield broker
        said = broker.said()
        assert "Traceback" not in said, said[-4000:]


@pytest.fixture
def talk(broker: Served) -> Iterator[Callable[..., Talk]]:
    """A connection to the broker of this module, or to another one; all of them are closed in the end."""
    talks: list[Talk] = []

    def start(version: int = MQTT_5_0, *, to: Served = broker) -> Talk:
        talks.append(Talk(to.port, version))
        return talks[-1]

    yield start
    for one in talks:
        one.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For topics and client ids that no other test has."""
    return re.sub(r"\W+", "-", request.node.name)[-60:]
