"""Those who haven't shown a token: what they cost, for how long, and who notices."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

import pytest

from forelog.cli import main
from forelog.jobs.server.door import ADDRESSES_MAX, Door
from tests.jobs.serving import Served, Talk, served

TOKEN = b"sesame-open-now"
IN = b"auth " + TOKEN + b"\r\n"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN)
    return path


def strangers(server: Served, count: int, sent: bytes = b"") -> list[Talk]:
    found = []
    for _ in range(count):
        found.append(server.connect())
        found[-1].send(sent)
    return found


def test_silent_connections_keep_nobody_out(token_file):
    with served("-token-file", token_file, "-max-strangers", "20", "-max-clients", "3") as server:
        first = server.connect()
        assert first.ask(IN) == b"+OK"
        silent = strangers(server, 100)
        second, third, fourth = (server.connect() for _ in range(3))
        assert [talk.ask(IN) for talk in (second, third)] == [b"+OK", b"+OK"]
        assert fourth.ask(IN) == b"-SERVER-ERROR Too many clients"
        assert first.ask(b"lease q 0\r\n") == b"-TIMEOUT"
        assert silent[0].is_closed(), "the oldest had to go"


def test_before_the_token_there_are_few_bytes_and_few_seconds(token_file):
    with served("-token-file", token_file) as server:
        before = server.rss_bytes()
        for talk in strangers(server, 100, b"x" * 5000):
            assert talk.line() == b"-CLIENT-ERROR Line too long"
            assert talk.is_closed()
        slow = server.connect()
        began = time.monotonic()
        with pytest.raises((ConnectionError, AssertionError)):
            while time.monotonic() - began < 25:  # a byte now and then doesn't extend it
                slow.send(b"x")
                time.sleep(0.3)
                assert slow.silence(0.01) == b""
                slow.socket.setblocking(False)
                try:
                    assert slow.socket.recv(1) != b"", "closed"
                except BlockingIOError:
                    pass
                slow.socket.settimeout(10)
        assert 8 < time.monotonic() - began < 20
        assert server.rss_bytes() - before < 20 << 20


def test_what_comes_with_a_wrong_token_is_not_read(token_file):
    with served("-token-file", token_file) as server:
        before = server.rss_bytes()
        talks = strangers(server, 40, b"auth wrong\r\n")
        for talk in talks:
            talk.socket.settimeout(0.05)
            try:
                for _ in range(200):
                    talk.socket.sendall(bytes(1 << 16))
            except (TimeoutError, ConnectionError):
                pass
        assert server.rss_bytes() - before < 30 << 20
        assert server.connect().ask(IN) == b"+OK"


def test_guessing_takes_longer_each_time_and_a_right_token_does_not_wait(token_file):
    with served("-token-file", token_file) as server:
        guesses = strangers(server, 30, b"auth guess\r\n")
        began = time.monotonic()
        assert server.connect().ask(IN) == b"+OK"
        assert time.monotonic() - began < 2
        assert guesses[0].line() == b"-CLIENT-ERROR Unauthorized"
        assert guesses[-1].silence(0.2) == b"", "the thirtieth waits for seconds"
        said = server.stop()
    assert "jobs: refused from=127.0.0.1:" in said
    assert 'reason="a wrong token"' in said
    assert "refused and " in said, "not a line for each"
    assert "jobs: connected from=127.0.0.1:" in said
    assert "guess" not in said
    assert TOKEN.decode() not in said


def test_what_is_no_protocol_is_one_line_in_the_log():
    with served() as server:
        talk = server.connect()
        talk.send(b"GET / HTTP/1.1\nHost: x\n\n")
        assert talk.is_closed()
        talk = server.connect()
        talk.send(b"x" * 20_000)
        assert talk.line() == b"-CLIENT-ERROR Line too long"
        said = server.stop()
    assert "jobs: protocol error from=127.0.0.1:" in said
    assert 'reason="line without CR LF"' in said
    assert 'reason="line too long"' in said


def test_wrong_tokens_are_remembered_of_so_many_addresses():
    now = [0.0]
    door = Door(clock=lambda: now[0])
    delays = [door.delay("a") for _ in range(12)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (0.1, 5.0)
    for number in range(2 * ADDRESSES_MAX):
        door.delay(str(number))
    assert len(door._wrong) == ADDRESSES_MAX
    assert door.delay("a") == 0.1
    now[0] += 3600
    assert door.delay("a") == 0.1, "forgotten after a while"


def test_the_address_that_has_most_gives_way():
    door = Door(strangers_max=10)
    crowd = [object() for _ in range(9)]
    for one in crowd:
        assert door.enter(one, "crowd") is None
    assert door.enter("alone", "other") is None
    assert door.enter("last", "third") is crowd[0]
    assert door.leave(crowd[0])
    assert not door.leave(crowd[0])
    assert len(door) == 10


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_everybody_can_reach_without_a_token_says_so(tls, tmp_path):
    words = [sys.executable, "-m", "forelog.cli.jobs.serve", "-listen", "0.0.0.0:0"]
    if tls:
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl to make a certificate with")
        key, cert = str(tmp_path / "key"), str(tmp_path / "cert")
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
        words += ["-tls-cert", cert, "-tls-key", key]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    said = b""
    while b"serving jobs" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    process.terminate()
    process.communicate(timeout=20)
    assert b"anyone who reaches 0.0.0.0 can add and take jobs: see -token-file" in said


def test_versions_and_subcommands_are_told(capsys):
    from forelog.cli.jobs.serve import main as workq

    assert workq(["--version"]) == 0
    assert workq(["-version"]) == 0
    assert capsys.readouterr().out.count("workq-server (forelog) ") == 2
    for name, expected in (("jobs", "inspect"), ("broker", "serve")):
        assert main([name]) == 2
        said = capsys.readouterr().err
        assert f"usage: forelog {name}" in said
        assert expected in said
