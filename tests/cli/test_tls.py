"""TLS of all three servers: who gets in, with which name and certificate, and what is said where one has none."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forelog.errors import BadReply, ConnectionLost, ForelogError
from forelog.jobs import AsyncClient, Client
from forelog.serving.handshakes import Handshakes
from forelog.serving.lobby import Lobby
from forelog.serving.notices import Notices
from forelog.serving.tls import Certificates, client_context, peer_name
from forelog.state import PersistentDict

x509 = pytest.importorskip("cryptography.x509")
pytest.importorskip("msgspec")

WHERE = re.compile(r" at [\d.]+:(\d+)")
SERVERS = {
    "broker": ("broker", "serve", "--log", "DIR", "--listen-tls", "127.0.0.1:0"),
    "jobs": ("jobs", "serve", "-cmdlog-path", "DIR", "-listen", "127.0.0.1:0"),
    "replica": ("replica", "serve", "--dir", "DIR", "--listen", "127.0.0.1:0"),
}
PLAIN = {**SERVERS, "broker": ("broker", "serve", "--log", "DIR", "--listen", "127.0.0.1:0")}
everywhere = pytest.mark.parametrize("kind", list(SERVERS))


class Authority:
    """Signs certificates, and writes them to files."""

    def __init__(self, folder: Path, name: str) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec

        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = str(folder / f"{name}-ca.pem")
        self._certificate = self._sign(name, self._key, authority=True)
        self._write(self.path, self._certificate)

    def _sign(self, name: str, key, *, authority: bool = False, named: bool = True):
        from cryptography.hazmat.primitives import hashes
        from cryptography.x509.oid import NameOID

        now = datetime.datetime.now(datetime.UTC)
        whose = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)])
        attribute = NameOID.COMMON_NAME if named else NameOID.ORGANIZATION_NAME
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        signs = dict.fromkeys(("key_cert_sign", "crl_sign"), authority)
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
        usage = x509.KeyUsage(True, **signs, **dict.fromkeys((*others, "decipher_only"), False))
        own_key, its_key = self._key.public_key(), key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(attribute, name)]))
            .issuer_name(whose)
            .public_key(its_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(authority, None), True)
            .add_extension(usage, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(its_key), False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own_key), False)
            .add_extension(x509.SubjectAlternativeName(names), False)
            .sign(self._key, hashes.SHA256())
        )

    @staticmethod
    def _write(path: str, certificate) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding

        Path(path).write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self, name: str, file: str | None = None, *, rsa: bool = False, named: bool = True
    ) -> tuple[str, str]:
        """The files of a certificate and its key."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric import rsa as rivest
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = rivest.generate_private_key(65537, 2048) if rsa else ec.generate_private_key(ec.SECP256R1())
        certificate, keyed = (str(self._folder / f"{file or name}.{end}") for end in ("pem", "key"))
        self._write(certificate, self._sign(name, key, named=named))
        Path(keyed).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, keyed


class Served:
    """A server in a process, and the lines that it logs."""

    def __init__(self, words: tuple[str, ...], folder: Path, *flags: str) -> None:
        words = tuple(str(folder) if word == "DIR" else word for word in words)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forelog", *words, *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait_for(" at ")
        self.port = int(WHERE.search("\n".join(self.lines))[1])

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line)

    def wait_for(self, text: str, seconds: float = 30) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.lines:
                if text in line:
                    return line
            assert self.process.poll() is None or self._reader.is_alive() or text in "".join(self.lines), (
                self.lines
            )
            time.sleep(0.01)
        raise AssertionError(f"no line with {text!r}: {self.lines}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)
        self._reader.join(10)
        self.process.stderr.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    with contextlib.ExitStack() as stack:

        def start(words: tuple[str, ...], *flags: str) -> Served:
            served = Served(words, tmp_path / "data", *flags)
            stack.callback(served.close)
            return served

        yield start


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"), "house")


@pytest.fixture(scope="module")
def server_files(pki: Authority) -> tuple[str, str]:
    return pki.issue("server")


def flags(kind: str, files: tuple[str, str], *more: str) -> tuple[str, ...]:
    return ("--tls-cert", files[0], "--tls-key", files[1], *more)


def shake_hands(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A TLS connection, after the server has had its say about our certificate."""
    sock = context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="localhost")
    sock.settimeout(0.5)
    try:
        if sock.recv(1) == b"":
            sock.close()
            raise ConnectionResetError("the server closed it")
    except TimeoutError:
        pass
    except OSError:
        sock.close()
        raise
    return sock


def serial_of(port: int, authority: str) -> int:
    with shake_hands(port, client_context(authority)) as sock:
        return int(str(sock.getpeercert()["serialNumber"]), 16)


# -- certificates of clients


@everywhere
def test_only_those_get_in_that_have_a_certificate_of_the_authority(kind, serve, pki, server_files, tmp_path):
    served = serve(SERVERS[kind], *flags(kind, server_files, "--tls-client-ca", pki.path))
    stranger = Authority(tmp_path, "strangers").issue("stranger")
    shake_hands(served.port, client_context(pki.path, *pki.issue("ann"))).close()
    for context in (client_context(pki.path), client_context(pki.path, *stranger)):
        with pytest.raises(OSError):  # noqa: PT011 - TLS 1.3 tells it late, and in several ways
            shake_hands(served.port, context)
    assert "127.0.0.1" in served.wait_for("certificate")


def test_the_broker_takes_the_users_name_from_the_certificate(serve, pki, server_files, tmp_path):
    users, rules = tmp_path / "users", tmp_path / "rules"
    for name in ("ann", "bob"):
        subprocess.run(
            [sys.executable, "-m", "forelog", "broker", "passwd", str(users), name],
            input="secret\n",
            text=True,
            check=True,
            capture_output=True,
        )
    rules.write_text("user ann\ntopic readwrite ann/#\nuser bob\ntopic readwrite bob/#\n")
    served = serve(
        SERVERS["broker"],
        *flags("broker", server_files, "--tls-client-ca", pki.path, "--tls-user-from-cert"),
        *("--users", str(users), "--acl", str(rules)),
    )

    def publish(files: tuple[str, str], topic: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["broker", "pub", topic, "x", "--server", f"localhost:{served.port}", "--tls-ca", pki.path]
        words += ["--tls-cert", files[0], "--tls-key", files[1], *more]
        return subprocess.run(
            [sys.executable, "-m", "forelog", *words], capture_output=True, text=True, timeout=60
        )

    ann, eve = pki.issue("ann"), pki.issue("eve")
    assert publish(ann, "ann/1").returncode == 0
    assert publish(ann, "bob/1").returncode != 0
    (tmp_path / "password").write_text("secret\n")
    as_bob = ("--user", "bob", "--password-file", str(tmp_path / "password"))
    assert publish(ann, "bob/1", *as_bob).returncode != 0  # what it says of itself doesn't count
    assert publish(ann, "ann/1", *as_bob).returncode == 0
    assert publish(eve, "ann/1").returncode != 0  # a certificate, but no user
    assert "user=eve" in served.wait_for("login refused")
    assert publish(pki.issue("nobody", named=False), "ann/1").returncode != 0
    users.write_text("".join(line for line in users.read_text().splitlines(True) if not line.startswith("ann:")))
    served.process.send_signal(signal.SIGHUP)
    served.wait_for("are read again")
    assert publish(ann, "ann/1").returncode != 0


def test_a_name_comes_from_the_subject_or_else_from_the_first_other_name(pki, server_files):
    def name(*files: str) -> str | None:
        server = Certificates(*server_files, client_authorities=pki.path).context
        client = client_context(pki.path, *files)
        one, other = socket.socketpair()
        found: list[str | None] = []

        def shake() -> None:
            with server.wrap_socket(other, server_side=True) as secured:
                found.append(peer_name(secured))

        thread = threading.Thread(target=shake)
        thread.start()
        with client.wrap_socket(one, server_hostname="localhost"):
            thread.join(30)
        return found[0]

    assert name(*pki.issue("ann")) == "ann"
    assert name(*pki.issue("ann's house", file="house", named=False)) == "localhost"
    assert peer_name(None) is None


# -- versions, and other certificates


@everywhere
def test_versions_and_ciphers_of_today(kind, serve, pki, server_files):
    served = serve(SERVERS[kind], *flags(kind, server_files))
    for version, ciphers, fine in (
        (ssl.TLSVersion.TLSv1_3, "DEFAULT", True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AESGCM", True),
        (ssl.TLSVersion.TLSv1_2, "ECDHE+AES256+SHA384:!AESGCM", False),
        (ssl.TLSVersion.TLSv1_1, "DEFAULT@SECLEVEL=0", False),
        (ssl.TLSVersion.TLSv1, "DEFAULT@SECLEVEL=0", False),
    ):
        context = ssl.create_default_context(cafile=pki.path)
        context.set_ciphers(ciphers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = version
        with contextlib.nullcontext() if fine else pytest.raises(OSError):  # noqa: PT011 - which one doesn't matter
            shake_hands(served.port, context).close()


@everywhere
def test_new_certificates_count_after_a_signal_and_bad_ones_do_not(kind, serve, tmp_path):
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    files = first.issue("server", "current", rsa=True)
    served = serve(SERVERS[kind], *flags(kind, files))
    before = serial_of(served.port, first.path)
    with shake_hands(served.port, client_context(first.path)) as kept:
        second.issue("server", "next")  # of another authority, and with a key of another kind
        for end in ("pem", "key"):
            os.replace(tmp_path / f"next.{end}", tmp_path / f"current.{end}")
        served.process.send_signal(signal.SIGHUP)
        served.wait_for("are read again")
        assert serial_of(served.port, second.path) != before
        with pytest.raises(ssl.SSLError):
            shake_hands(served.port, client_context(first.path))
        kept.settimeout(0.2)
        with pytest.raises(TimeoutError):
            kept.recv(1)  # who is connected stays
    after = serial_of(served.port, second.path)
    Path(files[1]).write_text("rubbish")
    served.process.send_signal(signal.SIGHUP)
    served.wait_for("stays as it was")
    assert serial_of(served.port, second.path) == after


def test_new_authorities_count_after_a_reload(tmp_path, pki, server_files):
    one, other = Authority(tmp_path, "one"), Authority(tmp_path, "other")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Path(one.path).read_bytes())
    certificates = Certificates(*server_files, client_authorities=str(trusted))

    async def admitted(files: tuple[str, str]) -> bool:
        seen = asyncio.get_running_loop().create_future()

        async def came(reader, writer) -> None:
            seen.set_result(True)
            writer.close()

        server = await asyncio.start_server(came, "127.0.0.1", 0, ssl=certificates.context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "localhost", port, ssl=client_context(pki.path, *files)
                )
                with contextlib.suppress(OSError):
                    await reader.read(1)
                writer.close()
            return seen.done()

    ann, bob = one.issue("ann"), other.issue("bob")
    assert [asyncio.run(admitted(ann)), asyncio.run(admitted(bob))] == [True, False]
    trusted.write_bytes(Path(other.path).read_bytes())
    certificates.reload()
    assert [asyncio.run(admitted(ann)), asyncio.run(admitted(bob))] == [False, True]
    trusted.write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        certificates.reload()
    assert asyncio.run(admitted(bob))


@everywhere
@pytest.mark.parametrize("wrong", ["key", "certificate", "authorities", "half", "missing"])
def test_files_that_arent_right_are_told_at_the_start(kind, wrong, pki, server_files, tmp_path):
    certificate, key = server_files
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("-----BEGIN")
    given = {
        "key": flags(kind, (certificate, str(rubbish))),
        "certificate": flags(kind, (str(rubbish), key)),
        "authorities": flags(kind, server_files, "--tls-client-ca", str(rubbish)),
        "half": ("--tls-cert", certificate),
        "missing": flags(kind, (certificate, str(tmp_path / "nothing"))),
    }[wrong]
    words = [str(tmp_path / "data") if word == "DIR" else word for word in SERVERS[kind]]
    ended = subprocess.run(
        [sys.executable, "-m", "forelog", *words, *given], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert {"half": "-tls-key", "missing": "nothing"}.get(wrong, "rubbish") in ended.stderr


# -- one side speaks TLS, and the other doesn't


@everywhere
def test_a_client_without_tls_is_logged_and_closed(kind, serve, server_files):
    served = serve(SERVERS[kind], *flags(kind, server_files))
    with socket.create_connection(("127.0.0.1", served.port), 30) as plain:
        plain.sendall(b"\x00\x00\x00\x02\x01\x80")
        with contextlib.suppress(ConnectionResetError):
            while plain.recv(4096):
                pass
    line = served.wait_for("does not speak")
    assert "TLS" in line
    assert "127.0.0.1" in line


@pytest.mark.parametrize("kind", ["broker", "replica"])
def test_a_client_with_tls_is_logged_and_closed_where_nobody_speaks_it(kind, serve, pki):
    served = serve(PLAIN[kind])
    with pytest.raises(OSError):  # noqa: PT011 - whichever comes first
        shake_hands(served.port, client_context(pki.path))
    assert "127.0.0.1" in served.wait_for("speaks TLS")


def test_clients_say_which_side_speaks_no_tls(serve, pki, server_files, tmp_path):
    jobs = serve(SERVERS["jobs"], *flags("jobs", server_files))
    with (
        pytest.raises(ForelogError, match="expects TLS"),
        Client(f"127.0.0.1:{jobs.port}", retry_seconds=0) as client,
    ):
        client.add("q", b"x")

    async def ask() -> None:
        async with AsyncClient(f"127.0.0.1:{jobs.port}", retry_seconds=0) as client:
            await client.add("q", b"x")

    with pytest.raises(ForelogError, match="expects TLS"):
        asyncio.run(ask())
    with Client(f"localhost:{jobs.port}", tls=client_context(pki.path), retry_seconds=0) as client:
        client.add("q", b"x")


def answering(answer: bytes) -> tuple[socket.socket, int]:
    """A server that answers whatever comes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve_one() -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(4096)
                accepted.sendall(answer)
                accepted.shutdown(socket.SHUT_WR)
                while accepted.recv(4096):
                    pass

    threading.Thread(target=serve_one, daemon=True).start()
    return listening, listening.getsockname()[1]


ALERT = bytes.fromhex("15030100020246")


def test_clients_know_the_alert_of_a_server_that_expects_tls(tmp_path, capsys):
    from forelog.cli import main

    listening, port = answering(ALERT)
    with (
        listening,
        pytest.raises(BadReply, match="expects TLS"),
        Client(f"127.0.0.1:{port}", retry_seconds=0) as one,
    ):
        one.add("q", b"x")
    listening, port = answering(ALERT)
    with listening:
        assert main(["broker", "pub", "a", "b", "--server", f"127.0.0.1:{port}"]) != 0
        assert "expects TLS" in capsys.readouterr().err
    listening, port = answering(ALERT)
    with listening, PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(f"replica://127.0.0.1:{port}/x")
        deadline = time.monotonic() + 30
        while "expects TLS" not in (things.log.health().destinations[name].error or ""):
            assert time.monotonic() < deadline


def test_clients_know_a_server_that_speaks_no_tls(tmp_path, capsys):
    from forelog.cli import main

    listening, port = answering(b"-CLIENT-ERROR Unknown command\r\n")
    with (
        listening,
        pytest.raises(ConnectionLost, match="does not speak TLS"),
        Client(f"127.0.0.1:{port}", tls=True, retry_seconds=0) as one,
    ):
        one.add("q", b"x")
    listening, port = answering(b"\x20\x02\x00\x00")
    with listening:
        assert main(["broker", "pub", "a", "b", "--tls", "--server", f"127.0.0.1:{port}"]) != 0
        assert "speak TLS" in capsys.readouterr().err
    listening, port = answering(b"\x00\x00\x00\x02\x03\x80")
    with listening, PersistentDict(str(tmp_path / "log")) as things:
        name = things.log.add_destination(f"replica://127.0.0.1:{port}/x", tls=True)
        deadline = time.monotonic() + 30
        while "does not speak TLS" not in (things.log.health().destinations[name].error or ""):
            assert time.monotonic() < deadline


# -- handshakes that don't end


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_has_a_deadline_from_accepting_the_socket(said, server_files):
    notices = Notices("test")

    async def wait() -> float:
        lobby = Lobby(Certificates(*server_files).context, asyncio.Protocol, notices, seconds=0.3)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lobby.accept, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            began = time.monotonic()
            for byte in said:
                writer.write(bytes((byte,)))
            with contextlib.suppress(OSError):
                assert await asyncio.wait_for(reader.read(), 30) is not None
            writer.close()
            return time.monotonic() - began

    assert asyncio.run(wait()) < 20
    assert notices.counts == {"TLS refused": 1}


def test_handshakes_have_so_many_places_and_the_oldest_goes(pki, server_files):
    notices = Notices("test")

    async def fill() -> tuple[int, bool]:
        came = asyncio.get_running_loop().create_future()

        class Here(asyncio.Protocol):
            def connection_made(self, transport) -> None:
                came.set_result(True)
                transport.close()

        lobby = Lobby(Certificates(*server_files).context, Here, notices, places=5)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lobby.accept, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            silent = [await asyncio.open_connection(host, port) for _ in range(40)]
            while notices.counts.get("no TLS handshake", 0) < 35:
                await asyncio.sleep(0.01)
            waiting = lobby.waiting
            _, writer = await asyncio.open_connection("localhost", port, ssl=client_context(pki.path))
            writer.close()
            found = await asyncio.wait_for(came, 30)
            for _, one in silent:
                one.close()
            lobby.close()
            await asyncio.sleep(0.05)
            return waiting, found

    assert asyncio.run(fill()) == (5, True)


@pytest.mark.parametrize("token", [False, True])
def test_a_job_server_in_the_open_without_a_token_warns_with_tls_too(token, serve, server_files, tmp_path):
    (tmp_path / "token").write_text("s3cret")
    words = ("jobs", "serve", "-cmdlog-path", "DIR", "-listen", "0.0.0.0:0")
    more = ("--token-file", str(tmp_path / "token")) if token else ()
    served = serve(words, *flags("jobs", server_files), *more)
    assert any("anyone who reaches 0.0.0.0" in line for line in served.lines) is not token


def test_handshakes_begin_a_few_at_a_time_and_addresses_take_turns():
    """A thousand that began in the same moment held up everybody for 0.15 s."""
    begun: list[str] = []

    async def shake(handshakes: Handshakes, host: str, enough: asyncio.Event) -> None:
        async with handshakes.turn(host):
            begun.append(host)
            await enough.wait()

    async def main() -> None:
        enough = asyncio.Event()
        handshakes = Handshakes(together=4, pause_seconds=0.001, unfinished_max=100)
        flood = [asyncio.create_task(shake(handshakes, "flood", enough)) for _ in range(50)]
        await asyncio.sleep(0)
        assert len(begun) == 4
        other = asyncio.create_task(shake(handshakes, "other", enough))
        while "other" not in begun:
            await asyncio.sleep(0)
        assert len(begun) <= 12, "it didn't wait for those that had come before it"
        while len(begun) < 51:
            await asyncio.sleep(0.001)
        enough.set()
        await asyncio.gather(*flood, other)

    asyncio.run(main())


def test_handshakes_that_are_never_finished_make_room_for_others():
    async def main() -> None:
        handshakes = Handshakes(together=100, unfinished_max=10)
        ended: list[int] = []

        async def shake(number: int) -> None:
            try:
                async with handshakes.turn("host"):
                    await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append(number)

        tasks = [asyncio.create_task(shake(number)) for number in range(25)]
        while len(ended) < 15:
            await asyncio.sleep(0)
        assert ended == list(range(15))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    asyncio.run(main())
