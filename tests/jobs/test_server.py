"""The job server under load, kills, full disks and clients who mean no good."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from forelog import Stream
from forelog.formats.commands.commands import MAGIC
from forelog.jobs.log.reader import read_commands
from tests.jobs.serving import Served, Talk, add, job_id, served, wait_until

REFUSED = b"-SERVER-ERROR Read only: the command log can't be written"


def queue_length(talk: Talk, name: str = "q") -> int:
    if talk.ask(f"inspect queue {name}\r\n".encode()) != b"+OK 1":
        return 0
    talk.line()
    length = int(talk.line().split()[1])
    talk.line()
    return length


# -- what is acknowledged stays


class Load(threading.Thread):
    """Adds, leases and completes until the server is gone, and remembers what it was told."""

    def __init__(self, port: int, first: int) -> None:
        super().__init__()
        self.talk = Talk(port)
        self.first = first
        self.added: set[bytes] = set()
        self.completed: set[bytes] = set()
        self.uncertain: set[bytes] = set()

    def run(self) -> None:
        number = self.first
        try:
            while True:
                number += 1
                self.uncertain.add(job_id(number))
                assert self.talk.ask(add(number)) == b"+OK"
                self.uncertain.discard(job_id(number))
                self.added.add(job_id(number))
                if number % 3 == 0:
                    leased = self.talk.lease("q")
                    if leased is not None:
                        self.uncertain.add(leased[0])
                        assert self.talk.ask(b"complete %b 1\r\nr\r\n" % leased[0]) == b"+OK"
                        self.uncertain.discard(leased[0])
                        self.completed.add(leased[0])
        except (OSError, ConnectionError):
            pass
        finally:
            self.talk.close()


def clients_of(talk: Talk) -> int:
    """How many clients the server has."""
    assert talk.ask(b"inspect server\r\n") == b"+OK 1"
    lines = dict(talk.line().split(b" ", 1) for _ in range(4))
    return int(lines[b"active-clients"])


def states_of(talk: Talk, ids: list[bytes]) -> dict[bytes, str]:
    """For each job its state, or nothing for one that isn't there; asked in one go."""
    found = {}
    for start in range(0, len(ids), 200):
        some = ids[start : start + 200]
        talk.send(b"".join(b"inspect job %b\r\n" % number for number in some))
        for number in some:
            if talk.line() == b"-NOT-FOUND":
                continue
            lines = [talk.line() for _ in range(13)]
            found[number] = lines[11].decode().removeprefix("state ")
    return found


@pytest.mark.parametrize("policy", ["os", "always"])
def test_what_was_acknowledged_survives_kill_9(tmp_path, policy, request):
    rounds = max(2, request.config.getoption("--kill-rounds") // (20 if policy == "os" else 50))
    random.seed(policy)
    added: set[bytes] = set()
    completed: set[bytes] = set()
    uncertain: set[bytes] = set()
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", policy, "-cmdlog-seg-size", "64KiB")
    for number in range(rounds + 1):
        with served(*flags) as server:
            talk = server.connect()
            states = states_of(talk, sorted(added | completed))
            missing = [one for one in added - uncertain if one not in states]
            back = [one for one in completed if states.get(one) != "1"]
            assert (missing, back) == ([], []), f"round {number}"
            loads = [Load(server.port, (number * 10 + client) << 20) for client in range(4)]
            for load in loads:
                load.start()
            time.sleep(random.uniform(0.05, 0.25))
            server.kill()
            for load in loads:
                load.join()
                added |= load.added
                completed |= load.completed
                uncertain |= load.uncertain
    assert len(added) > 20 * rounds
    assert completed
    ids = [c.id for _, _, c in read_commands(Stream.open(tmp_path / "log")) if c.word == "add"]
    assert len(ids) == len(set(ids)), "none is doubled"


def test_a_stop_finishes_what_was_begun_and_a_start_knows_it(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log")
    with served(*flags) as server:
        talk = server.connect()
        talk.send(b"".join(add(number) for number in range(1000)))
        assert talk.read(5 * 1000) == b"+OK\r\n" * 1000
        assert "everything is written" in server.stop()
    with served(*flags) as server:
        assert queue_length(server.connect()) == 1000
        assert "1,000 commands replayed, 1,000 jobs" in server.stop()


def test_a_lease_goes_on_through_a_restart_and_ends_when_its_ttr_does(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "os")
    with served(*flags) as server:
        talk = server.connect()
        talk.ask(add(1, ttr_ms=4000))
        began = time.monotonic()
        assert talk.lease("q") is not None
        server.kill()
    with served(*flags) as server:
        talk = server.connect()
        assert talk.lease("q") is None, "it is still leased"
        assert talk.lease("q", 8000)[0] == job_id(1)
        assert time.monotonic() - began > 3.9
        server.stop()


def test_a_ttl_goes_on_through_a_restart(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "os")
    with served(*flags) as server:
        talk = server.connect()
        talk.ask(add(1, ttl_ms=1200))
        talk.ask(add(2))
        server.kill()
    time.sleep(1.3)
    with served(*flags) as server:
        assert states_of(server.connect(), [job_id(1), job_id(2)]) == {job_id(2): "0"}
        assert "1 jobs have expired and were skipped" in server.stop()


def test_a_torn_tail_is_cut_off_and_told(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "os")
    with served(*flags) as server:
        talk = server.connect()
        talk.ask(add(1))
        talk.ask(add(2))
        server.kill()
    segment = tmp_path / "log" / "000000001.log"
    segment.write_bytes(segment.read_bytes()[:-3])
    with served(*flags) as server:
        assert queue_length(server.connect()) == 1
        assert "a torn tail was cut off" in server.stop()


# -- when the log can't be written


def test_a_full_disk_makes_it_read_only_until_there_is_room_again(tmp_path):
    """In a small filesystem of the test's own, filled up by a file beside the log."""
    script = f"""
        set -e
        mount -t tmpfs -o size=4m none {tmp_path}
        exec "$@"
    """
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True)
    if probe.returncode:
        pytest.skip("this system has no user namespaces")
    prefix = ("unshare", "-rm", "sh", "-c", script, "sh")
    with served("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "os", prefix=prefix) as server:
        inside = f"/proc/{server.process.pid}/root{tmp_path}"
        talk, reader = server.connect(), server.connect()
        accepted = [number for number in range(100) if talk.ask(add(number, payload=bytes(1000))) == b"+OK"]
        with open(f"{inside}/ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(4096)):
                pass
        number, refused = 1000, 0
        while refused < 20:
            number += 1
            reply = talk.ask(add(number, payload=bytes(1000)))
            if reply == b"+OK":
                accepted.append(number)
            else:
                assert reply == REFUSED
                refused += 1
            assert queue_length(reader) == len(accepted), "what changes nothing is answered all the time"
        assert talk.ask(b"lease q 0\r\n") == REFUSED
        assert talk.ask(b"complete %b 0\r\n\r\n" % job_id(1)) == REFUSED
        subprocess.run(["rm", f"{inside}/ballast"], check=True)
        wait_until(lambda: talk.ask(add(5000)) in (b"+OK", b"-CLIENT-ERROR Duplicate job"))
        accepted.append(5000)
        assert queue_length(reader) == len(accepted)
        # After what was refused a new segment begins, which gets its name when the one before is sealed.
        log = Stream(f"{inside}/log", magic=MAGIC)
        wait_until(lambda: sum(1 for _ in read_commands(log)) == len(accepted))
        copy = tmp_path.parent / "copy"
        shutil.copytree(f"{inside}/log", copy)
        said = server.stop()
        assert "can't be written" in said
        assert "can be written again" in said
    found = [c.id for _, _, c in read_commands(Stream(copy, magic=MAGIC))]
    assert found == [bytes.fromhex(job_id(one).decode().replace("-", "")) for one in accepted]


def test_under_always_a_failed_sync_refuses_and_reopening_goes_on(tmp_path):
    """strace makes one sync fail: nobody knows what is on disk, so the log is opened again."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    prefix = (
        "strace",
        "-D",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "trace=pwritev2",
        "-e",
        "inject=pwritev2:error=EIO:when=6",
    )
    with served("-cmdlog-path", tmp_path / "log", "-cmdlog-sync", "always", prefix=prefix) as server:
        talk = server.connect()
        replies = {}
        for number in range(30):
            replies[number] = talk.ask(add(number))
            if replies[number] != b"+OK":
                break
        assert replies[number].startswith(b"-SERVER-ERROR Unknown outcome"), "it may be in the log"
        wait_until(lambda: talk.ask(add(100)) in (b"+OK", b"-CLIENT-ERROR Duplicate job"))
        acknowledged = {job_id(one) for one, reply in replies.items() if reply == b"+OK"} | {job_id(100)}
        there = states_of(talk, [job_id(one) for one in (*replies, 100)])
        assert there.keys() >= acknowledged
        talk.close()
        server.process.terminate()
        server.process.wait(30)
    with served("-cmdlog-path", tmp_path / "log") as server:
        assert states_of(server.connect(), [job_id(one) for one in (*replies, 100)]) == there
        server.stop()


# -- cleaning


def test_what_no_job_needs_is_cleaned_away_while_it_serves(tmp_path):
    log = tmp_path / "log"
    flags = ("-cmdlog-path", log, "-cmdlog-seg-size", "16KiB", "-cmdlog-clean-int", "100", "-cmdlog-sync", "os")
    with served(*flags) as server:
        talk = server.connect()
        lasting = [job_id(number) for number in range(0, 3000, 300)]
        for start in range(0, 3000, 100):
            talk.send(b"".join(add(number, payload=bytes(100)) for number in range(start, start + 100)))
            assert talk.read(500) == b"+OK\r\n" * 100
        gone = [job_id(number) for number in range(3000) if job_id(number) not in lasting]
        for start in range(0, len(gone), 100):
            talk.send(b"".join(b"delete %b\r\n" % one for one in gone[start : start + 100]))
            assert talk.read(5 * len(gone[start : start + 100])) == b"+OK\r\n" * len(gone[start : start + 100])

        def size() -> int:
            total = 0
            for file in log.glob("*.log"):
                with contextlib.suppress(FileNotFoundError):  # it is being cleaned meanwhile
                    total += file.stat().st_size
            return total

        written = 3000 * 190 + len(gone) * 37  # by then some of it may have gone already
        wait_until(lambda: size() < written / 3, 30)
        server.kill()
    with served(*flags) as server:
        talk = server.connect()
        assert states_of(talk, [*lasting, *gone]) == dict.fromkeys(lasting, "0"), "the deleted don't come back"
        server.stop()


# -- clients


def test_a_client_in_the_middle_of_a_command_holds_up_nobody(tmp_path):
    with served("-cmdlog-path", tmp_path / "log") as server:
        slow = server.connect()
        slow.send(add(1, payload=bytes(500_000))[:250_000])
        quick = server.connect()
        for number in range(2, 102):
            assert quick.ask(add(number)) == b"+OK"
        slow.send(add(1, payload=bytes(500_000))[250_000:])
        assert slow.line() == b"+OK"
        server.stop()


def test_a_client_who_reads_nothing_costs_no_memory(tmp_path):
    with served() as server:
        talk = server.connect()
        for number in range(100):
            assert talk.ask(add(number, payload=bytes(1 << 20))) == b"+OK"
        before = server.rss_bytes()
        greedy = server.connect()
        greedy.socket.settimeout(1)
        try:
            for _ in range(1000):
                greedy.send(b"inspect jobs q 0 100\r\n" * 10)
        except TimeoutError:
            pass
        time.sleep(0.5)
        assert talk.ask(add(1000)) == b"+OK"
        assert server.rss_bytes() - before < 100 << 20
        server.stop()


def test_a_leaser_who_left_gets_no_job(tmp_path):
    with served() as server:
        talk, gone = server.connect(), server.connect()
        gone.send(b"lease q 60000\r\n")
        wait_until(lambda: clients_of(talk) == 2)
        gone.close()
        wait_until(lambda: clients_of(talk) == 1)
        assert talk.ask(add(1)) == b"+OK"
        assert talk.lease("q")[0] == job_id(1)
        server.stop()


def test_commands_behind_one_that_waits_wait_too(tmp_path):
    with served() as server:
        talk = server.connect()
        talk.send(b"lease q 200\r\n" + add(1) + b"inspect queue q\r\n")
        assert [talk.line() for _ in range(3)] == [b"-TIMEOUT", b"+OK", b"+OK 1"]
        server.stop()


def test_many_clients_share_jobs_fairly(tmp_path):
    with served("-cmdlog-path", tmp_path / "log") as server:
        waiting = [server.connect() for _ in range(200)]
        for talk in waiting:
            talk.send(b"lease q 20000\r\n")
        time.sleep(0.2)
        adder = server.connect()
        adder.send(b"".join(add(number) for number in range(200)))
        got = []
        for talk in waiting:
            assert talk.line() == b"+OK 1"
            got.append(talk.line().split()[0])
        assert got == [job_id(number) for number in range(200)], "who asked first is served first"
        server.stop()


def test_there_is_a_limit_to_clients():
    with served("-max-clients", "3") as server:
        talks = [server.connect() for _ in range(3)]
        assert all(talk.ask(b"inspect queues 0 1\r\n") == b"+OK 0" for talk in talks)
        assert server.connect().line() == b"-SERVER-ERROR Too many clients"
        talks[0].close()
        wait_until(lambda: clients_of(talks[1]) == 2)
        assert server.connect().ask(b"inspect queues 0 1\r\n") == b"+OK 0"
        server.stop()


def test_a_line_without_an_end_is_refused():
    with served() as server:
        talk = server.connect()
        talk.send(b"x" * 20_000)
        assert talk.line() == b"-CLIENT-ERROR Line too long"
        assert talk.is_closed()
        server.stop()


def test_a_token_is_asked_for(tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    with served("-token-file", tmp_path / "token") as server:
        stranger = server.connect()
        assert stranger.ask(add(1)) == b"-CLIENT-ERROR Unauthorized"
        assert stranger.is_closed()
        guesser = server.connect()
        assert guesser.ask(b"auth guess\r\n") == b"-CLIENT-ERROR Unauthorized"
        assert guesser.is_closed()
        friend = server.connect()
        assert friend.ask(b"auth s3cret\r\n") == b"+OK"
        assert friend.ask(add(1)) == b"+OK"
        server.stop()


def test_tls(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -days 1 -addext".split(),
            *("subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    with served("-tls-cert", certificate, "-tls-key", key) as server:
        context = ssl.create_default_context(cafile=certificate)
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as talk,
        ):
            talk.sendall(add(1, payload=bytes(200_000)) + b"inspect queue q\r\n")
            answer = b""
            while b"scheduled-len 0\r\n" not in answer:
                answer += talk.recv(4096)
        assert answer == b"+OK\r\n+OK 1\r\nq 2\r\nready-len 1\r\nscheduled-len 0\r\n"
        server.stop()


# -- starting


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["-cmdlog-sync", "sometimes"], "invalid choice: 'sometimes'"),
        (["-listen", "nowhere"], "'nowhere' isn't an address"),
        (["-cmdlog-seg-size", "big"], "'big' isn't a size"),
        (["-cmdlog-sync-int", "0"], "expected milliseconds"),
        (["-nonsense"], "unrecognized arguments: -nonsense"),
        (["-tls-cert", "a"], "-tls-key go together"),
        (["-token-file", "/nowhere/token"], "/nowhere/token: No such file or directory"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_and_ends_with_2(flags, why):
    with pytest.raises(AssertionError, match="the server ended with 2") as told:
        Served(*flags)
    text = str(told.value)
    assert why in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("flags", "why"),
    [(["-cmdlog-path", "/proc/nothing"], "/proc/nothing"), (["-listen", "192.0.2.1:1"], "192.0.2.1")],
)
def test_what_the_machine_refuses_is_told_and_ends_with_6(flags, why):
    with pytest.raises(AssertionError, match="the server ended with 6") as told:
        Served(*flags)
    assert why in str(told.value)
    assert "Traceback" not in str(told.value)


def test_two_servers_cannot_have_one_log(tmp_path):
    with served("-cmdlog-path", tmp_path / "log") as server:
        with pytest.raises(AssertionError, match="another server has the command log"):
            Served("-cmdlog-path", tmp_path / "log")
        server.stop()


def test_a_log_of_something_else_is_left_alone(tmp_path):
    with Stream(tmp_path / "log").appender() as log:
        log.append(b"mine")
    with pytest.raises(AssertionError, match=r"ended with 4: .* refusing to append to another log"):
        Served("-cmdlog-path", tmp_path / "log")
    with Stream(tmp_path / "log").cursor() as cursor:
        assert [record.payload for record in cursor] == [b"mine"]


def test_damage_in_the_middle_stops_it_unless_it_is_told_to_go_on(tmp_path):
    flags = ("-cmdlog-path", tmp_path / "log", "-cmdlog-seg-size", "4KiB")
    with served(*flags) as server:
        talk = server.connect()
        for number in range(100):
            assert talk.ask(add(number, payload=bytes(100))) == b"+OK"
        server.stop()
    segment = tmp_path / "log" / "000000001.log"
    data = bytearray(segment.read_bytes())
    data[1000] ^= 1
    segment.write_bytes(data)
    with pytest.raises(AssertionError, match="000000001"):
        Served(*flags)
    with served(*flags, "-cmdlog-skip-damage") as server:
        assert 90 <= queue_length(server.connect()) < 100
        server.stop()
