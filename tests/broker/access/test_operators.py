"""What an operator reads of a broker with its defaults: lines that can be searched for, and no secrets."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from websockets.sync.client import connect as connect_web
from websockets.typing import Subprotocol

from forelog.broker import Access
from forelog.broker.access.passwords import change_password
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import MQTT_5_0, Connect, Publish, Will
from forelog.cli.aside import Aside
from tests.broker.local import local, until
from tests.broker.talking import Talk
from tests.broker.test_broker_command import Serving, broker, serving

SECRET = b"hunter2-is-a-secret"
RULES = "user ann\ntopic a/#\n"


@pytest.fixture
def files(tmp_path):
    change_password(str(tmp_path / "users"), "ann", SECRET)
    change_password(str(tmp_path / "users"), "bob", b"other")
    (tmp_path / "rules").write_text(RULES)
    return "--users", tmp_path / "users", "--acl", tmp_path / "rules"


def ann(port: int, client_id: str = "watch", version: int = MQTT_5_0, **more) -> Talk:
    talk = Talk(port, version)
    talk.connect(client_id, user_name="ann", password=more.pop("password", SECRET), **more)
    return talk


def lines_of(said: str, event: str) -> list[str]:
    return re.findall(rf"^\S+Z \w+ broker: {event} (.*)$", said, re.MULTILINE)


def test_every_line_names_who_from_where_and_why(tmp_path, files):
    with serving(tmp_path / "log", *files) as here:
        talk = ann(here.port)
        place = f"127.0.0.1:{talk.socket.getsockname()[1]}"
        talk.publish("secret/x", b"", 1)
        talk.publish("$SYS/x", b"", 1)
        talk.subscribe("b/#")
        talk.disconnect()
        ann(here.port, "other").close()
        ann(here.port, password=b"wrong").close()
        ann(here.port, will=Will("b", b"")).close()
        with Talk(here.port) as taken, Talk(here.port) as thief:
            taken.connect("mine", user_name="ann", password=SECRET)
            thief.connect("mine", user_name="bob", password=b"other")
        with Talk(here.port) as nonsense:
            nonsense.raw(b"GET / HTTP/1.1\r\n\r\n")
            assert nonsense.end() is None
        here.wait_for(lambda: len(lines_of(here.said, "disconnected")) == 3)
        here.wait_for(lambda: len(lines_of(here.said, "connect refused")) == 2)
        here.stop()
        said = here.said
    who = f"from={place} client=watch user=ann"
    assert lines_of(said, "connected")[0] == f"{who} version=5 session=new expiry=0 keep_alive=0"
    assert lines_of(said, "publish refused") == [
        f'{who} topic=secret/x reason="not authorized"',
        f'{who} topic=$SYS/x reason="topic name invalid"',
    ]
    assert lines_of(said, "subscribe refused") == [f'{who} filter=b/# reason="not authorized"']
    assert re.fullmatch(rf"{re.escape(who)} seconds=\d+\.\d reason=disconnect", lines_of(said, "disconnected")[0])
    assert "client=other user=ann seconds=" in lines_of(said, "disconnected")[1]
    assert 'reason="connection lost' in lines_of(said, "disconnected")[1]
    assert "client=watch user=ann" in lines_of(said, "login refused")[0]
    assert "bad user name or password" in lines_of(said, "login refused")[0]
    assert "client=mine user=bob" in lines_of(said, "takeover refused")[0]
    refused = lines_of(said, "connect refused")
    assert "its will may not be published" in refused[0]
    assert "client=- user=-" in refused[1]
    assert SECRET.decode() not in said


def test_a_client_cant_write_lines_of_its_own(tmp_path, files):
    forged = "x\n2026-11-18T00:00:00.000Z INFO broker: connected from=1.2.3.4:5 user=root\x1b[2J"
    with serving(tmp_path / "log", *files) as here:
        with ann(here.port, forged) as talk:
            talk.publish("b/\u2028" + "x" * 60_000, b"", 1)
        here.wait_for(lambda: "disconnected" in here.said)
        said = here.said
    assert len(re.findall(r"^\S+Z INFO broker: connected ", said, re.MULTILINE)) == 1
    assert "\x1b" not in said
    assert "\u2028" not in said
    assert max(len(line) for line in said.split("\n")) < 1000


def test_a_flood_is_a_few_lines_and_a_count(tmp_path, files):
    with serving(tmp_path / "log", *files) as here:
        with ann(here.port) as talk:
            for number in range(1000):
                talk.send(Publish(f"b/{number}", b"", 0))
            talk.drain()
        here.process.send_signal(signal.SIGTERM)
        here.wait_for(lambda: " more from=" in here.said)
        said = here.said
    lines = said.count("publish refused from=")
    assert lines <= 45
    left_out = re.findall(r"publish refused and (\d+) more from=127\.0\.0\.1", said)
    assert sum(map(int, left_out)) + lines == 1000


@pytest.mark.parametrize("flags", [[], ["-v"]])
def test_no_secret_is_logged_over_websockets_at_any_level(tmp_path, files, flags):
    command = [
        sys.executable,
        "-X",
        "dev",
        "-m",
        "forelog",
        *flags,
        "broker",
        "serve",
        "--log",
        str(tmp_path / "log"),
    ]
    command += [*map(str, files), "--listen-ws", "127.0.0.1:0"]
    here = Serving.__new__(Serving)
    here.said = ""
    environment = {**os.environ, "PYTHONASYNCIODEBUG": "1"}
    here.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        here.wait_for(lambda: "serving MQTT over WebSockets" in here.said)
        port = int(re.findall(r"at 127\.0\.0\.1:(\d+)", here.said)[0])
        for password in (SECRET, SECRET + b"-wrong"):
            with connect_web(
                f"ws://127.0.0.1:{port}/mqtt", subprotocols=[Subprotocol("mqtt")], compression=None
            ) as ws:
                connect = Connect("c", MQTT_5_0, user_name="ann", password=password)
                ws.send(encode(connect, MQTT_5_0, from_server=False))
                ws.recv(timeout=30)
        here.wait_for(lambda: "broker: login refused" in here.said)
        here.stop(signal.SIGTERM)
    finally:
        here.close()
    assert "broker: connected" in here.said
    assert "broker: login refused" in here.said
    assert SECRET.decode() not in here.said
    assert SECRET.hex() not in here.said.replace(" ", "")


def test_a_packets_repr_has_no_secret():
    shown = repr(Connect("c", user_name="ann", password=SECRET, properties={"authentication_data": SECRET}))
    assert "ann" in shown
    assert SECRET.decode() not in shown


def test_refusals_are_counted_for_metrics_and_system_topics(tmp_path, files):
    access = Access(users=str(files[1]), rules=str(files[3]))
    with local(tmp_path / "log", access=access) as here:
        with ann(here.port) as talk:
            talk.publish("b", b"", 1)
            talk.subscribe("b", "c")
        ann(here.port, password=b"no").close()
        found = here.do(lambda: here.broker.figures())
        assert {name: count for name, count in found.items() if name.startswith("refused_")} == {
            "refused_logins": 1,
            "refused_connects": 0,
            "refused_takeovers": 0,
            "refused_publishes": 1,
            "refused_subscriptions": 2,
            "refused_wills": 0,
        }
        here.do(here.broker.system.publish)
        (value,) = here.do(lambda: here.broker.system.retained("$SYS/broker/refused/publishes"))
        assert value.payload == b"1"


def test_a_server_waits_for_nobody_who_reads_its_lines():
    room = threading.Event()
    written = []

    class Stuck(logging.Handler):
        def emit(self, record):
            room.wait(60)
            written.append(record.getMessage())

    logger = logging.Logger("test")
    handler = Aside(Stuck(), lines_max=10)
    logger.addHandler(handler)
    for number in range(100):
        logger.info("%d", number)
    room.set()
    until(lambda: len(written) >= 10)
    logger.info("again")
    handler.close()
    assert written[:3] == ["0", "1", "2"]
    dropped = next(line for line in written if "dropped" in line)
    assert int(dropped.split()[0]) + len(written) - 2 == 100
    assert written[-1] == "again"


def test_sessions_are_shown_with_their_user_and_without_control_characters(tmp_path, files):
    with serving(tmp_path / "log", *files) as here:
        ann(here.port, "x\x1b[2J\ny", clean=False, expiry=100).close()
        here.wait_for(lambda: "disconnected" in here.said)
        here.stop()
    said = broker("sessions", tmp_path / "log")
    assert '"x\\x1b[2J\\ny"  ann ' in said.stdout, said.stderr
    assert len(said.stdout.splitlines()) == 3
