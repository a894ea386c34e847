"""$SYS topics, metrics, and how long messages are kept."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from forelog.broker import Access, Limits, prometheus_collector
from forelog.broker.figures import FIGURES
from forelog.errors import ForelogError
from forelog.log.stream import Stream
from tests.broker.local import Paho, local, until


def values(client, count, timeout=30.0):
    """So many messages, by topic."""
    found: dict[str, str] = {}
    until_ = time.monotonic() + timeout
    while len(found) < count:
        message = client.receive(until_ - time.monotonic())
        assert message is not None, sorted(found)
        found[message.topic.removeprefix("$SYS/broker/")] = message.payload.decode()
    return found


def test_who_subscribes_gets_the_values_at_once_and_then_new_ones(tmp_path):
    with local(tmp_path / "log", limits=Limits(system_interval_seconds=3600)) as here:
        until(lambda: here.broker.system._values)  # its first look, which nobody asked for
        client = here.client(client_id="c")
        client.publish("a", b"x", retain=True)
        client.flush()
        here.do(here.broker.system.publish)
        client.subscribe(["$SYS/#"])
        at_once = values(client, len(here.broker.system._values))
        assert set(at_once) >= {figure.topic for figure in FIGURES.values()}
        assert at_once["clients/connected"] == "1"
        assert at_once["retained messages/count"] == "1"
        assert at_once["messages/received"] == "1"
        assert at_once["uptime"].endswith(" seconds")
        assert at_once["version"].startswith("forelog ")
        client.publish("a", b"y")
        client.flush()
        here.do(here.broker.system.publish)
        later = values(client, len(at_once))
        assert later["messages/received"] == "2"
        assert later["subscriptions/count"] == "1"
        assert int(later["bytes/received"]) > int(at_once["bytes/received"])
        assert int(later["bytes/sent"]) > int(at_once["bytes/sent"])
        assert float(later["load/messages/received/1min"]) > 0


def test_new_values_come_every_interval_and_only_to_who_asked(tmp_path):
    with local(tmp_path / "log", limits=Limits(system_interval_seconds=0.05)) as here:
        one, everything = here.client(), here.client()
        one.subscribe(["$SYS/broker/uptime"])
        everything.subscribe(["#", "+/broker/uptime"])
        assert [one.receive(30).topic for _ in range(5)] == ["$SYS/broker/uptime"] * 5
        one.publish("plain", b"")
        one.flush()
        assert everything.receive(30).topic == "plain", "[MQTT-4.7.2-1]"


def test_the_first_value_is_marked_as_retained(tmp_path):
    # Long enough that no new value comes between the subscription and its first one.
    with local(tmp_path / "log", limits=Limits(system_interval_seconds=1)) as here:
        theirs = Paho(here.port)
        theirs.subscribe("$SYS/broker/version")
        until(lambda: len(theirs.messages) > 2)
        theirs.close()
        assert [retained for _, _, retained in theirs.messages[:3]] == [True, False, False]


def test_nothing_of_it_is_in_the_log(tmp_path):
    with local(tmp_path / "log", limits=Limits(system_interval_seconds=0.05)) as here:
        client = here.client(client_id="d", session_expiry=100)
        client.subscribe(["$SYS/#"])
        values(client, 10)
    with Stream.open(str(tmp_path / "log" / "messages")).cursor() as cursor:
        assert list(cursor) == []


def test_nobody_publishes_to_it(tmp_path):
    with local(tmp_path / "log") as here:
        client = here.client()
        client.publish("$SYS/broker/uptime", b"0")
        with pytest.raises(ForelogError, match="topic name invalid"):
            client.flush()


def test_prometheus_gets_every_figure(tmp_path):
    from prometheus_client import CollectorRegistry, generate_latest

    with local(tmp_path / "log") as here:
        client = here.client()
        client.publish("a", b"x")
        client.flush()
        registry = CollectorRegistry()
        registry.register(prometheus_collector(here.broker))
        text = generate_latest(registry).decode()
        assert set(here.broker.figures()) == set(FIGURES)
    for name in FIGURES:
        assert f"# HELP forelog_broker_{name}" in text
    assert f'forelog_broker_messages_received_total{{log="{tmp_path}/log"}} 1.0' in text
    assert f'forelog_broker_clients_connected{{log="{tmp_path}/log"}} 1.0' in text


# -- retention


def files(path: Path) -> list[str]:
    return sorted(found.name for found in (path / "messages").glob("*.dat"))


def fill(client, count=200, topic="a"):
    for i in range(count):
        client.publish(topic, b"%06d" % i + bytes(1000))
        if i % 8 == 7:
            client.flush()  # what is sent together is written together, and to one file
    client.flush()


def test_old_files_go_and_at_least_so_many_bytes_stay(tmp_path, caplog):
    limits = Limits(tail_bytes_max=10_000, retain_bytes=50_000, retain_interval_seconds=3600)
    with local(tmp_path / "log", file_bytes=10_000, limits=limits) as here:
        fill(here.client())
        before = files(tmp_path / "log")
        until(lambda: len(list((tmp_path / "log" / "messages").glob("*.topics"))) >= len(before) - 2)
        done = here.wait_for(here.broker.retention.look())
        after = files(tmp_path / "log")
        assert len(done.removed) == len(before) - len(after) > 5
        assert after == before[-len(after) :]
        sizes = [(tmp_path / "log" / "messages" / name).stat().st_size for name in after]
        assert 50_000 <= sum(sizes) < 50_000 + 40_000
        assert here.broker.retention.size == (len(after), sum(sizes))
        lists = {name.stem for name in (tmp_path / "log" / "messages").glob("*.topics")}
        assert lists <= {name.removesuffix(".dat") for name in after}, "their lists of topics are gone too"
        late = here.client()
        late.subscribe(["$replay/all/a"])
        first = late.receive(30).payload[:6]
        assert first > b"000000"
        assert caplog.records == []


def test_a_file_from_before_a_restart_is_read_for_what_was_written_before_it(tmp_path):
    limits = Limits(tail_bytes_max=1)
    with local(tmp_path / "log", file_bytes=10_000, limits=limits) as here:
        fill(here.client(), 1, "early")
    with local(tmp_path / "log", file_bytes=10_000, limits=limits) as here:
        fill(here.client(), 50, "late")
        until(lambda: list((tmp_path / "log" / "messages").glob("*.topics")))
        reader = here.client()
        reader.subscribe(["$replay/all/early"])
        assert reader.receive(30).topic == "early"


def test_the_last_file_is_not_read_for_topics_that_it_does_not_have(tmp_path, monkeypatch):
    with local(tmp_path / "log", limits=Limits(tail_bytes_max=1)) as here:
        fill(here.client(), 20)
        read = []
        monkeypatch.setattr(here.broker.history, "_stream", Watched(here.broker.stream, read))
        for wanted in ("b", "a"):
            reader = here.client()
            reader.subscribe([f"$replay/all/{wanted}"])
            until(lambda: here.do(lambda: all(cursor.live for cursor in here.broker.presence.cursors())))
            assert bool(read) == (wanted == "a")


class Watched:
    """A stream that notes each reading."""

    def __init__(self, stream: Stream, read: list[bool]) -> None:
        self._stream, self._read = stream, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def blocks(self, **options: Any) -> Any:
        self._read.append(True)
        return self._stream.blocks(**options)


def test_what_a_session_still_needs_stays_and_it_is_told_who_needs_it(tmp_path, caplog):
    limits = Limits(tail_bytes_max=10_000, retain_bytes=20_000, retain_interval_seconds=3600)
    with local(tmp_path / "log", file_bytes=10_000, limits=limits) as here:
        away = here.client(client_id="away", session_expiry=1000)
        away.subscribe(["a"])
        away.close()
        until(lambda: here.do(lambda: here.broker.store.sessions["away"].connection is None))
        fill(here.client())
        with caplog.at_level(logging.WARNING, "forelog"):
            done = here.wait_for(here.broker.retention.look())
            assert done.removed == []
            assert len(done.kept) > 5
            here.wait_for(here.broker.retention.look())
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1, "and told once"
        assert "the session of away is" in told[0]
        back = here.client(client_id="away", session_expiry=1000)
        assert [back.receive(30).payload[:6] for _ in range(200)] == [b"%06d" % i for i in range(200)]
        until(lambda: here.wait_for(here.broker.retention.needed())[0] is None)
        assert here.wait_for(here.broker.retention.look()).removed


def test_what_a_group_still_needs_stays(tmp_path):
    limits = Limits(tail_bytes_max=10_000, retain_bytes=20_000, retain_interval_seconds=3600)
    with local(tmp_path / "log", file_bytes=10_000, limits=limits) as here:
        away = here.client(client_id="away", session_expiry=1000)
        away.subscribe(["$share/g/a"])
        away.close()
        until(lambda: here.do(lambda: here.broker.store.sessions["away"].connection is None))
        fill(here.client())
        assert here.wait_for(here.broker.retention.look()).removed == []
        assert "group" in here.wait_for(here.broker.retention.needed())[1]


def test_if_told_so_it_goes_all_the_same_and_that_is_said(tmp_path, caplog):
    limits = Limits(tail_bytes_max=10_000, retain_bytes=20_000, retain_force=True, retain_interval_seconds=3600)
    with local(tmp_path / "log", file_bytes=10_000, limits=limits) as here:
        away = here.client(client_id="away", session_expiry=1000)
        away.subscribe(["a"])
        away.close()
        until(lambda: here.do(lambda: here.broker.store.sessions["away"].connection is None))
        fill(here.client())
        with caplog.at_level(logging.WARNING, "forelog"):
            done = here.wait_for(here.broker.retention.look())
        assert done.forced
        assert "they are lost" in caplog.text
        back = here.client(client_id="away", session_expiry=1000)
        rest = [back.receive(30).payload[:6]]
        while rest[-1] != b"000199":
            rest.append(back.receive(30).payload[:6])
        assert rest == [b"%06d" % i for i in range(200 - len(rest), 200)], "it gets all there is"


def test_a_file_that_is_written_to_for_long_is_finished_so_that_it_can_go(tmp_path):
    limits = Limits(retain_seconds=0.2, retain_interval_seconds=0.05)
    with local(tmp_path / "log", limits=limits, access=Access()) as here:
        client = here.client()
        client.subscribe(["a"])
        fill(client, 3)
        first = files(tmp_path / "log")
        assert [client.receive(30).payload[:6] for _ in range(3)] == [b"%06d" % i for i in range(3)]
        until(lambda: not set(first) & set(files(tmp_path / "log")))
        fill(client, 3)
        assert [client.receive(30).payload[:6] for _ in range(3)] == [b"%06d" % i for i in range(3)]
        here.broker.retention.limits = Limits()
        late = here.client()
        late.subscribe(["a"])
        fill(client, 1)
        assert late.receive(30).payload[:6] == b"000000"
