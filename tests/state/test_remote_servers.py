"""Copies over real protocols: sftp to an OpenSSH server, and S3's API, both on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

from forelog.copies.addresses import source_directory
from forelog.copies.store.fetch import fetch
from forelog.errors import ReplicaError, Superseded
from forelog.state import PersistentDict

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
BUCKET_ID = "key-of-the-test"


class Place(NamedTuple):
    """Somewhere to keep copies."""

    where: str
    options: dict[str, Any]
    stop: Callable[[], None]
    start: Callable[[], None]


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it is so; the deadline is only there to end a test that has failed."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Server:
    """A process that listens on a port, started and ended as a test needs it."""

    def __init__(self, command: Callable[[int], list[str]], log: Path) -> None:
        self.port = free_port()
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command(self.port), stdout=output, stderr=output)
        wait_for(self._listens)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as client:
            client.settimeout(5)
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            sessions = _children(self._process.pid)  # of sshd: they would go on serving
            self._process.kill()
            self._process.wait(30)
            for pid in sessions:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process = None


def own_run_folder() -> list[str]:
    """What to start sshd with, as root, where the system has no /run/sshd: a /run that only it sees."""
    if os.getuid() != 0 or Path("/run/sshd").is_dir():
        return []
    inside = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        'mount -t tmpfs own /run && mkdir -m 755 /run/sshd && exec "$0" "$@"',
    ]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("sshd needs /run/sshd, which isn't there, and no /run of its own can be made for it")
    return inside


def _children(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(word) for word in listed.read_text().split()] if listed.exists() else []
    return found + [one for child in found for one in _children(child)]


@contextlib.contextmanager
def sftp(folder: Path) -> Iterator[Place]:
    """OpenSSH's server as a process of ours: its own keys, its own configuration, one folder."""
    pytest.importorskip("paramiko", reason="paramiko is not installed")
    if SSHD is None:
        pytest.skip("there is no sshd here: install openssh-server")
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "client.pub", folder / "authorized")
    config = folder / "config"
    config.write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nPidFile none\nStrictModes no\n"
        "ListenAddress 127.0.0.1\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "PermitRootLogin prohibit-password\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
    )
    # -D: without it, it would go away from us, and nobody could end it.
    inside = own_run_folder()
    server = Server(lambda port: [*inside, SSHD, "-D", "-e", "-p", str(port), "-f", str(config)], folder / "log")
    (folder / "store").mkdir()
    server.start()
    try:
        yield Place(
            f"sftp://127.0.0.1:{server.port}{folder}/store/deep/prices",
            {"username": os.environ.get("USER") or "root", "key_filename": str(folder / "client"), "timeout": 60,
             "look_for_keys": False, "allow_agent": False, "banner_timeout": 60, "auth_timeout": 60},
            server.stop,
            server.start,
        )  # fmt: skip
    finally:
        server.stop()


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[Place]:
    """moto's server, which speaks S3's API over HTTP."""
    pytest.importorskip("moto", reason="moto is not installed")
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("flask", reason="flask is not installed")
    import boto3

    code = "from moto.server import main; main()"
    server = Server(lambda port: [sys.executable, "-c", code, "-H", "127.0.0.1", "-p", str(port)], folder / "log")
    address = f"http://127.0.0.1:{server.port}"

    def start() -> None:
        server.start()
        client = boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1",
            aws_access_key_id=BUCKET_ID, aws_secret_access_key="not-secret",
        )  # fmt: skip
        client.create_bucket(Bucket="bank")
        client.close()

    start()
    try:
        options = {"key": BUCKET_ID, "secret": "not-secret", "endpoint_url": address,
                   "client_kwargs": {"region_name": "us-east-1"}}  # fmt: skip
        yield Place("s3://bank/deep/prices", options, server.stop, start)
    finally:
        server.stop()


@pytest.fixture(params=[sftp, s3], ids=["sftp", "s3"])
def place(request, tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with request.param(folder) as found:
        yield found


def caught_up(data: PersistentDict) -> bool:
    health = data.log.health()
    return health.healthy and all(one.lag_bytes == 0 for one in health.destinations.values())


def test_a_copy_is_kept_up_restored_and_gone_on_with(tmp_path, place):
    with PersistentDict(str(tmp_path / "log")) as data:
        data["text"] = "x" * 3_000_000
        data.log.add_destination(place.where, interval=0.01, storage_options=place.options)
        for number in range(30):
            data[number % 10] = number
            if number % 10 == 0:
                wait_for(lambda: caught_up(data))
        data.rotate()
        data["last"] = True
        wait_for(lambda: caught_up(data))
        found = fetch(place.where, tmp_path / "new", place.options)
        with PersistentDict(str(tmp_path / "new"), promote=True) as new:
            assert dict(new) == dict(data)
            assert found.position.segment > 1
            new["more"] = 1
            new.log.add_destination(place.where, interval=0.01, storage_options=place.options)
            wait_for(lambda: caught_up(new))
            new["more"] = 2
        data["late"] = True  # the old primary learns of the new one when it sends this
        wait_for(lambda: not data.log.health().healthy)
        with pytest.raises(Superseded, match="is over"):
            data["later"] = True
    with (
        source_directory(place.where, place.options, beside=tmp_path / "x") as path,
        PersistentDict(path) as again,
    ):
        assert again["more"] == 2
        assert "late" not in again


def test_a_copy_goes_on_after_its_server_was_away(tmp_path, place):
    with PersistentDict(str(tmp_path / "log")) as data:
        data["a"] = 1
        options = {**place.options, "config_kwargs": {"retries": {"max_attempts": 1}, "connect_timeout": 2}}
        options = options if place.where.startswith("s3") else place.options
        name = data.log.add_destination(place.where, interval=0.01, storage_options=options)
        wait_for(lambda: caught_up(data))
        place.stop()
        data["b"] = 2
        wait_for(lambda: not data.log.health().healthy)
        assert place.where in str(data.log.health().destinations[name].error)
        place.start()  # moto has forgotten everything: then all of it comes again
        data["c"] = 3
        wait_for(lambda: caught_up(data))
        fetch(place.where, tmp_path / "new", place.options)
        with PersistentDict(str(tmp_path / "new")) as new:
            assert dict(new) == {"a": 1, "b": 2, "c": 3}


def test_a_bucket_that_is_not_there_is_told_of_and_not_made(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with s3(folder) as place, PersistentDict(str(tmp_path / "log")) as data:
        where = "s3://no-such-bucket/prices"
        data.log.add_destination(where, interval=0.01, storage_options=place.options)
        wait_for(lambda: not data.log.health().healthy)
        assert "no such folder or bucket" in str(data.log.health().destinations[where].error)
        with pytest.raises(ReplicaError, match="there is no manifest"):
            fetch(where, tmp_path / "new", place.options)


def test_a_key_that_the_server_does_not_know_is_told_of(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with sftp(folder) as place:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other")], check=True)
        with pytest.raises(ReplicaError, match=r"connecting failed: .*Are the credentials right"):
            fetch(place.where, tmp_path / "new", {**place.options, "key_filename": str(folder / "other")})
