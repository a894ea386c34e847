"""A replica server among hostile clients: who gets in, what that costs, and which token is good for what."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from forelog.copies.identity import EPOCH_MAX, TERM_STEP_MAX, Identity, new_word
from forelog.copies.server.tokens import Tokens
from forelog.copies.wire import (
    FRAME_BYTES_MAX,
    FREE_BYTES,
    VERSION,
    Address,
    Fields,
    Kind,
    Link,
    Room,
    connect,
    frame_bytes,
    identity_fields,
    pack,
)
from forelog.errors import BadFrame, BadTokens, ReplicaError
from forelog.log.position import Position
from forelog.state import Follower, PersistentDict, ReplicaServer
from tests.state.keeping import Replica, converged, restored, wait_until

pytest.importorskip("msgspec")


@contextlib.contextmanager
def many(port: int, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """Connections that say little."""
    found = []
    try:
        for _ in range(count):
            found.append(socket.create_connection(("127.0.0.1", port), 10))
            if said:
                found[-1].sendall(said)
        yield found
    finally:
        for one in found:
            one.close()


def hello(server: ReplicaServer, log: str, role: str, identity: Identity | None = None, token: str = "") -> Link:
    link = connect(Address("127.0.0.1", server.address[1], log), None)
    link.send_fields(
        Kind.HELLO, version=VERSION, role=role, log=log, token=token, **identity_fields(identity)
    )  # fmt: skip
    return link


def primary(server: ReplicaServer, log: str, identity: Identity, token: str = "") -> Link:
    link = hello(server, log, "primary", identity, token)
    link.expect(Kind.KNOWN)
    link.send_fields(Kind.CLAIM, continues=False)
    link.expect(Kind.WELCOME)
    return link


def url(server: ReplicaServer, log: str = "things") -> str:
    return f"replica://127.0.0.1:{server.address[1]}/{log}"


# -- before a hello


@pytest.mark.parametrize("said", [b"", b"\x00\x00", b"\x00\x00\x0f\xff\x01" + b"x" * 4000])
def test_idle_connections_keep_no_primary_out(tmp_path, said):
    with (
        ReplicaServer(str(tmp_path / "copies")) as server,
        many(server.address[1], 300, said),
        PersistentDict(str(tmp_path / "log")) as things,
    ):
        name = things.log.add_destination(url(server), ack="synced")
        things["a"] = 1
        wait_until(lambda: converged(things, name))


def test_idle_connections_cost_few_bytes_and_no_threads(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    with many(replica.port, 10):
        pass
    before, threads = rss_bytes(replica.process.pid), thread_count(replica.process.pid)
    with many(replica.port, 250, b"\x00\x00\x0f\xff\x01" + b"x" * 4000):
        wait_until(lambda: rss_bytes(replica.process.pid))
        assert thread_count(replica.process.pid) == threads
        assert rss_bytes(replica.process.pid) - before < 250 * (8 << 10) + (4 << 20)


def test_a_byte_now_and_then_puts_no_deadline_off(tmp_path):
    with (
        ReplicaServer(str(tmp_path), hello_seconds=0.5) as server,
        many(server.address[1], 1, b"\x00\x00\x0f\xff\x01") as (slow,),
    ):
        began, sent = time.monotonic(), 0
        with contextlib.suppress(OSError):
            while time.monotonic() - began < 20:
                slow.sendall(b"x")
                sent += 1
                time.sleep(0.05)
                if server.figures()["waiting"] == 0:
                    break
        assert 0 < sent < 200
        assert server.notices.counts["no hello"] == 1


def test_there_are_no_more_places_at_the_door_than_it_says(tmp_path):
    with ReplicaServer(str(tmp_path), waiting_max=6, waiting_per_address_max=3) as server:
        with many(server.address[1], 50) as found:
            wait_until(lambda: server.notices.counts.get("no hello", 0) == 47)
            assert server.figures()["waiting"] == 3
            assert [is_closed(one) for one in found] == [True] * 47 + [False] * 3  # the oldest went
        wait_until(lambda: server.figures()["waiting"] == 0)


def test_other_addresses_dont_lose_their_places_to_one_that_has_many(tmp_path):
    with (
        ReplicaServer(str(tmp_path), waiting_max=6, waiting_per_address_max=5) as server,
        socket.create_connection(server.address, 10, source_address=("127.0.0.2", 0)) as elsewhere,
        many(server.address[1], 30) as found,
    ):
        wait_until(lambda: server.notices.counts.get("no hello", 0) == 25)
        assert not is_closed(elsewhere)
        assert not is_closed(found[-1])


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(0.2)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_connections_that_have_said_hello_are_bounded_too_and_dont_count_at_the_door(tmp_path):
    with ReplicaServer(str(tmp_path), connections_max=4, waiting_max=2) as server:
        links = [primary(server, f"log{number}", Identity.new()) for number in range(4)]
        assert "there are 4 connections here already" in refused(
            hello(server, "another", "primary", Identity.new())
        )
        with many(server.address[1], 20):
            for link in links:
                link.send(Kind.FLUSH, b"\0")
                link.expect(Kind.ACK)  # whoever is in stays in
        links[0].close()
        wait_until(lambda: server.figures()["connections"] == 3)
        primary(server, "another", Identity.new()).close()
        for link in links:
            link.close()


def test_followers_of_one_log_dont_take_the_places_of_its_primary_or_of_other_logs(tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server:
        with PersistentDict(str(tmp_path / "log")) as things:
            name = things.log.add_destination(url(server), ack="synced")
            things["a"] = 1
            links = [hello(server, "things", "follower") for _ in range(40)]
            for link in links[:32]:
                link.expect(Kind.WELCOME)
            for link in links[32:]:
                with pytest.raises(ReplicaError, match="32 connections of followers of things"):
                    link.expect(Kind.WELCOME)
            things["b"] = 2
            wait_until(lambda: converged(things, name))
        with PersistentDict(str(tmp_path / "other")) as others:
            others.log.add_destination(url(server, "other"), ack="synced")
            others["c"] = 3
        for link in links:
            link.close()


def test_primaries_that_never_say_what_they_have_keep_no_other_out(tmp_path):
    with ReplicaServer(str(tmp_path)) as server:
        first = Identity.new()
        kept = primary(server, "things", first)
        idle = []
        for _ in range(30):
            idle.append(hello(server, "things", "primary", first.next_run()))
            idle[-1].expect(Kind.KNOWN)
        wait_until(lambda: server.figures()["connections"] < 12)
        kept.send(Kind.FLUSH, b"\0")
        kept.expect(Kind.ACK)
        primary(server, "things", first.next_run()).close()
        for link in (kept, *idle):
            link.close()


# -- what is said


def nested(depth: int, opener: bytes) -> bytes:
    return b"\x81\xa5token" + opener * depth + b"\xc0"


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1x", b"\x81\x91", b"\x92\xc0"])
def test_a_hello_of_nested_values_is_refused_without_a_traceback(tmp_path, opener, caplog):
    body = nested(4000 // len(opener), opener)
    with (
        ReplicaServer(str(tmp_path), token="s3cret") as server,
        socket.create_connection(server.address, 10) as talk,
    ):
        talk.sendall(frame_bytes(Kind.HELLO, body))
        assert b"does not speak this protocol" in talk.recv(4096)
    assert "Traceback" not in caplog.text
    assert "refused from=127.0.0.1" in caplog.text


def test_whatever_is_said_is_refused_as_no_message_and_nothing_else():
    chance = random.Random(22)
    whole = pack({"version": VERSION, "role": "primary", "log": "x", "token": "t", "term": 1, "id": bytes(16)})
    wrong = [
        nested(3000, b"\x91"),
        b"",
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
    ]
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        wrong.append(bytes(data[: chance.randrange(len(data) + 1)]))
    for body in wrong:
        try:
            fields = Fields("it", body)
            fields.resume()
            fields.identity()
        except BadFrame:
            pass


@pytest.mark.parametrize(
    "fields",
    [
        {"version": "2"}, {"version": [2]}, {"token": 7}, {"token": b"t"}, {"log": ["x"]}, {"term": -1},
        {"segment": 1, "offset": -1, "tail": b""}, {"tail": bytes(65)}, {"continues": 1}, {"term": 1.5},
        {"id": "x"}, {"term": 2**63},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_refused_and_never_shown(fields):
    with pytest.raises(BadFrame) as refused:
        Fields("it", pack({**fields, "code": "s3cret"}))
    assert "s3cret" not in str(refused.value)


def test_nobody_waits_for_a_client_that_doesnt_take_its_answers(tmp_path):
    """Its acknowledgements fill the buffers; whoever else is here for the same log gets on."""
    with ReplicaServer(str(tmp_path / "copies")) as server:
        with PersistentDict(str(tmp_path / "log")) as things:
            name = things.log.add_destination(url(server), ack="synced")
            things["a"] = 1
            identity = things.log.identity
            things.log.remove_destination(name)
        stuck = primary(server, "things", identity.next_run())
        stuck._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        flush = frame_bytes(Kind.FLUSH, b"\0") * 1000
        stuck._socket.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while True:
                stuck._socket.send(flush)
        answered = threading.Event()

        def promote() -> None:
            link = hello(server, "things", "promote")
            link.expect(Kind.WELCOME)
            link.close()
            answered.set()

        threading.Thread(target=promote, daemon=True).start()
        assert answered.wait(10), "it waited for a client that doesn't read"
        stuck.close()


def test_a_follower_that_doesnt_read_keeps_no_copy_from_being_made_anew(tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server, PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(url(server), ack="synced")
        for number in range(64):
            things[number] = os.urandom(256 << 10)
        wait_until(lambda: converged(things, name))
        stuck = hello(server, "things", "follower")
        stuck.expect(Kind.WELCOME)
        time.sleep(0.5)  # the server sends until buffers are full
        slot = server._logs["things"].slots.whole
        lock = slot._directory.files.lock(f"{slot.path}/read.lock", exclusive=True, timeout=3)
        lock.release()
        stuck.close()


def test_large_frames_of_all_connections_share_a_room():
    room = Room(FREE_BYTES * 4)
    room.take(FREE_BYTES * 3, time.monotonic())
    with pytest.raises(ReplicaError, match="no room for a frame"):
        room.take(FREE_BYTES * 2, time.monotonic() + 0.05)
    room.give(FREE_BYTES * 3)
    room.take(FRAME_BYTES_MAX, time.monotonic())  # alone it fits, or it never would


def test_what_large_frames_take_up_is_given_back(tmp_path):
    with ReplicaServer(str(tmp_path / "copies"), frames_bytes_max=1) as server:
        with PersistentDict(str(tmp_path / "log")) as things:
            name = things.log.add_destination(url(server), ack="synced")
            for number in range(5):
                things[number] = bytes(3 << 20)
            wait_until(lambda: converged(things, name))
        wait_until(lambda: server.figures()["connections"] == 0)
        assert server._room._used == 0


# -- tokens


TOKENS = """
# logs     token
bank       bank-w
bank       bank-r   read
plant-*    sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae  write
"""


@pytest.fixture
def guarded(tmp_path) -> Iterator[ReplicaServer]:
    (tmp_path / "tokens").write_text(TOKENS)
    with ReplicaServer(str(tmp_path / "copies"), tokens=tmp_path / "tokens") as server:
        yield server


def refused(link: Link) -> str:
    with pytest.raises(ReplicaError) as error:
        link.expect_any(Kind.KNOWN, Kind.WELCOME)
    link.close()
    return str(error.value)


def test_a_token_is_good_for_its_logs_and_for_no_others(guarded, tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(url(guarded, "bank"), ack="synced", token="bank-w")
        things["a"] = 1
        for token in ("foo", "bank-r", "wrong", "", "sha256:" + "0" * 64):
            assert "token" in refused(hello(guarded, "bank", "promote", token=token))
            assert "token" in refused(hello(guarded, "bank", "primary", Identity.new(), token=token))
        for token in ("foo", "wrong", ""):
            assert "the token isn't right" in refused(hello(guarded, "bank", "follower", token=token))
        things["b"] = 2  # nobody has taken its place
        wait_until(lambda: converged(things, name))
    primary(guarded, "plant-7", Identity.new(), token="foo").close()
    assert "isn't right" in refused(hello(guarded, "plant", "primary", Identity.new(), token="foo"))


def test_a_token_for_reading_is_for_followers(guarded, tmp_path):
    with PersistentDict(str(tmp_path / "log")) as things:
        things.log.add_destination(url(guarded, "bank"), ack="synced", token="bank-w")
        things["a"] = 1
        seen: list[object] = []
        where = url(guarded, "bank")
        with Follower(
            where, str(tmp_path / "f"), replay=seen.append, reset=seen.clear, token="bank-r"
        ) as follower:
            wait_until(lambda: seen)
            with pytest.raises(ReplicaError, match="only good for reading"):
                follower.promote(lambda _: None)


def test_a_log_that_isnt_there_is_not_told_from_one_that_is_without_a_token(guarded):
    told = {refused(hello(guarded, log, "follower", token="x")).replace(log, "LOG") for log in ("bank", "nothing")}
    assert len({one.split("/LOG")[-1] for one in told}) == 1


def test_tokens_that_are_reloaded_count_at_once_also_for_who_is_here(guarded, tmp_path):
    (tmp_path / "tokens").write_text("bank bank-w\nbank other")
    link = primary(guarded, "plant-1", Identity.new(), token="foo")
    kept = primary(guarded, "bank", Identity.new(), token="bank-w")
    guarded.reload(tokens=tmp_path / "tokens")
    with pytest.raises(ReplicaError):
        link.send(Kind.FLUSH, b"\0")
        link.expect(Kind.ACK)
    link.close()
    kept.send(Kind.FLUSH, b"\0")
    kept.expect(Kind.ACK)
    (tmp_path / "tokens").write_text("bank bank-w wirte")
    with pytest.raises(BadTokens, match="line 1: 'wirte' is not a right"):
        guarded.reload(tokens=tmp_path / "tokens")
    kept.send(Kind.FLUSH, b"\0")
    kept.expect(Kind.ACK)
    kept.close()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("bank", "line 1: it has 1 words"), ("# fine\n\nbank a read b", "line 3: it has 4 words"), ("../x token",
        "line 1: '../x' can't match a log"), ("b[a] token", "can't match a log"), ("a/b token", "can't match"),
        ("bank t\u00f6ken", "ASCII"), ("bank sha256:12", "64 digits"), ("bank SHA256:" + "0" * 64, "64 digits"),
        ("", "has no token"), ("# only words", "has no token"), ("bank token Read", "'Read' is not a right"),
    ],
)  # fmt: skip
def test_a_file_of_tokens_that_isnt_right_is_refused_with_the_line(tmp_path, text, what):
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(BadTokens) as error:
        ReplicaServer(str(tmp_path / "copies"), tokens=tmp_path / "tokens")
    assert what in str(error.value)
    assert "t\u00f6ken" not in str(error.value)


def test_patterns_are_of_characters_and_not_of_regular_expressions():
    tokens = Tokens.parse("a.b t1\n* t2 read\nx?z t3")
    assert tokens.right("a.b", "t1") == "write"
    assert tokens.right("aXb", "t1") is None
    assert tokens.right("anything", "t2") == "read"
    assert tokens.right("xyz", "t3") == "write"
    assert tokens.right("xyzz", "t3") is None


def test_the_command_takes_a_file_of_tokens_and_reads_it_again(tmp_path, children):
    (tmp_path / "tokens").write_text("things first")
    replica = children(Replica, tmp_path / "replica", "--tokens", str(tmp_path / "tokens"))
    address = Address("127.0.0.1", replica.port, "things")

    def answer(token: str) -> Kind:
        link = connect(address, None)
        link.send_fields(
            Kind.HELLO,
            version=VERSION,
            role="primary",
            log="things",
            token=token,
            **identity_fields(Identity.new()),
        )
        frame = link.receive()
        link.close()
        return frame.kind

    assert (answer("first"), answer("second")) == (Kind.KNOWN, Kind.REFUSED)
    (tmp_path / "tokens").write_text("things second")
    replica.process.send_signal(signal.SIGHUP)
    wait_until(lambda: answer("second") is Kind.KNOWN)
    assert answer("first") is Kind.REFUSED
    (tmp_path / "tokens").write_text("things third nonsense")
    replica.process.send_signal(signal.SIGHUP)
    while "line 1" not in (line := replica.line()):
        pass
    assert "stays as it was" in line
    assert answer("second") is Kind.KNOWN
    replica.stop()


# -- terms


def test_nobody_ends_the_terms_of_a_copy(tmp_path):
    with ReplicaServer(str(tmp_path / "copies")) as server:
        first = Identity.new()
        primary(server, "things", first).close()
        for term in (EPOCH_MAX, 2 + TERM_STEP_MAX):
            assert "term" in refused(
                hello(server, "things", "primary", first._replace(term=term, word=new_word()))
            )
        beyond = Identity.new()._replace(term=EPOCH_MAX + 1)
        assert "its epoch is" in refused(hello(server, "new", "primary", beyond))
        for term in (2**33, EPOCH_MAX):
            assert "term" in refused(hello(server, "new", "primary", Identity.new()._replace(term=term)))
        assert server._logs["things"].slots.identity == first
        ahead = first._replace(term=1 + TERM_STEP_MAX, word=new_word())
        primary(server, "things", ahead).close()
        answer = hello(server, "things", "promote")
        assert Fields("it", answer.expect(Kind.WELCOME)).need_identity().term == ahead.term + 1
        answer.close()


# -- disk


def test_copies_take_up_no_more_of_the_disk_than_they_may(tmp_path):
    limits: dict[str, Any] = {"log_bytes_max": 350_000, "bytes_max": 500_000, "logs_max": 2}
    with ReplicaServer(str(tmp_path / "copies"), **limits) as server:  # noqa: SIM117
        with PersistentDict(str(tmp_path / "one")) as one, PersistentDict(str(tmp_path / "two")) as two:
            a = one.log.add_destination(url(server, "one"))
            b = two.log.add_destination(url(server, "two"))
            for number in range(28):
                one[number] = two[number] = bytes(10_000) if number < 20 else b"x"
            wait_until(lambda: converged(one, a) and converged(two, b))
            one["large"] = bytes(200_000)
            wait_until(lambda: "this server allows 350,000 for a log" in error_of(one, a))
            two["large"] = bytes(95_000)
            wait_until(lambda: "this server allows 500,000" in error_of(two, b))
            with PersistentDict(str(tmp_path / "three")) as three:
                c = three.log.add_destination(url(server, "three"))
                wait_until(lambda: "there are 2 logs here already" in error_of(three, c))
            assert not (tmp_path / "copies" / "three").exists()
            del one["large"]
            for number in range(20):
                del one[number]
            one.rotate()  # a smaller log fits again
            wait_until(lambda: converged(one, a))
            wait_until(lambda: converged(two, b))
    assert size_of(tmp_path / "copies") < 600_000
    assert len(restored(tmp_path / "copies/one")) == 8


def error_of(things: PersistentDict, name: str) -> str:
    return things.log.health().destinations[name].error or ""


def size_of(folder) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))


def test_logs_of_before_the_start_count(tmp_path):
    for log in ("one", "two"):
        with ReplicaServer(str(tmp_path / "copies")) as server, PersistentDict(str(tmp_path / log)) as things:
            things.log.add_destination(url(server, log), ack="synced")
            things["a"] = bytes(100_000)
    with (
        ReplicaServer(str(tmp_path / "copies"), bytes_max=250_000, logs_max=2) as server,
        PersistentDict(str(tmp_path / "one")) as things,
    ):
        assert server.figures()["bytes"] >= 200_000
        name = things.log.add_destination(url(server, "one"), rotate=False)
        things["b"] = bytes(60_000)
        wait_until(lambda: "this server allows 250,000" in error_of(things, name))
        assert "2 logs" in refused(hello(server, "third", "primary", Identity.new()))


def test_many_small_segments_count_as_what_they_take_up(tmp_path):
    from forelog.formats.state import FORMAT

    record = FORMAT.encode(b"x", 1)
    with ReplicaServer(str(tmp_path / "copies"), log_bytes_max=1 << 20) as server:
        link = primary(server, "things", Identity.new())
        link.send(Kind.RESTART)
        with pytest.raises(ReplicaError, match="this server allows"):
            for number in range(1, 1000):
                link.send_data(Position(number, FORMAT.header_bytes), record)
                link.send(Kind.FLUSH, b"\0")
                link.expect(Kind.ACK)
        assert 200 < number < 300
        link.close()


# -- what is logged


def test_an_operator_reads_who_came_from_where_and_why_it_ended(guarded, tmp_path, caplog):
    caplog.set_level(logging.INFO, "forelog")
    primary(guarded, "bank", Identity.new(), token="bank-w").close()
    wait_until(lambda: "replica: left" in caplog.text)
    refused(hello(guarded, "bank", "promote", token="gue55ed"))
    refused(hello(guarded, "bank\nreplica: forged", "primary", Identity.new()))
    wait_until(lambda: "forged" in caplog.text)
    text = caplog.text
    assert "replica: connected from=127.0.0.1:" in text
    assert "role=primary log=bank" in text
    assert "the token isn't right (log bank, as promote)" in text
    assert guarded.figures()["token_refused"] == 1
    for secret in ("gue55ed", "bank-w"):
        assert secret not in text
    assert not any(line.startswith("replica: forged") for line in text.splitlines())


def test_a_thousand_wrong_tokens_are_few_lines(guarded, caplog):
    for _ in range(200):
        refused(hello(guarded, "bank", "follower", token="wrong"))
    assert guarded.figures()["token_refused"] == 200
    assert caplog.text.count("the token isn't right") <= 40


def rss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def thread_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_hello_frames_are_small(tmp_path):
    with (
        ReplicaServer(str(tmp_path)) as server,
        many(server.address[1], 1, struct.pack(">IB", 4097, 1)) as (talk,),
    ):
        assert b"at most 4,096" in talk.recv(4096)
