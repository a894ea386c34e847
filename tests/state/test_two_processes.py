"""Two primaries of one log as processes, both at work for a while: what either was acknowledged is in the copy."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec", reason="fsspec is not installed")

from forelog.copies.store.fetch import fetch
from forelog.state import PersistentDict
from tests.state.keeping import Follows, Process, Replica, restored, wait_until
from tests.state.test_remote_servers import s3

WRITER = """
import json, sys, threading, time
from forelog.errors import ReplicaError
from forelog.state import PersistentDict

path, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
seconds, threads = options.pop("seconds"), options.pop("threads", 2)
promote, refused = options.pop("promote", False), []

def write(thread):
    number, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        try:
            things[f"{name} {thread} {number}"] = "x" * 100
        except ReplicaError as error:
            refused.append(error)
            time.sleep(0.001)
        else:
            sys.stdout.write(f"+{name} {thread} {number}\\n")
            sys.stdout.flush()

with PersistentDict(path, rotate_bytes=options.pop("rotate_bytes", 1 << 30), promote=promote) as things:
    things.log.add_destination(options.pop("where"), name="copy", ack="synced", **options)
    print("ready", flush=True)
    sys.stdin.readline()
    workers = [threading.Thread(target=write, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("refused", len(refused), flush=True)
    print(things.log.health().destinations["copy"].state, flush=True)
"""


class Writer(Process):
    """A primary that writes for some seconds once it is told to, and says what was acknowledged."""

    def __init__(self, folder: Path, name: str, **options) -> None:
        super().__init__(
            [sys.executable, "-c", WRITER, str(folder), name, json.dumps(options)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.acknowledged: set[str] = set()
        self.refused = 0
        self.state = ""
        while self.line() != "ready":
            pass
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        self._reader.start()
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        while not (line := self.line()).startswith("refused"):
            if line.startswith("+"):
                self.acknowledged.add(line[1:])
        self.refused = int(line.split()[1])
        self.state = self.line()

    def end(self) -> None:
        self._reader.join(60)
        assert self.state, "".join(self.said[-10:])
        assert self.process.wait(60) == 0


def prepared(folder: Path, where: str, *, live: bool) -> None:
    """A log with a copy, and a backup of it that was made while it was open, or after that."""
    with PersistentDict(str(folder / "log")) as things:
        things.log.add_destination(where, ack="synced")
        things["before"] = True
        if live:
            shutil.copytree(folder / "log", folder / "backup")
            things["after the backup"] = True
    if not live:
        shutil.copytree(folder / "log", folder / "backup")


@pytest.mark.parametrize("live", [True, False], ids=["backup of a live log", "backup of a closed log"])
@pytest.mark.parametrize("rotate_bytes", [1 << 30, 50_000], ids=["no rotations", "rotations"])
@pytest.mark.parametrize("first", ["log", "backup"])
def test_a_restored_backup_and_production_at_work_at_once(tmp_path, children, live, rotate_bytes, first):
    replica = children(Replica, tmp_path / "replica")
    prepared(tmp_path, replica.url(), live=live)
    order = sorted(["log", "backup"], key=lambda name: name != first)
    options = {"where": replica.url(), "seconds": 1.5, "rotate_bytes": rotate_bytes}
    writers = {name: children(Writer, tmp_path / name, name, **options) for name in order}
    for writer in writers.values():
        writer.begin()
    for writer in writers.values():
        writer.end()
    replica.stop()
    found = restored(tmp_path / "replica/things")
    acknowledged = writers["log"].acknowledged | writers["backup"].acknowledged
    missing = acknowledged - found.keys()
    counts = {name: (len(writer.acknowledged), writer.refused) for name, writer in writers.items()}
    print(f"acknowledged and refused: {counts}, {len(missing)} of {len(acknowledged)} missing")
    assert not missing
    assert "before" in found
    assert "after the backup" in found or not live
    winners = [name for name, writer in writers.items() if writer.acknowledged]
    assert len(winners) == 1, counts
    assert winners == ["log"] or not live, "a backup that lacks something never wins"
    loser = writers["backup" if winners == ["log"] else "log"]
    assert loser.refused > 3
    assert loser.state in ("unhealthy", "superseded")


def test_production_and_its_copied_directory_take_turns_at_a_replica_that_is_killed(tmp_path, children):
    replica = children(Replica, tmp_path / "replica")
    prepared(tmp_path, replica.url(), live=True)
    where = replica.url()
    writers = [children(Writer, tmp_path / name, name, where=where, seconds=4) for name in ("log", "backup")]
    for writer in writers:
        writer.begin()
    for _ in range(3):
        time.sleep(0.7)
        replica.kill()
        replica = children(Replica, tmp_path / "replica", port=replica.port)
    for writer in writers:
        writer.end()
    replica.stop()
    found = restored(tmp_path / "replica/things")
    assert writers[0].acknowledged
    assert not writers[1].acknowledged
    assert writers[0].acknowledged <= found.keys()


# -- a process that is stopped, and goes on when another one has its place


@contextlib.contextmanager
def stopped(writer: Writer):
    writer.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        writer.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_goes_on_after_its_follower_was_promoted_is_told(tmp_path, children, seed):
    replica = children(Replica, tmp_path / "replica")
    follows = Follows(replica.url(), tmp_path / "follower")
    old = children(Writer, tmp_path / "log", "old", where=replica.url(), seconds=2.5)
    with follows.follower:
        old.begin()
        wait_until(lambda: len(old.acknowledged) > 50)
        time.sleep(random.Random(seed).uniform(0, 0.1))
        with stopped(old):
            new = follows.follower.promote(follows.enumerate)
            new.add_destination(replica.url(), ack="synced")
            new.update(["new", 1])
    with new:
        seen = len(old.acknowledged)
        wait_until(lambda: not old._reader.is_alive())
        old.end()
        new.update(["newer", 2])
    assert old.state == "superseded"
    assert old.refused > 10
    replica.stop()
    found = restored(tmp_path / "replica/things")
    assert old.acknowledged | {"new", "newer"} <= found.keys(), f"{seen} when it was stopped"


@pytest.mark.parametrize("seed", range(3))
def test_a_process_that_goes_on_after_its_bucket_was_taken_over_is_told(tmp_path, children, seed):
    (tmp_path / "server").mkdir()
    with s3(tmp_path / "server") as server:
        options: dict[str, Any] = {"interval": 0, "storage_options": server.options}
        old = children(Writer, tmp_path / "log", "old", where=server.where, seconds=4, **options)
        old.begin()
        wait_until(lambda: len(old.acknowledged) > 5)
        time.sleep(random.Random(seed).uniform(0, 0.3))
        with stopped(old):
            fetch(server.where, tmp_path / "new", server.options)
            new = PersistentDict(str(tmp_path / "new"), promote=True).open()
            new.log.add_destination(server.where, ack="synced", **options)
            new["new"] = 1
        with contextlib.closing(new):
            old.end()
            new["newer"] = 2
        assert old.state == "superseded"
        fetch(server.where, tmp_path / "found", server.options)
        with PersistentDict(str(tmp_path / "found")) as things:
            missing = (old.acknowledged | {"new", "newer"}) - things.keys()
    assert not missing


def test_a_process_that_is_stopped_keeps_its_directory(tmp_path, children):
    copy = tmp_path / "copy"
    old = children(Writer, tmp_path / "log", "old", where=str(copy), seconds=2)
    old.begin()
    wait_until(lambda: len(old.acknowledged) > 50)
    with stopped(old):
        shutil.copytree(copy, tmp_path / "new")
        with PersistentDict(str(tmp_path / "new"), promote=True) as new:
            new.log.add_destination(str(copy), name="copy")
            wait_until(lambda: "is in use" in (new.log.health().destinations["copy"].error or ""))
    old.end()
    assert old.state == "live"
    assert not old.refused
    assert old.acknowledged <= restored(copy).keys()
