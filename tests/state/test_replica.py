"""Copies of a log in other processes: through kills, cut connections, full disks, and promotions."""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time

import pytest

from forelog.copies import destinations, shipping
from forelog.copies.slots import whole_slot
from forelog.copies.targets import DirectoryTarget
from forelog.copies.wire import VERSION, Address, Kind, connect, identity_fields
from forelog.errors import MissingExtra, NotReplicated, ReplicaError, Superseded
from forelog.log.position import Position
from forelog.state import Follower, PersistentDict, ReplicaServer
from tests.state.keeping import Follows, Primary, Process, Replica, converged, restored, wait_until

# -- a directory


def test_a_copy_in_a_directory_is_a_log_that_opens(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        things.update({number: number for number in range(500)})
        name = things.log.add_destination(str(tmp_path / "copy"))
        for number in range(100):
            del things[number]
        things["new"] = "yes"
        wait_until(lambda: converged(things, name))
        kept = dict(things)
        things.log.remove_destination(name)
        things["after"] = "not there"
    assert restored(tmp_path / "copy") == kept


def test_a_copy_goes_through_rotations_and_forgets_as_the_log_does(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(str(tmp_path / "copy"), ack="synced")
        for round_ in range(5):
            things.update({number: [round_, "x" * 100] for number in range(200)})
            things.rotate()
        wait_until(lambda: converged(things, name))
        slot = whole_slot(str(tmp_path / "copy"))
        wait_until(lambda: len([file for file in os.listdir(slot) if file.endswith(".log")]) == 1)
        assert restored(tmp_path / "copy") == dict(things)


def test_a_copy_that_was_away_for_too_long_is_made_anew_and_stays_whole_meanwhile(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        things["old"] = 1
        name = things.log.add_destination(str(tmp_path / "copy"))
        wait_until(lambda: converged(things, name))
        things.log.remove_destination(name)
        for round_ in range(3):
            things["round"] = round_
            things.rotate()  # what the copy would need next is gone
        assert restored(tmp_path / "copy") == {"old": 1}
        things.log.add_destination(str(tmp_path / "copy"), name=name, rotate=False)
        wait_until(lambda: converged(things, name))
        assert restored(tmp_path / "copy") == dict(things)


def test_two_logs_dont_share_a_copy(tmp_path):
    for log in ("one", "two"):
        with PersistentDict(str(tmp_path / log)) as things:
            things["is"] = log
            name = things.log.add_destination(str(tmp_path / "copy"))
            expected = "live" if log == "one" else "unhealthy"
            wait_until(lambda: things.log.health().destinations[name].state == expected)  # noqa: B023
            things["is"] = log  # a wrong name for a copy is no reason to stop
            error = things.log.health().destinations[name].error
    assert "is a copy of log" in error
    assert restored(tmp_path / "copy") == {"is": "one"}


def test_a_destination_that_cant_be_written_harms_nobody_and_says_why(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(str(tmp_path / "file" / "copy"))
        wait_until(lambda: things.log.health().destinations[name].error)
        for number in range(1000):
            things[number] = number
        health = things.log.health()
        assert not health.healthy
        assert "Not a directory" in health.destinations[name].error
        assert health.destinations[name].lag_bytes > 1000
        (tmp_path / "file").unlink()
        wait_until(lambda: converged(things, name))
        assert things.log.health().healthy
        assert restored(tmp_path / "file" / "copy") == dict(things)


class Clock:
    """Time that passes as it does, and in leaps when told to."""

    def __init__(self) -> None:
        self.leaps = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.leaps

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_a_copy_lags_since_the_first_update_that_it_doesnt_have(tmp_path, monkeypatch):
    clock, held, flushes = Clock(), threading.Lock(), []
    send, flush = DirectoryTarget.send, DirectoryTarget.flush

    def send_unless_held(*args) -> None:
        with held:
            send(*args)

    monkeypatch.setattr(destinations, "time", clock)
    monkeypatch.setattr(shipping, "time", clock, raising=False)
    monkeypatch.setattr(shipping, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(DirectoryTarget, "send", send_unless_held)
    monkeypatch.setattr(DirectoryTarget, "flush", lambda self: flushes.append(0) or flush(self))
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(str(tmp_path / "copy"))
        things["a"] = 1
        wait_until(lambda: converged(things, name))
        seen = len(flushes)
        wait_until(lambda: len(flushes) > seen + 2)  # its thread has found that it has everything
        with held:
            clock.leaps += 3000
            things["b"] = 2
            health = things.log.health().destinations[name]
            assert health.lag_bytes > 0
            assert health.lag_seconds < 1000
            clock.leaps += 5000
            things["c"] = 3
            assert 5000 <= things.log.health().destinations[name].lag_seconds < 6000
        wait_until(lambda: converged(things, name))
        clock.leaps += 7000
        assert things.log.health().destinations[name].lag_seconds == 0


# -- a replica server


def test_a_replica_follows_live_and_resumes_where_it_was(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(replica.url())
        things.update({number: number for number in range(1000)})
        wait_until(lambda: converged(things, name))
        replica.kill()
        things.update({number: -number for number in range(500, 1500)})
        replica = children(Replica, tmp_path / "replica", port=replica.port)
        wait_until(lambda: converged(things, name))
        assert not os.path.exists(tmp_path / "replica/things/b/snapshot"), "it went on in the same copy"
        replica.stop()
        assert restored(tmp_path / "replica/things") == dict(things)


@pytest.mark.parametrize("round_", range(3))
def test_a_killed_primary_loses_nothing_that_was_acknowledged_when_its_follower_is_promoted(
    tmp_path, children, round_
):
    replica = children(Replica, tmp_path / "replica")
    primary = children(Primary, tmp_path / "log", where=replica.url(), ack="synced", rotate_bytes=20_000)
    follows = Follows(replica.url(), tmp_path / "follower")
    with follows.follower:
        primary.process.stdin.write('["put", 0, 100000, "x"]\n')
        primary.process.stdin.flush()
        acknowledged = -1
        for _ in range(random.Random(round_).randrange(200, 800)):
            acknowledged = int(primary.line())
        primary.kill()
        rest = primary.process.stdout.read().split()
        acknowledged = max([acknowledged, *(int(number) for number in rest[:-1] if number.isdecimal())])
        log = follows.follower.promote(follows.enumerate)
    with log:
        assert set(range(acknowledged + 1)) <= set(follows.state)
        assert log.identity.epoch == (2, 1)
        log.add_destination(replica.url(), ack="synced")
        log.update(["promoted", True])
        follows.state["promoted"] = True
        the_old_primary_is_refused(tmp_path / "log", replica)
    replica.stop()
    assert restored(tmp_path / "replica/things") == follows.state
    assert restored(tmp_path / "follower") == follows.state


def the_old_primary_is_refused(path, replica) -> None:
    with PersistentDict(str(path)) as old:
        name = old.log.add_destination(replica.url())
        wait_until(lambda: old.log.health().destinations[name].state == "superseded")
        with pytest.raises(Superseded, match="is over"):
            old["too"] = "late"


def test_a_replica_killed_at_random_moments_converges(tmp_path, children):
    chance = random.Random(4)
    replica = children(Replica, tmp_path / "replica")
    with PersistentDict(str(tmp_path / "log"), rotate_bytes=50_000) as things:
        name = things.log.add_destination(replica.url())
        for round_ in range(8):
            for number in range(chance.randrange(50, 800)):
                things[number] = [round_, "y" * chance.randrange(200)]
            time.sleep(chance.random() / 20)
            replica.kill()
            things.pop(round_ * 3, None)
            replica = children(Replica, tmp_path / "replica", port=replica.port)
        wait_until(lambda: converged(things, name))
        replica.stop()
        assert restored(tmp_path / "replica/things") == dict(things)


class Cutting:
    """Between a primary and its replica: passes bytes on, and cuts both sides after a number of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cut_after: int | None = None
        self.cuts = 0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near, socket.create_connection(("127.0.0.1", self._port)) as far:
            threading.Thread(target=self._back, args=(far, near), daemon=True).start()
            left = self.cut_after
            while data := near.recv(1000 if left is None else min(left, 1000)):
                far.sendall(data)
                if left is not None and (left := left - len(data)) <= 0:
                    self.cuts += 1
                    for side in (near, far):
                        side.shutdown(socket.SHUT_RDWR)
                    return

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(4096):
                near.sendall(data)

    def close(self) -> None:
        self._listening.close()


def test_a_connection_cut_in_the_middle_of_a_frame_costs_nothing_but_time(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    with contextlib.closing(Cutting(replica.port)) as cutting, PersistentDict(str(tmp_path / "log")) as things:
        things.update(dict.fromkeys(range(300), "z" * 50))
        cutting.cut_after = 5_000
        name = things.log.add_destination(f"replica://127.0.0.1:{cutting.port}/things")
        for after in (5_001, 7_777, 15_003, None):
            cutting.cut_after = after
            seen = cutting.cuts
            if after is not None:
                wait_until(lambda: cutting.cuts > seen)  # noqa: B023
        wait_until(lambda: converged(things, name))
        replica.stop()
        assert restored(tmp_path / "replica/things") == dict(things)


def test_a_replica_whose_disk_is_full_says_so_and_heals(tmp_path, children):
    disk = tmp_path / "disk"
    disk.mkdir()
    limit = ("prlimit", "--fsize=40000")
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed")
    replica = children(Replica, disk / "replica", prefix=limit)
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(replica.url())
        things.update(dict.fromkeys(range(1000), "w" * 100))
        wait_until(lambda: things.log.health().destinations[name].error)
        assert "File too large" in things.log.health().destinations[name].error
        things["more"] = "while it is full"
        replica.kill()
        replica = children(Replica, disk / "replica", port=replica.port)
        wait_until(lambda: converged(things, name))
        replica.stop()
        assert restored(disk / "replica/things") == dict(things)


def test_updates_wait_for_a_replica_only_if_they_are_told_to(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(replica.url(), ack="received", ack_timeout=0.5)
        things["a"] = 1
        assert things.log.health().destinations[name].lag_bytes == 0
        replica.process.send_signal(signal.SIGSTOP)  # it hangs
        wait_until(lambda: is_stopped(replica.process.pid))
        with pytest.raises(NotReplicated, match="The log has it"):
            things["b"] = 2
        assert things["b"] == 2, "what the log has, memory has"
        replica.kill()
        wait_until(lambda: things.log.health().destinations[name].error)
        with pytest.raises(NotReplicated, match="Nothing was written"):
            things["c"] = 3
        assert "c" not in things
        things.log.remove_destination(name)
        things["c"] = 4
        kept = dict(things)
    assert restored(tmp_path / "log") == kept


def test_two_primaries_of_one_log_the_older_is_refused(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
    shutil.copytree(tmp_path / "log", tmp_path / "twin")
    with (
        PersistentDict(str(tmp_path / "log")) as old,
        PersistentDict(str(tmp_path / "twin"), promote=True) as new,
    ):
        old.log.add_destination(replica.url(), name="r")
        wait_until(lambda: converged(old, "r"))
        new["b"] = 2
        new.log.add_destination(replica.url(), name="r")
        wait_until(lambda: converged(new, "r"))
        wait_until(lambda: old.log.health().destinations["r"].state == "superseded")
        with pytest.raises(Superseded):
            old["c"] = 3
        replica.stop()
        assert restored(tmp_path / "replica/things") == dict(new)


def test_token_and_tls(tmp_path, children):
    key, certificate, token = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "token"
    token.write_text("s3cret\n")
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost".split()
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*request, *files], check=True, capture_output=True)
    flags = ("--token-file", str(token), "--tls-cert", str(certificate), "--tls-key", str(key))
    replica = children(Replica, tmp_path / "replica", *flags)
    trusted = ssl.create_default_context(cafile=str(certificate))
    with PersistentDict(str(tmp_path / "log")) as things:
        things["a"] = 1
        for name, settings, what in (
            ("wrong", {"token": "guess", "tls": trusted}, "token isn't right"),
            ("plain", {"token": "s3cret"}, "expects TLS"),
            ("strange", {"token": "s3cret", "tls": ssl.create_default_context()}, "certificate"),
        ):
            things.log.add_destination(replica.url(), name=name, rotate=False, **settings)
            wait_until(lambda: things.log.health().destinations[name].error)  # noqa: B023
            error = things.log.health().destinations[name].error
            assert re.search(what, error, re.IGNORECASE), error
            things.log.remove_destination(name)
        things.log.add_destination(replica.url(), name="right", token="s3cret", tls=trusted)
        wait_until(lambda: converged(things, "right"))


def test_a_token_may_be_bytes_and_is_shown_nowhere(tmp_path, caplog):
    with ReplicaServer(str(tmp_path / "replica"), token=b"s3cret") as server:
        address = Address("127.0.0.1", server.address[1], "things")
        with PersistentDict(str(tmp_path / "log")) as things:
            name = things.log.add_destination(str(address), token=b"s3cret")
            wait_until(lambda: converged(things, name))
            follows = Follows(str(address), tmp_path / "follower", token=b"s3cret")
            things["a"] = 1
            with follows.follower:
                wait_until(lambda: follows.state == {"a": 1})
        link = connect(address, None)
        link.send_fields(Kind.HELLO, version=VERSION, role="primary", log="things", token=b"my s3cret")
        with pytest.raises(ReplicaError, match=r"Expected `str.*got `bytes`.*token"):
            link.expect(Kind.WELCOME)
        link.close()
    assert "token" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_token_that_is_no_text_is_refused_at_once(tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things, pytest.raises(ValueError, match="not UTF-8") as caught:
        things.log.add_destination("replica://127.0.0.1/things", token=b"\xff\xfe")
    assert "xff" not in str(caught.value)


def test_tls_may_be_true_as_for_who_trusts_whom_the_system_trusts(tmp_path, monkeypatch):
    made = []

    def context():
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", context)
    with PersistentDict(str(tmp_path / "log")) as things:
        things.log.add_destination("replica://127.0.0.1:1/things", name="secure", tls=True)
        things.log.add_destination("replica://127.0.0.1:1/things", name="plain", tls=False)
        things.log.add_destination(str(tmp_path / "copy"), tls=False)
    follower = Follower("replica://127.0.0.1:1/things", str(tmp_path / "f"), replay=print, reset=print, tls=True)
    assert made == [made[0], follower._tls]


def test_without_msgspec_it_is_told_at_once_and_not_by_each_connection(tmp_path, children, monkeypatch):
    code = "import sys; sys.modules['msgspec'] = None; from forelog.cli import main; sys.exit(main())"
    place = ["--dir", str(tmp_path / "copies"), "--listen", "127.0.0.1:0"]
    command = children(Process, [sys.executable, "-c", code, "replica", "serve", *place])
    said = command.process.communicate(timeout=60)[0]
    assert (command.process.returncode, said.count("\n")) == (2, 1), said
    assert "msgspec is not installed" in said
    with PersistentDict(str(tmp_path / "log")) as things:
        monkeypatch.setitem(sys.modules, "msgspec", None)
        with pytest.raises(MissingExtra):
            things.log.add_destination("replica://127.0.0.1/things")


# -- who means no good


def frames(chance: random.Random) -> bytes:
    """Bytes that no primary would send."""
    kind = chance.randrange(7)
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 3000))
    if kind == 1:
        return struct.pack(">IB", chance.choice([0, 5000, 2**31, 2**32 - 1]), chance.randrange(12)) + b"x" * 100
    if kind == 2:
        return struct.pack(">IB", 100, 1) + b"x" * chance.randrange(99)  # and no more
    body = chance.choice([b"\x80", b"\x81\xa7version\x01", b"\xc1", b"\x84" + chance.randbytes(40), b""])
    return struct.pack(">IB", len(body) + 1, chance.randrange(1, 12)) + body


def test_hostile_frames_are_refused_and_cost_nothing(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    chance = random.Random(9)

    def attack() -> None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", replica.port), 10) as talk:
            talk.sendall(frames(chance))
            talk.shutdown(socket.SHUT_WR)
            while talk.recv(4096):
                pass

    for _ in range(50):
        attack()
    before = rss_bytes(replica.process.pid)
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(replica.url())
        things["a"] = 1
        wait_until(lambda: converged(things, name))
        for _ in range(400):
            attack()
        things["b"] = 2
        wait_until(lambda: converged(things, name))
    assert rss_bytes(replica.process.pid) < before + (8 << 20)
    assert os.listdir(tmp_path / "replica") == ["things"]
    replica.stop()
    assert restored(tmp_path / "replica/things") == {"a": 1, "b": 2}


def test_a_primary_that_sends_rubbish_is_refused_and_harms_no_copy(tmp_path, children):
    from forelog.copies.snapshot import Snapshot

    replica = children(Replica, tmp_path / "replica")
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(replica.url())
        things["a"] = 1
        wait_until(lambda: converged(things, name))
        identity = things.log.identity
        things.log.remove_destination(name)
    good = PersistentDict(str(tmp_path / "log"))
    for send in (
        lambda link: link.send_data(Position(1, 8), b"not a record"),
        lambda link: link.send_data(Position(99, 12345), b""),
        lambda link: link.send_data(Position(2**40, 8), b""),
        lambda link: link.send_committed(Snapshot(Position(5, 8), Position(6, 8))),
        lambda link: link.send(Kind.COMMITTED, b"short"),
        lambda link: link.send(Kind.DATA, b"short"),
        lambda link: link.send(Kind.HELLO, b""),
        lambda link: link.send_fields(Kind.WELCOME),
    ):
        link = connect(Address("127.0.0.1", replica.port, "things"), None)
        hello = {"version": VERSION, "role": "primary", "log": "things"}
        link.send_fields(Kind.HELLO, **hello, **identity_fields(identity))
        link.expect(Kind.KNOWN)
        link.send_fields(Kind.CLAIM, continues=True)
        link.expect(Kind.WELCOME)
        send(link)
        with pytest.raises(ReplicaError, match="refuses"):
            link.expect(Kind.ACK)
        link.close()
    for log in ("../elsewhere", "a/b", "", ".hidden", "x" * 200):
        link = connect(Address("127.0.0.1", replica.port, log), None)
        link.send_fields(Kind.HELLO, version=VERSION, role="primary", log=log, id=bytes(16), term=1, run=1)
        with pytest.raises(ReplicaError, match="not a name for a log"):
            link.expect(Kind.WELCOME)
        link.close()
    with good as things:
        name = things.log.add_destination(replica.url())
        wait_until(lambda: converged(things, name))
        replica.stop()
        assert restored(tmp_path / "replica/things") == {"a": 1}


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_the_command_says_what_is_wrong(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    for flags, what in (
        ((), "--dir"),
        (("--dir", "x", "--listen", "nowhere"), "an address"),
        (("--dir", str(tmp_path / "file")), "Not a directory"),
        (("--dir", "x", "--tls-cert", "only"), "go together"),
        (("--dir", "x", "--token-file", str(tmp_path / "token")), "has no token: expected one line"),
    ):
        command = Process([sys.executable, "-m", "forelog", "replica", "serve", *flags])
        said = command.process.communicate(timeout=60)[0]
        assert command.process.returncode not in (0, 70)
        assert what in said
        command.close()
