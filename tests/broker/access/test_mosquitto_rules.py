"""A rules file means here what it means to mosquitto: both brokers get the same file and the same clients."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from typing import Any

import pytest

from forelog.broker import Access
from forelog.broker.access.passwords import Password
from forelog.broker.mqtt.packets import MQTT_5_0, Publish
from tests.broker.local import free_port, local, until
from tests.broker.serving import answers
from tests.broker.talking import Talk

pytestmark = pytest.mark.skipif(shutil.which("mosquitto") is None, reason="mosquitto isn't installed")

USERS = ("ann", "bob", None)
IDS = ("c1", "c2", "ann", "a+b", "x#")
"""Without a slash: mosquitto would let one into a pattern."""
LEVELS = ("a", "b", "c1", "ann")
TOPICS = [f"{one}/{two}" for one in LEVELS for two in LEVELS] + list(LEVELS)


def users_text() -> str:
    lines = []
    for name in USERS:
        if name is not None:
            salt, cost = b"salt", (2, 8, 1)
            digest = hashlib.scrypt(name.encode(), salt=salt, n=2, r=8, p=1, dklen=32)
            lines.append(f"{name}:{Password(cost, salt, digest)}\n")
    return "".join(lines)


def some_filter(rng: random.Random, marks: tuple[str, ...] = ()) -> str:
    levels = [rng.choice((*LEVELS, "+", *marks)) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.4:
        levels[-1] = "#"
    return "/".join(levels)


def some_rules(rng: random.Random) -> str:
    lines = []
    for user in (None, "ann", "bob"):
        if user is not None:
            lines.append(f"user {user}")
        for _ in range(rng.randint(0, 4)):
            lines.append(f"topic {rng.choice(('', 'read ', 'write ', 'readwrite ', 'deny '))}{some_filter(rng)}")
    for _ in range(rng.randint(0, 3)):
        right = rng.choice(("read", "write", "readwrite", "deny"))
        lines.append(f"pattern {right} {some_filter(rng, ('%c', '%u'))}")
    return "\n".join(lines) + "\n"


class Mosquitto:
    """A broker with a rules file. A name counts without a password."""

    def __init__(self, folder, rules: str) -> None:
        self.port = free_port()
        self.rules_path, conf = folder / "rules", folder / "conf"
        self.rules_path.write_text(rules)
        user = "user root\n" if os.geteuid() == 0 else ""
        conf.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nacl_file {self.rules_path}\nlog_dest file "
            f"{folder}/said\nlog_type all\n{user}"
        )
        (folder / "said").touch()
        (folder / "said").chmod(0o666)
        self._said = folder / "said"
        self._process = subprocess.Popen(["mosquitto", "-c", str(conf)], stderr=subprocess.DEVNULL)
        until(lambda: answers(self.port))

    def reload(self, rules: str) -> None:
        self.rules_path.write_text(rules)
        before = self._said.read_text().count("Reloading config")
        self._process.send_signal(signal.SIGHUP)
        until(lambda: self._said.read_text().count("Reloading config") > before)
        with Talk(self.port) as talk:  # it reloads between two rounds of its loop
            talk.connect("reload-1")
        with Talk(self.port) as talk:
            talk.connect("reload-2")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Crowd:
    """The clients of one broker, who do what a plan says, and what came of it."""

    def __init__(self, port: int, who: list[tuple[str | None, str]]) -> None:
        self.talks = []
        for user, client_id in who:
            talk = Talk(port, MQTT_5_0)
            name: dict[str, Any] = {} if user is None else {"user_name": user, "password": user.encode()}
            assert talk.connect(client_id, **name).reason_code == 0
            self.talks.append(talk)
        self.got: list[set[tuple[str, bytes]]] = [set() for _ in who]
        self.granted: list[bool] = []

    def do(self, number: int, kind: str, name: str, payload: bytes) -> bool | None:
        talk = self.talks[number]
        if kind == "subscribe":
            self.granted.append(talk.subscribe(name)[0] < 0x80)
            return None
        return talk.publish(name, payload, 1, retain=kind == "retain") < 0x80

    def drain(self) -> list[set[tuple[str, bytes]]]:
        for talk, got in zip(self.talks, self.got, strict=True):
            got |= {(one.topic, one.payload) for one in talk.drain() if isinstance(one, Publish)}
        return self.got

    def close(self) -> None:
        for talk in self.talks:
            talk.close()


@pytest.mark.parametrize("seed", range(12))
def test_the_same_rules_give_the_same_rights(tmp_path, seed):
    rng = random.Random(seed)
    rules = some_rules(rng)
    (tmp_path / "m").mkdir()
    (tmp_path / "users").write_text(users_text())
    (tmp_path / "rules").write_text(rules)
    access = Access(users=str(tmp_path / "users"), rules=str(tmp_path / "rules"), anonymous=True)
    theirs = Mosquitto(tmp_path / "m", rules)
    try:
        with local(tmp_path / "log", access=access) as here:
            compare(rng, here, theirs, tmp_path / "rules", rules)
    finally:
        theirs.close()


def compare(rng, here, theirs, path, rules):
    who = [(rng.choice(USERS), client_id) for client_id in IDS]
    both = [Crowd(port, who) for port in (here.port, theirs.port)]
    try:
        for step in range(80):
            if step == 40:
                rules = some_rules(rng)
                path.write_text(rules)
                here.do(here.broker.reload)
                theirs.reload(rules)
            number, kind = rng.randrange(len(who)), rng.choice(("subscribe", "publish", "publish", "retain"))
            name = some_filter(rng) if kind == "subscribe" else rng.choice(TOPICS)
            found = [crowd.do(number, kind, name, b"%d" % step) for crowd in both]
            assert found[0] == found[1], f"{who[number]} {kind} {name}\n{rules}"
            mine, other = (crowd.drain() for crowd in both)
            if kind == "subscribe" and not both[0].granted[-1]:
                # Mosquitto grants what can get nothing. Nothing comes of it until the rules change.
                both[1].talks[number].unsubscribe(name)
            assert mine == other, f"{who}\nafter {who[number]} {kind} {name}\n{rules}"
    finally:
        for crowd in both:
            crowd.close()


@pytest.mark.parametrize(
    "line", ["topic dney a", "topic a b", "tpoic a", "user", "topic read a/#/b", "topic READ a"]
)
def test_what_mosquitto_refuses_is_refused_here(tmp_path, line):
    from forelog.errors import BadAccessFile

    (tmp_path / "rules").write_text(f"{line}\n")
    with pytest.raises(BadAccessFile, match="rules, line 1: "):
        Access(rules=str(tmp_path / "rules"))
    (tmp_path / "conf").write_text(f"listener {free_port()} 127.0.0.1\nacl_file {tmp_path}/rules\n")
    process = subprocess.Popen(
        ["mosquitto", "-c", str(tmp_path / "conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() not in (0, -signal.SIGKILL)
