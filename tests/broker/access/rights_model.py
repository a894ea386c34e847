"""Rights as a model: random users, rules, reloads, takeovers, subscriptions, wills, kills and restarts.

A broker is driven step by step. A model says after each step what each client may have got, by the rules of that
moment, and what it must have got: no payload ever reaches a client that the rules forbid when it is sent, and
everything that they allow arrives.

    python -m tests.broker.access.rights_model [--seeds 200] [--first 0] [--steps 150]
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forelog.broker import Access
from forelog.broker.access.passwords import Password
from forelog.broker.mqtt.packets import Properties, Puback, Publish, Will
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.local import Local, until
from tests.broker.talking import Closed, Talk

USERS = ("ann", "bob", "eve")
IDS = ("c1", "c2", "ann", "c4", "x+y")
LEVELS = ("a", "b", "c1", "ann")
TOPICS = [f"{one}/{two}" for one in LEVELS for two in LEVELS[:2]]
WAIT_SECONDS = 60.0
LATER = 10_000
"""Seconds: of a will that only comes with the end of its session, and of sessions that last."""


# -- what rules mean, said once more


def fits(name: str, topic: str) -> bool:
    """Whether a filter matches a topic."""
    wanted, given = name.split("/"), topic.split("/")
    for number, level in enumerate(wanted):
        if level == "#":
            return True
        if number >= len(given) or level not in ("+", given[number]):
            return False
    return len(wanted) == len(given)


@dataclass
class Law:
    """The rules and users of a moment."""

    users: frozenset[str]
    own: dict[str | None, list[tuple[str, str]]]
    patterns: list[tuple[str, str]]

    def allows(self, user: str | None, client_id: str, topic: str, right: str) -> bool:
        if user == "root":
            return True
        if user is not None and user not in self.users:
            return False
        filled = []
        if "+" not in client_id:
            for access, name in self.patterns:
                if "%u" not in name or user is not None:
                    filled.append((access, name.replace("%c", client_id).replace("%u", user or "")))
        for lines in (self.own.get(user, []), filled):
            found = [access for access, name in lines if fits(name, topic)]
            if "deny" in found:
                return False
            if right in found or "readwrite" in found:
                return True
        return False

    def text(self) -> str:
        lines = []
        for user in (None, *USERS):
            lines += [] if user is None else [f"user {user}"]
            lines += [f"topic {access} {name}" for access, name in self.own.get(user, [])]
        lines += ["user root", "topic #"]
        lines += [f"pattern {access} {name}" for access, name in self.patterns]
        return "\n".join(lines) + "\n"

    def users_text(self) -> str:
        lines = []
        for name in (*sorted(self.users), "root"):
            digest = hashlib.scrypt(name.encode(), salt=b"salt", n=2, r=8, p=1, dklen=32)
            lines.append(f"{name}:{Password((2, 8, 1), b'salt', digest)}\n")
        return "".join(lines)


def some_filter(rng: random.Random, marks: tuple[str, ...] = (), *, broad: float = 0.2) -> str:
    levels = [rng.choice((*LEVELS, "+", *marks)), rng.choice((*LEVELS, "+", "#", *marks))]
    return rng.choice(("#", "+/a", "+/+")) if rng.random() < broad else "/".join(levels)


def some_law(rng: random.Random) -> Law:
    access = ("read", "write", "readwrite", "readwrite", "deny")
    own: dict[str | None, list[tuple[str, str]]] = {}
    for user in (None, *USERS):
        own[user] = [(rng.choice(access), some_filter(rng)) for _ in range(rng.randint(0, 4))]
        if rng.random() < 0.6:
            own[user].append(("readwrite", rng.choice(("#", "+/a", "a/#"))))
    patterns = [(rng.choice(access), some_filter(rng, ("%c", "%u"))) for _ in range(rng.randint(0, 2))]
    return Law(frozenset(name for name in USERS if rng.random() < 0.85), own, patterns)


# -- what the broker should know


@dataclass
class Message:
    topic: str
    payload: bytes
    law: int = -1
    """The number of the law under which it was published, if it was."""


@dataclass
class Client:
    """A connection."""

    user: str | None
    client_id: str
    talk: Talk
    lazy: bool
    """Whether it acknowledges nothing, so that things wait for it."""
    will: Message | None = None
    delays: bool = False
    """Whether it asked for its will to wait."""
    will_later: bool = False
    """Whether its will waits for the end of its session."""
    law: int = 0
    """The law of when it was last seen to have nothing more."""
    got: set[bytes] = field(default_factory=set)
    unacknowledged: list[int] = field(default_factory=list)


@dataclass
class Session:
    owner: str | None
    lasts: bool
    client: Client | None = None
    plain: set[str] = field(default_factory=set)
    replays: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    waits: set[bytes] = field(default_factory=set)
    """Payloads that came while its client was away."""
    exact: bool = True
    """Whether it is known what it gets: nothing of it ever waited for a client that didn't acknowledge."""
    will: tuple[str | None, Message] | None = None
    """One that comes when the session ends, and whose it is."""

    def wants(self, topic: str) -> bool:
        return any(fits(name, topic) for name in self.plain | self.replays)


class Model:
    """A broker and its clients, and what should be."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.laws = [some_law(self.rng)]
        self.messages: list[Message] = []
        self.by_payload: dict[bytes, Message] = {}
        self.retained: dict[str, Message] = {}
        self.sessions: dict[str, Session] = {}
        self.done: list[str] = []
        self.checked = 0
        self.write_files()
        self.here = self.start()
        self.root = self.connected("root", "root")

    # -- the broker

    @property
    def law(self) -> Law:
        return self.laws[-1]

    def write_files(self) -> None:
        (self.folder / "rules").write_text(self.law.text())
        (self.folder / "users").write_text(self.law.users_text())

    def start(self) -> Local:
        users, rules = str(self.folder / "users"), str(self.folder / "rules")
        return Local(self.folder / "log", access=Access(users=users, rules=rules, anonymous=True))

    def connected(self, user: str | None, client_id: str, **more) -> Talk:
        talk = Talk(self.here.port)
        named: dict[str, Any] = {} if user is None else {"user_name": user, "password": user.encode()}
        talk.connect(client_id, **named, **more)
        return talk

    def close(self) -> None:
        self.root.close()
        for session in self.sessions.values():
            if session.client is not None:
                session.client.talk.close()
        self.here.close()

    def here_now(self) -> list[tuple[str, Session, Client]]:
        return [(name, one, one.client) for name, one in self.sessions.items() if one.client is not None]

    # -- messages

    def message(self, topic: str) -> Message:
        found = Message(topic, b"%d" % len(self.by_payload))
        self.by_payload[found.payload] = found
        return found

    def published(self, message: Message, *, retain: bool = False) -> None:
        """It is in the log: who gets it, now or later."""
        message.law = len(self.laws) - 1
        self.messages.append(message)
        if retain:
            self.retained[message.topic] = message
        for session in self.sessions.values():
            if session.wants(message.topic):
                session.waits.add(message.payload)

    # -- after each step

    def settle(self) -> None:
        """Read what has come, and wait for what has to come."""
        must: dict[str, set[bytes]] = {}
        for name, session, client in self.here_now():
            if session.exact:
                topics = {payload: self.by_payload[payload].topic for payload in session.waits}
                must[name] = {
                    payload
                    for payload, topic in topics.items()
                    if self.law.allows(client.user, client.client_id, topic, "read")
                }
            session.waits.clear()
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            for _, _, client in self.here_now():
                self.look(client)
            missing = {
                name: must[name] - client.got
                for name, _, client in self.here_now()
                if must.get(name, set()) - client.got
            }
            if not missing:
                break
            assert time.monotonic() < deadline, f"what is allowed hasn't arrived: {missing}\n{self.story()}"
        for _, _, client in self.here_now():
            client.law = len(self.laws) - 1

    def look(self, client: Client) -> None:
        """What a client gets must be allowed by a law that held since it was last looked at."""
        for packet in client.talk.drain():
            if not isinstance(packet, Publish):
                continue
            message = self.by_payload[packet.payload]
            assert message.law >= 0, f"{packet} should never have been published\n{self.story()}"
            first = max(message.law, client.law)
            allowed = any(
                law.allows(client.user, client.client_id, message.topic, "read") for law in self.laws[first:]
            )
            assert allowed, (
                f"{client.user} as {client.client_id} got {packet} by law {first}\n"
                f"{self.laws[first].text()}\n{self.story()}"
            )
            self.checked += 1
            client.got.add(packet.payload)
            if packet.qos:
                client.unacknowledged.append(packet.packet_id)
        if not client.lazy:
            self.acknowledge(client)

    def acknowledge(self, client: Client) -> None:
        client.talk.send(*(Puback(packet_id) for packet_id in client.unacknowledged))
        client.unacknowledged = []

    def story(self) -> str:
        return "\n".join(self.done[-30:])

    # -- steps

    def step(self) -> None:
        kinds = {
            self.connect: 8,
            self.subscribe: 10,
            self.unsubscribe: 0.5,
            self.publish: 10,
            self.publish_as_root: 12,
            self.lose: 3,
            self.leave: 1,
            self.reload: 4,
            self.wake: 2,
            self.restart: 0.4,
        }
        (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
        self.done.append(kind.__name__)
        kind()
        self.settle()

    def some_client(self) -> tuple[str, Session, Client] | None:
        found = self.here_now()
        return self.rng.choice(found) if found else None

    def connect(self) -> None:
        rng, client_id = self.rng, self.rng.choice(IDS)
        user = rng.choice((None, *sorted(self.law.users)))
        if client_id in self.sessions and rng.random() < 0.6:
            owner = self.sessions[client_id].owner
            user = owner if owner is None or owner in self.law.users else user
        clean, lasts, lazy = rng.random() < 0.2, rng.random() < 0.8, rng.random() < 0.2
        will, later = None, rng.random() < 0.5
        more = {}
        if rng.random() < 0.4:
            will = self.message(rng.choice(TOPICS))
            delay: Properties = {"will_delay_interval": LATER} if later else {}
            more["will"] = Will(will.topic, will.payload, 1, False, delay)
        properties = {"receive_maximum": 2} if lazy else {}
        talk = self.connected(
            user, client_id, clean=clean, expiry=LATER if lasts else 0, properties=properties, **more
        )
        self.done[-1] += (
            f" {user} as {client_id} clean={clean} lasts={lasts} lazy={lazy} will={will} later={later}"
        )
        reason = talk.answer.reason_code
        if will is not None and not self.law.allows(user, client_id, will.topic, "write"):
            assert reason == ReasonCode.NOT_AUTHORIZED, self.story()
            talk.close()
            return
        session = self.sessions.get(client_id)
        if session is not None and session.owner != user:
            gone = session.owner is not None and session.owner not in self.law.users
            if not gone:
                assert reason == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, self.story()
                talk.close()
                return
            self.end(client_id)
            session = None
        assert reason == 0, f"{reason}\n{self.story()}"
        if session is not None:
            self.taken(client_id, session, clean)
            if clean:
                self.end(client_id)
            session = self.sessions.get(client_id)
        assert talk.answer.session_present == (session is not None), self.story()
        if session is None:
            session = self.sessions[client_id] = Session(user, lasts)
        session.lasts, session.will = lasts, None
        session.exact = session.exact and not lazy
        session.client = Client(user, client_id, talk, lazy, will, later, later and lasts, len(self.laws) - 1)

    def taken(self, client_id: str, session: Session, clean: bool) -> None:
        """Another connection has the session: the old one is gone, and has left its will."""
        old, session.client = session.client, None
        if old is not None:
            old.talk.end()
            old.talk.close()
            if old.will is not None and (clean or not old.delays):
                self.will(old.user, client_id, old.will)

    def will(self, user: str | None, client_id: str, will: Message) -> None:
        if (user is None or user in self.law.users) and self.law.allows(user, client_id, will.topic, "write"):
            self.published(will)

    def end(self, client_id: str) -> None:
        """A session is no more: a will that waits comes now."""
        session = self.sessions.pop(client_id)
        if session.will is not None:
            self.will(session.will[0], client_id, session.will[1])

    def lost(self, client_id: str, *, with_will: bool = True) -> None:
        """A connection has ended."""
        session = self.sessions[client_id]
        client, session.client = session.client, None
        assert client is not None
        if client.will is not None and with_will:
            if client.will_later:
                session.will = (client.user, client.will)
            else:
                self.will(client.user, client_id, client.will)
        if not session.lasts:
            self.end(client_id)

    def lose(self) -> None:
        """A connection breaks."""
        found = self.some_client()
        if found is not None:
            name, _, client = found
            self.done[-1] += f" {name}"
            client.talk.close()
            self.gone(name)
            self.lost(name)

    def leave(self) -> None:
        """A client says goodbye: no will."""
        found = self.some_client()
        if found is not None:
            name, _, client = found
            self.done[-1] += f" {name}"
            client.talk.disconnect()
            self.gone(name)
            self.lost(name, with_will=False)

    def gone(self, client_id: str) -> None:
        """Wait until the broker knows."""
        sessions = self.here.broker.store.sessions
        until(lambda: (found := sessions.get(client_id)) is None or found.connection is None)

    def subscribe(self) -> None:
        found = self.some_client()
        if found is None:
            return
        _, session, client = found
        name, kind = some_filter(self.rng, broad=0.6), self.rng.choice(("", "", "$share/g/", "$replay/all/"))
        self.done[-1] += f" {client.client_id} {kind}{name}"
        (code,) = client.talk.subscribe(kind + name, qos=1)
        readable = [
            t for t in TOPICS if fits(name, t) and self.law.allows(client.user, client.client_id, t, "read")
        ]
        if code >= 0x80:
            assert not readable, f"refused, and {readable} may be read\n{self.story()}"
            return
        if kind == "$share/g/":
            session.groups.add(name)
        elif kind == "$replay/all/":
            session.replays.add(name)
            session.waits |= {one.payload for one in self.messages if fits(name, one.topic)}
            client.got -= {one.payload for one in self.messages if fits(name, one.topic)}
        else:
            session.plain.add(name)
            kept = {one.payload for topic, one in self.retained.items() if fits(name, topic)}
            session.waits |= kept
            client.got -= kept

    def unsubscribe(self) -> None:
        found = self.some_client()
        if found is not None:
            _, session, client = found
            for kind, names in (
                ("", session.plain),
                ("$replay/all/", session.replays),
                ("$share/g/", session.groups),
            ):
                for name in sorted(names):
                    client.talk.unsubscribe(kind + name)
                names.clear()

    def publish(self) -> None:
        found = self.some_client()
        if found is None:
            return
        _, _, client = found
        message, retain = self.message(self.rng.choice(TOPICS)), self.rng.random() < 0.4
        self.done[-1] += f" {client.client_id} {message} retain={retain}"
        code = client.talk.publish(message.topic, message.payload, 1, retain=retain)
        allowed = self.law.allows(client.user, client.client_id, message.topic, "write")
        assert (code < 0x80) == allowed, f"{code}\n{self.law.text()}\n{self.story()}"
        if allowed:
            self.published(message, retain=retain)

    def publish_as_root(self) -> None:
        message, retain = self.message(self.rng.choice(TOPICS)), self.rng.random() < 0.4
        self.done[-1] += f" {message} retain={retain}"
        assert self.root.publish(message.topic, message.payload, 1, retain=retain) < 0x80
        self.published(message, retain=retain)

    def wake(self) -> None:
        """Those who didn't acknowledge do now: what waited for them comes, by the rules of now."""
        for _, _, client in self.here_now():
            self.acknowledge(client)

    def reload(self) -> None:
        self.laws.append(some_law(self.rng))
        self.write_files()
        self.here.do(self.here.broker.reload)
        for name, session, client in self.here_now():
            if client.user is not None and client.user not in self.law.users:
                client.talk.end()
                client.talk.close()
                self.gone(name)
                assert session is self.sessions[name]
                self.lost(name)

    def restart(self) -> None:
        for name, _, client in self.here_now():
            client.talk.disconnect()
            self.gone(name)
            self.lost(name, with_will=False)
        self.root.close()
        self.here.close()
        for session in self.sessions.values():
            session.will = None  # those that wait don't outlive the broker
        self.here = self.start()
        self.root = self.connected("root", "root")


def run(folder: Path, seed: int, steps: int) -> int:
    """Drive one; how many deliveries were checked."""
    model = Model(folder, seed)
    try:
        for _ in range(steps):
            model.step()
    except Closed as error:
        raise AssertionError(f"a client was disconnected\n{model.story()}") from error
    finally:
        model.close()
    return model.checked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    total = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            total += run(Path(folder), seed, options.steps)
        print(f"seed {seed}: {total} deliveries, each by the rules of its moment", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
