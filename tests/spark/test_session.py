"""The local session and its Python workers."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys

import pytest

from forelog.spark import daemon
from forelog.spark.workers import clear_left_behind, workers_of


def test_workers_answer_over_sockets_that_only_their_owner_can_reach(spark):
    folder = spark.conf.get("spark.python.unix.domain.socket.dir")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    spark.range(3).mapInArrow(lambda batches: batches, "id bigint").collect()
    assert [name for name in os.listdir(folder) if name.endswith(".sock")]


def test_folders_of_sessions_that_were_killed_are_removed_and_no_others(tmp_path):
    names = ["forelog-spark-left", "forelog-spark-held", "forelog-spark-fresh", "somebody-elses"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "python").write_text("")
        if name != "forelog-spark-fresh":
            os.utime(tmp_path / name, (0, 0))
    (tmp_path / "forelog-spark-link").symlink_to(tmp_path / "somebody-elses")
    held = os.open(tmp_path / "forelog-spark-held", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    clear_left_behind(str(tmp_path))
    os.close(held)
    assert {found.name for found in tmp_path.iterdir()} == {*names[1:], "forelog-spark-link"}
    assert (tmp_path / "somebody-elses" / "python").exists()


def test_a_python_of_the_users_own_is_left_as_it_is(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert workers_of("local[2]") == ("/opt/python", {})
    monkeypatch.delenv("PYSPARK_PYTHON")
    assert workers_of("spark://10.0.0.1:7077") == (sys.executable, {})


def test_all_of_sparks_daemons_are_ours(spark):
    script, _ = workers_of("local")
    told = subprocess.run([script, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
    assert told.stdout.strip() == sys.executable
    environment = {**os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "true"}  # and no folder for it, which is told
    wrong = subprocess.run([script, "-m", "pyspark.daemon"], env=environment, input=b"", capture_output=True)
    assert b"forelog/spark/daemon.py" in wrong.stderr
    assert spark.sparkContext.pythonExec == script


def test_a_worker_whose_query_has_enough_rows_ends_without_a_word(monkeypatch):
    def send(sock: socket.socket, authenticated: bool) -> int:
        sock.sendall(b"rows")
        return 0

    monkeypatch.setattr(daemon, "_worker", send)
    ours, theirs = socket.socketpair()
    with ours:
        assert daemon.worker(ours, True) == 0
        theirs.close()
        with pytest.raises(BrokenPipeError):
            send(ours, True)
        assert daemon.worker(ours, True) == 1


def test_the_daemon_ends_its_own_workers_and_nobody_else():
    ours = daemon.OwnChildren()
    assert ours.getpid() == os.getpid()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stranger = int(
        subprocess.check_output(
            [sys.executable, "-c", "import subprocess as s; print(s.Popen(['sleep', '60'], stdout=s.DEVNULL).pid)"]
        )
    )
    try:
        with pytest.raises(ProcessLookupError, match="not a worker"):
            ours.kill(stranger, signal.SIGKILL)
        os.kill(stranger, 0)  # it is there
        thread = next(int(name) for name in os.listdir("/proc/self/task"))
        with pytest.raises(ProcessLookupError):
            ours.kill(thread, signal.SIGKILL)
        ours.kill(child.pid, signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            ours.kill(child.pid, signal.SIGKILL)
    finally:
        os.kill(stranger, signal.SIGKILL)
        child.kill()
        child.wait()


def test_sparks_logging_is_configured_by_a_file_that_nobody_else_can_write(tmp_path):
    """Whoever knows its name before it is there could make it, and have Spark run what it says."""
    code = (
        "import os; from forelog.spark.session import _log4j_file; path = _log4j_file(); "
        "folder = os.stat(os.path.dirname(path)); "
        "assert _log4j_file() == path and 'rootLogger' in open(path).read(); "
        "print(path, oct(folder.st_mode & 0o777), folder.st_uid == os.getuid())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert [rest for _, *rest in told] == [["0o700", "True"]] * 2
    assert told[0][0] != told[1][0]
    assert list(tmp_path.iterdir()) == []  # removed with the process
