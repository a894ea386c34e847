"""`forelog broker`, as a person runs it: processes, signals, files, and other people's clients."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pty
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from forelog.broker.access.passwords import change_password, read_users
from forelog.cli.broker import SUBCOMMANDS, subparser
from forelog.times import parse_time
from tests.broker.local import Paho, certificate, free_port, local, until
from tests.children import child

PLACE = re.compile(r"serving (.+) at (?:http://)?127\.0\.0\.1:(\d+)")
COMMAND = [sys.executable, "-m", "forelog", "broker"]


class Serving:
    """A broker in a process of its own."""

    def __init__(self, log: Path, *flags: str | Path, places: int = 1) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            [*COMMAND, "serve", "--log", str(log), *map(str, flags)], stderr=subprocess.PIPE, text=True
        )
        self.wait_for(lambda: len(PLACE.findall(self.said)) >= places)
        self.ports = {what: int(port) for what, port in PLACE.findall(self.said)}

    @property
    def port(self) -> int:
        return self.ports["MQTT"]

    def wait_for(self, condition) -> None:
        """Read what it says until something is true."""
        assert self.process.stderr is not None
        while not condition():
            line = self.process.stderr.readline()
            assert line, f"it ended with {self.process.wait()}: {self.said}"
            self.said += line

    def stop(self, number: int = signal.SIGTERM) -> str:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        self.said += rest
        return self.said

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


@contextlib.contextmanager
def serving(log: Path, *flags: str | Path, places: int = 1) -> Iterator[Serving]:
    if not any(str(flag).startswith("--listen") for flag in flags):
        flags = (*flags, "--listen", "127.0.0.1:0")
    found = Serving(log, *flags, places=places)
    try:
        yield found
    finally:
        found.close()


def broker(*words: object, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def done(*words: object, stdin: str = "", **environment: str) -> str:
    result = broker(*words, stdin=stdin, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


# -- serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_says_where_it_serves_and_stops_in_order(tmp_path, number):
    with serving(tmp_path / "log") as here:
        done("pub", "a", "1", "--retain", "--server", f"127.0.0.1:{here.port}")
        said = here.stop(number)
        assert "stopped: everything is written" in said
        assert here.process.returncode == 0
    with serving(tmp_path / "log") as here:
        assert "0 sessions, 1 retained message" in here.said
        assert done("sub", "#", "--count", 1, "--server", f"127.0.0.1:{here.port}") == "a 1\n"


def test_a_broker_that_is_killed_has_everything_that_it_acknowledged(tmp_path):
    with serving(tmp_path / "log", "--sync", "always") as here:
        server = f"127.0.0.1:{here.port}"
        done("sub", "a", "--session", "1h", "--client-id", "me", "--wait", "0", "--server", server)
        done("pub", "a", "--server", server, stdin="".join(f"{i}\n" for i in range(1000)))
        here.process.kill()
        here.process.wait()
    with serving(tmp_path / "log") as here:
        assert "1 session, " in here.said
        command = ("sub", "a", "--session", "1h", "--client-id", "me", "--count", 1000)
        lines = done(*command, "--server", f"127.0.0.1:{here.port}").splitlines()
        assert lines == [f"a {i}" for i in range(1000)]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--sync", "sometimes"], "invalid choice"),
        (["--listen", "nowhere"], "isn't an address"),
        (["--listen-tls", "127.0.0.1:0"], "need --tls-cert"),
        (["--tls-cert", "x"], "go together"),
        (["--tls-cert", "x", "--tls-key", "y"], "say where"),
        (["--tls-cert", "x", "--tls-key", "y", "--listen-tls", "127.0.0.1:0"], "No such file"),
        (["--users", "missing"], "missing: No such file"),
        (["--acl", "bad.acl"], "bad.acl, line 2"),
        (["--users", "bad.acl"], "bad.acl, line 1"),
        (["--retain-age", "long"], "long"),
        (["--max-clients", "0"], "at least one"),
    ],
)
def test_flags_that_make_no_sense_are_told(tmp_path, monkeypatch, flags, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.acl").write_text("user ann\ntopics all\n")
    result = broker("serve", "--log", "log", *flags)
    assert result.returncode == 2, result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_a_log_that_cant_be_written_or_is_in_use_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    result = broker("serve", "--log", tmp_path / "file" / "log", "--listen", "127.0.0.1:0")
    assert result.returncode == 6
    assert "Not a directory" in result.stderr
    with serving(tmp_path / "log"):
        result = broker("serve", "--log", tmp_path / "log", "--listen", "127.0.0.1:0")
        assert result.returncode == 5
        assert "another broker has the log" in result.stderr


def test_an_address_that_is_taken_or_not_ours_is_told(tmp_path):
    result = broker("serve", "--log", tmp_path / "one", "--listen", "192.0.2.1:1")
    assert (result.returncode, "192.0.2.1" in result.stderr) == (6, True)
    with serving(tmp_path / "one") as here:
        result = broker("serve", "--log", tmp_path / "two", "--listen", f"127.0.0.1:{here.port}")
        assert result.returncode == 6
        assert "in use" in result.stderr


def test_every_way_in_at_once(tmp_path):
    crt, key = certificate(tmp_path)
    kinds = ("--listen", "--listen-tls", "--listen-ws", "--listen-wss")
    flags = [word for kind in kinds for word in (kind, "127.0.0.1:0")]
    with serving(tmp_path / "log", *flags, "--tls-cert", crt, "--tls-key", key, places=4) as here:
        trusting = ssl.create_default_context(cafile=str(crt))
        clients = [
            Paho(here.ports["MQTT"]),
            Paho(here.ports["MQTT over TLS"], tls=trusting),
            Paho(here.ports["MQTT over WebSockets"], transport="websockets", path="/mqtt"),
            Paho(here.ports["MQTT over WebSockets and TLS"], transport="websockets", path="/mqtt", tls=trusting),
        ]
        for client in clients:
            client.subscribe("a")
        for number, client in enumerate(clients):
            client.publish("a", b"%d" % number)
        until(lambda: all(len(client.messages) == 4 for client in clients))
        for client in clients:
            client.close()
        server = f"localhost:{here.ports['MQTT over TLS']}"
        done("pub", "a", "x", "--server", server, "--tls-ca", crt)
        assert broker("pub", "a", "x", "--server", server, "--tls").returncode == 8, "nobody signed it"


def test_users_rules_and_reading_them_again(tmp_path):
    users, acl = tmp_path / "users", tmp_path / "acl"
    done("passwd", users, "ann", stdin="ann's\n")
    acl.write_text("user ann\ntopic read a\n")
    with serving(tmp_path / "log", "--users", users, "--acl", acl) as here:
        server = ("--server", f"127.0.0.1:{here.port}")
        assert broker("sub", "a", "--wait", 0, *server).returncode == 7
        ann = {"MQTT_PASSWORD": "ann's"}
        done("sub", "a", "--wait", 0, *server, "--user", "ann", **ann)
        refused = broker("sub", "b", "--wait", 0, *server, "--user", "ann", **ann)
        assert refused.returncode == 7
        assert "the subscription to b: not authorized" in refused.stderr
        acl.write_text("user ann\ntopic read b\n")
        here.process.send_signal(signal.SIGHUP)
        here.wait_for(lambda: "read again" in here.said)
        done("sub", "b", "--wait", 0, *server, "--user", "ann", **ann)
        acl.write_text("user ann\nnonsense\n")
        here.process.send_signal(signal.SIGHUP)
        here.wait_for(lambda: "stays as it was" in here.said)
        assert "acl, line 2" in here.said
        done("sub", "b", "--wait", 0, *server, "--user", "ann", **ann)
        (tmp_path / "password").write_text("wrong\n")
        wrong = broker("sub", "b", *server, "--user", "ann", "--password-file", tmp_path / "password")
        assert wrong.returncode == 7


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "only clients of this machine may come in"),
        (["--allow-anonymous"], "anyone who reaches this machine"),
        (["--users", "users"], "passwords travel"),
    ],
)
def test_what_others_could_do_is_told(tmp_path, monkeypatch, flags, told):
    monkeypatch.chdir(tmp_path)
    change_password("users", "ann", b"x")
    found = subprocess.Popen(
        [*COMMAND, "serve", "--log", "log", "--listen", "0.0.0.0:0", *flags], stderr=subprocess.PIPE, text=True
    )
    try:
        assert told in found.stderr.readline()
    finally:
        found.terminate()
        found.communicate(timeout=60)


def test_metrics_are_served(tmp_path):
    with serving(tmp_path / "log", "--metrics", "127.0.0.1:0", places=2) as here:
        done("pub", "a", "1", "--server", f"127.0.0.1:{here.port}")
        with urllib.request.urlopen(f"http://127.0.0.1:{here.ports['metrics']}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    assert re.search(r"^forelog_broker_messages_received_total\{.*\} 1\.0$", text, re.MULTILINE)
    assert re.search(r"^forelog_records_appended_total\{.*\} 1\.0$", text, re.MULTILINE)


# -- pub and sub


def test_messages_to_and_from_a_terminal(tmp_path):
    with serving(tmp_path / "log") as here:
        server = {"MQTT_SERVER": f"127.0.0.1:{here.port}"}
        told = json.loads(done("pub", "a/b", "--json", stdin="one\ntwo\n", **server))
        assert told == {"topic": "a/b", "messages": 2, "qos": 1}
        done("pub", "a/c", "", "--retain", "-q", 2, **server)
        assert done("sub", "a/+", "--since", "-15m", "--count", 3, **server) == "a/b one\na/b two\na/c \n"
        assert done("sub", "a/b", "--since", "all", "--count", 1, **server) == "a/b one\n"
        shown = json.loads(done("sub", "a/b", "--since", "all", "--count", 1, "--json", **server))
        assert parse_time(shown["logged"]) < parse_time(shown["time"])
        done("pub", "kept", "x", "--retain", "--expiry", "1h", **server)
        shown = json.loads(done("sub", "kept", "--json", "--count", 1, "-q", 2, **server))
        assert (shown["topic"], shown["payload"], shown["retain"]) == ("kept", "x", True)
        assert shown["properties"]["message_expiry_interval"] <= 3600
        assert done("sub", "kept", "--no-retained", "--wait", "0.1", **server) == ""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["pub", "a/#", "x"], 2, "isn't a topic"),
        (["sub", "a/#/b"], 2, "can't be used"),
        (["sub", "a", "--since", "yesterday"], 2, "yesterday"),
        (["sub", "a", "--session", "1h"], 2, "--client-id"),
        (["sub", "a", "--server", "nowhere"], 2, "isn't an address"),
        (["sub", "a", "--password-file", "x"], 2, "--user"),
        (["pub", "$SYS/x", "y"], 7, "topic name invalid"),
        (["fly"], 2, "there is no 'fly'"),
    ],
)
def test_what_cant_be_done_is_told(tmp_path, words, code, told):
    with serving(tmp_path / "log") as here:
        result = broker(*words, MQTT_SERVER=f"127.0.0.1:{here.port}")
    assert result.returncode == code, result.stderr
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_where_no_broker_is_it_is_told(tmp_path):
    result = broker("pub", "a", "x", "--server", f"127.0.0.1:{free_port()}")
    assert result.returncode == 8
    assert "no broker at 127.0.0.1" in result.stderr


def test_a_broker_that_goes_away_is_told(tmp_path):
    with serving(tmp_path / "log") as here:
        done("pub", "a", "x", "--retain", "--server", f"127.0.0.1:{here.port}")
        command = [*COMMAND, "sub", "a", "--server", f"127.0.0.1:{here.port}"]
        with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as listening:
            assert listening.stdout.readline() == "a x\n"
            here.stop()
            _, told = listening.communicate(timeout=60)
    assert listening.returncode == 7
    assert "server shutting down" in told


# -- sessions, top, passwd


def test_sessions_are_read_from_the_files_with_and_without_a_broker(tmp_path):
    log = tmp_path / "log"
    with serving(log) as here:
        server = ("--server", f"127.0.0.1:{here.port}")
        done("sub", "a", "$share/g/b", "--session", "1h", "--client-id", "me", "--wait", "0", *server)
        done("sub", "c", "--session", "30d", "--client-id", "other", "--wait", "0", *server)
        done("pub", "a", "x" * 1000, "--retain", *server)
        while_it_runs = done("sessions", log)
        here.process.kill()
        here.process.wait()
    text = done("sessions", log)
    assert "2 sessions, 1 retained message" in text
    assert while_it_runs.splitlines()[0] == text.splitlines()[0]
    rows = [json.loads(line) for line in done("sessions", log, "--json").splitlines()]
    by_id = {row["client_id"]: row for row in rows}
    assert by_id["me"]["subscriptions"] == ["$share/g/b", "a"]
    assert by_id["me"]["expiry_seconds"] == 3600
    assert by_id["me"]["away_since"] is not None
    assert by_id["me"]["lag_bytes"] > 1000
    assert len(done("sessions", log, "--json", "--limit", 1).splitlines()) == 1


def test_where_no_broker_was_there_are_no_sessions(tmp_path):
    result = broker("sessions", tmp_path)
    assert result.returncode == 3, result.stderr


def test_top_shows_a_broker_as_it_changes(tmp_path):
    with serving(tmp_path / "log", "--sys-interval", "0.5") as here:
        server = ("--server", f"127.0.0.1:{here.port}")
        done("pub", "a", *server, stdin="x\n" * 100)
        text = done("top", "--once", *server)
        assert "messages received" in text
        assert "clients" in text
        with child([*COMMAND, "top", "--json", *server], stdout=subprocess.PIPE) as found:
            seen = [json.loads(found.stdout.readline()) for _ in range(3)]
            found.send_signal(signal.SIGINT)
            assert found.wait(60) == 0
        assert seen[-1]["values"]["messages/received"] == "100"
        assert seen[-1]["per_second"]["messages/received"] == 0


def test_a_broker_without_values_is_told(tmp_path):
    with serving(tmp_path / "log", "--sys-interval", "0") as here:
        result = broker("top", "--once", "--wait", "0.2", "--server", f"127.0.0.1:{here.port}")
    assert result.returncode == 8
    assert "no $SYS values" in result.stderr


def test_passwords_from_standard_input_and_from_a_terminal(tmp_path):
    users = tmp_path / "users"
    assert json.loads(done("passwd", users, "ann", "--json", stdin="one\n"))["done"] == "added"
    assert "changed" in broker("passwd", users, "ann", stdin="two\n").stderr
    assert read_users(str(users))["ann"].is_of(b"two")
    master, slave = pty.openpty()
    try:
        with child(
            [*COMMAND, "passwd", str(users), "bob"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        ) as found:
            said = b""
            for prompt in (b"password: ", b"again: "):
                while prompt not in said:
                    said += os.read(master, 1000)
                os.write(master, b"typed\n")
            assert found.wait(60) == 0
    finally:
        os.close(master)
        os.close(slave)
    assert read_users(str(users))["bob"].is_of(b"typed")
    done("passwd", users, "bob", "--delete")
    assert set(read_users(str(users))) == {"ann"}
    for words in ((users, "bob", "--delete"), (users, "a:b"), (users, "anonymous"), (users, "ann")):
        assert broker("passwd", *words).returncode == 2


# -- other people's clients


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.parametrize("version", ["311", "5"])
@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_mosquittos_clients_with_a_password(tmp_path, version, secure):
    users = tmp_path / "users"
    change_password(str(users), "ann", b"secret")
    crt, key = certificate(tmp_path)
    flags: list[str | Path] = ["--listen", "127.0.0.1:0", "--users", users]
    if secure:
        flags += ["--listen-tls", "127.0.0.1:0", "--tls-cert", crt, "--tls-key", key]
    with serving(tmp_path / "log", *flags, places=1 + secure) as here:
        port = here.ports["MQTT over TLS" if secure else "MQTT"]
        common = ["-h", "localhost" if secure else "127.0.0.1", "-p", str(port), "-V", version]
        common += ["-u", "ann", "-P", "secret", *(["--cafile", str(crt)] if secure else [])]
        subprocess.run(
            ["mosquitto_pub", *common, "-t", "a/b", "-m", "hello", "-q", "1", "-r"], check=True, timeout=60
        )
        found = subprocess.run(
            ["mosquitto_sub", *common, "-t", "a/#", "-C", "1", "-v", "-q", "2"],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert found.stdout == "a/b hello\n"
        common[common.index("secret")] = "wrong"
        refused = subprocess.run(["mosquitto_pub", *common, "-t", "a", "-m", "x"], capture_output=True, timeout=60)
        assert refused.returncode != 0


# -- the docs


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_option_of_a_subcommand_is_described(name):
    root = Path(__file__).parents[2] / "docs"
    page = "broker.md" if name == "serve" else "cli.md"
    text = (root / page).read_text()
    if name != "serve":
        text = text.partition("\n## forelog broker\n")[2].partition("\n## ")[0]
    for action in subparser(name)._actions:
        assert action.help, action.dest
        if action.dest in ("help", "json", "verbose"):
            continue
        shown = action.option_strings[-1] if action.option_strings else str(action.metavar)
        assert re.search(rf"`[^`]*{re.escape(shown)}\b", text), f"{page} doesn't describe {shown} of {name}"


def test_who_comes_and_goes_is_logged_with_fields(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "forelog"), local(tmp_path / "log") as here:
        here.client(client_id="me").close()
        until(lambda: any("disconnected" in record.getMessage() for record in caplog.records))
    came = next(record for record in caplog.records if "broker: connected" in record.getMessage())
    assert came.event == "connected"
    assert came.fields["client"] == "me"
    assert came.fields["from"].startswith("127.0.0.1:")
