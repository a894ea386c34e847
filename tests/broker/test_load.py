"""Slow readers, long absences, full disks: the harm that one client or the disk does stays where it is."""

from __future__ import annotations

import dataclasses
import errno
import resource
import socket

from forelog.broker.limits import Limits
from forelog.broker.mqtt.encode import encode
from forelog.broker.mqtt.packets import Connect, Pingreq, Publish, Pubrec
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.load import behind, run, slow
from tests.broker.local import local
from tests.broker.serving import Served, served, wait_until
from tests.broker.talking import Closed, Talk

SOCKET_BYTES_MAX = 16 << 20
"""What the system may hold for one connection on this machine, at most."""


def test_one_that_never_reads_harms_nobody(tmp_path):
    with served(tmp_path / "log", "--limits", '{"tail_bytes_max": 4000000}') as broker:
        found = run(slow(broker, 100, 15, 1000))
    # The medians are of the same run, on the same machine; anything that waits for the slow one would be far off.
    assert found.with_it_ms < 5 * found.without_ms + 20, found
    assert found.after_bytes < found.before_bytes + found.sent_bytes // 2, found


def test_a_subscriber_far_behind_catches_up_and_the_broker_keeps_nothing_for_it(tmp_path):
    limits = '{"tail_bytes_max": 4000000}'
    with served(tmp_path / "log", "--limits", limits, "--file-bytes", str(4 << 20)) as broker:
        found = run(behind(broker, 200_000))
    assert found.most_bytes < found.before_bytes + (24 << 20), found  # the backlog has about 35 MB
    assert found.went_on_per_s > 0


def test_who_reads_no_answers_is_not_listened_to_any_more(tmp_path):
    """Answers have a limit, too: pings without end don't fill the broker's memory."""
    with served(tmp_path / "log", "--limits", '{"out_bytes_max": 16384}') as broker, Talk(broker.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect()
        before = broker.rss_bytes()
        client.socket.settimeout(2)
        pings = encode(Pingreq(), 5, from_server=False) * (1 << 15)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += client.socket.send(pings)
        except TimeoutError:
            pass
        assert sent < 64 << 20, "it was listened to for ever"
        assert broker.rss_bytes() < before + (16 << 20)
        with Talk(broker.port) as other:
            other.connect()
            assert other.drain() == []
        client.socket.settimeout(60)
        answers = 0  # and whoever reads them after all is listened to again
        while answers < min(sent, 1 << 20):
            answers += len(client.socket.recv(1 << 20))


def test_what_a_client_announces_is_not_set_aside(tmp_path):
    """A length is a claim: memory is taken by bytes that have come."""
    with served(tmp_path / "log") as broker:
        before = broker.rss_bytes()
        clients = [Talk(broker.port) for _ in range(50)]
        for number, client in enumerate(clients):
            client.connect(f"liar-{number}")
            client.raw(b"\x30" + b"\x80\x80\x80\x07" + b"\x00\x01a\x00" + bytes(1000))  # 14 MiB, it says
        assert broker.rss_bytes() < before + (32 << 20)
        for client in clients:
            client.close()


def test_a_connection_that_says_nothing_is_closed(tmp_path):
    with served(tmp_path / "log", "--limits", '{"connect_seconds": 0.5}') as broker, Talk(broker.port) as client:
        assert client.end() is None
        with Talk(broker.port) as half:
            half.raw(encode(Connect("half"), 5, from_server=False)[:-1])
            assert half.end() is None


def test_there_are_no_more_clients_than_allowed(tmp_path):
    with served(tmp_path / "log", "--limits", '{"clients_max": 3}') as broker:
        clients = [Talk(broker.port) for _ in range(3)]
        for client in clients:
            client.connect()
        with Talk(broker.port) as fourth:
            assert fourth.connect().reason_code == ReasonCode.SERVER_BUSY
        clients[0].disconnect()

        def let_in() -> bool:
            with Talk(broker.port) as again:
                try:
                    return again.connect().reason_code == 0
                except (Closed, OSError):
                    return False

        wait_until(let_in)
        for client in clients[1:]:
            client.close()


def publish_until_it_fails(broker: Served, qos: int, first: int) -> int:
    """How many messages from a number on are acknowledged before the disk is full."""
    number = first
    with Talk(broker.port) as publisher:
        publisher.connect()
        try:
            while number < first + 100_000:
                assert publisher.publish("t", b"%d " % number + bytes(1000), qos=qos) == 0
                number += 1
        except (Closed, OSError):
            return number
    raise AssertionError("the disk is never full")


def test_a_full_disk_loses_nothing_that_was_acknowledged_and_passes(tmp_path):
    with served(tmp_path / "log", "--room-bytes", "300000") as broker:
        with Talk(broker.port) as subscriber:
            subscriber.connect("durable", clean=False, expiry=1000)
            subscriber.subscribe("t", qos=2)
        acknowledged = publish_until_it_fails(broker, 1, 0)
        assert acknowledged > 100
        for _ in range(3):  # for these, a new file has no room either
            with Talk(broker.port) as again:
                again.connect()
                again.send(Publish("t", b"-1 " + bytes(400_000), 1, packet_id=1))
                last = again.end()
                assert last is not None
                assert last.reason_code >= 0x80
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, unlimited)
        with Talk(broker.port) as publisher:
            publisher.connect()
            for number in range(acknowledged, acknowledged + 50):
                assert publisher.publish("t", b"%d " % number, qos=1 + number % 2) == 0
        for start in range(2):
            with Talk(broker.port) as subscriber:
                assert subscriber.connect("durable", clean=False, expiry=1000).session_present
                if not start:
                    found = [int(one.payload.split()[0]) for one in subscriber.take(acknowledged + 50)]
                    found += [
                        int(one.payload.split()[0]) for one in subscriber.drain() if isinstance(one, Publish)
                    ]
                    assert [number for number in found if number >= 0] == list(range(acknowledged + 50))
                    assert -1 not in found
            broker.kill()
            broker.start()


def test_a_message_of_quality_2_that_could_not_be_written_at_once_counts_as_new_when_it_comes_again(tmp_path):
    """It fills a turn by itself, so that it is written before the client's session has heard of it."""
    message = Publish("t", bytes(1000), 2, packet_id=7)
    with local(tmp_path / "log", limits=Limits(turn_bytes_max=100)) as found:

        def fail(*_: object) -> None:
            found.broker.intake.appender.append_encoded = works
            raise OSError(errno.ENOSPC, "No space left on device")

        works = found.broker.intake.appender.append_encoded
        found.do(lambda: setattr(found.broker.intake.appender, "append_encoded", fail))
        with Talk(found.port) as publisher:
            publisher.connect("her", clean=False, expiry=1000)
            publisher.send(message)
            assert publisher.end().reason_code >= 0x80
        with Talk(found.port) as publisher:
            publisher.connect("her", clean=False, expiry=1000)
            publisher.send(dataclasses.replace(message, dup=True))
            assert publisher.expect(Pubrec).packet_id == 7
        assert found.broker.intake.messages == 1, "what is acknowledged is in the log"
