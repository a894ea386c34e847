"""Faults of a real kernel: a full filesystem, a file size limit, syscalls that fail."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from forelog import Stream


def payload(number: int) -> bytes:
    return b"%d:" % number + b"p" * (number * 37 % 900)


def finished(lines: list[str]) -> tuple[list[int], str]:
    """What a writer acknowledged, and the error it ended with."""
    assert lines[0] == "open", lines
    return [int(line.split()[1]) for line in lines[1:-1]], lines[-1]


def found(path: str) -> list[bytes]:
    with Stream(path).cursor() as cursor:
        return [record.payload for record in cursor]


def can_mount() -> bool:
    return shutil.which("unshare") is not None and (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
        == 0
    )


@pytest.mark.skipif(not can_mount(), reason="no permission to mount a small tmpfs")
@pytest.mark.parametrize("policy", ["os", "always"])
def test_a_full_filesystem_loses_nothing_acknowledged_and_leaves_no_half_record(tmp_path, policy):
    script = (
        f"mount -t tmpfs -o size=300k none {tmp_path}/m && "
        f"{sys.executable} -m tests.faults.writer {tmp_path}/m/log {policy} 0 && "
        f"cp -r {tmp_path}/m/log {tmp_path}/copy"
    )
    (tmp_path / "m").mkdir()
    result = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    acknowledged, error = finished(result.stdout.splitlines())
    assert error == "error WriteFailed 28"
    assert len(acknowledged) > 100
    assert found(f"{tmp_path}/copy") == [payload(n) for n in acknowledged]
    with Stream(f"{tmp_path}/copy").appender() as log:
        assert log.recovery.torn is None, "the failed append was undone at once"


def test_a_file_size_limit_is_a_short_write_and_is_undone(tmp_path):
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))

    path = str(tmp_path / "log")
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults.writer", path, "os", "0"],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=60,
    )
    acknowledged, error = finished(result.stdout.splitlines())
    assert error == "error WriteFailed 27"
    assert found(path) == [payload(n) for n in acknowledged]
    assert os.path.getsize(f"{path}/000000001.log") < 15_000


def can_trace() -> bool:
    return shutil.which("strace") is not None and (
        subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_trace(), reason="no strace")
@pytest.mark.parametrize(
    ("inject", "error"),
    [
        ("fdatasync:error=EIO:when=40", "AppenderFailed 5"),
        ("write:error=ENOSPC:when=200", None),
        ("fsync:error=EIO:when=5", None),
    ],
)
def test_syscalls_that_fail_lose_nothing_acknowledged(tmp_path, inject, error):
    path = str(tmp_path / "log")
    trace = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={inject.split(':')[0]}", "-e", f"inject={inject}"]
    process = subprocess.Popen(
        [*trace, sys.executable, "-m", "tests.faults.writer", path, "always", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if len(lines) > 150:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    acknowledged = [int(line.split()[1]) for line in lines[1:] if line[:1].isdigit()]
    if error:
        assert lines[-1] == f"error {error}"
    with Stream(path).appender() as log:
        log.append(b"after")
    payloads = found(path)
    assert payloads[: len(acknowledged)] == [payload(n) for n in acknowledged]
    assert payloads[-1] == b"after"
