"""Moving from a Workq server without losing a job, and back: `python -m examples.move_workq`.

    1. stop the old server
    2. copy its command log, to be safe
    3. workq-server -cmdlog-path on the same folder
    4. let clients connect to it: the protocol is the same

There is nothing to convert, because the files are the same. This example makes the old server's log by hand:
jobs that wait, one that is scheduled, one that a worker has leased and still works on. The new server takes
over, and the worker delivers its result to the new server. Then the example shows that the way back is open:
the old server's bytes are unchanged, and the commands after them have the old server's form.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from forelog import Stream, verify
from forelog.errors import BadCommand
from forelog.formats.commands.commands import MAGIC, Add, Command, Schedule, StartAttempt, encode
from forelog.jobs import Client
from forelog.jobs.log.reader import read_commands

HOUR_MS = 3_600_000
NAMES = ("mail", "mail", "report", "resize")


def write_old_log(path: Path) -> list[uuid.UUID]:
    """What a Workq server leaves behind when it is stopped: segments and locks, nothing else."""
    ids = [uuid.uuid4() for _ in range(5)]
    now = time.time_ns()
    commands: list[Command] = [
        Add(job.bytes, name, HOUR_MS, 24 * HOUR_MS, now, b"%d" % number)
        for number, (job, name) in enumerate(zip(ids, NAMES, strict=False))
    ]
    commands.append(Schedule(ids[4].bytes, "report", HOUR_MS, 24 * HOUR_MS, now + 10**13, now, b"nightly"))
    commands.append(StartAttempt(ids[3].bytes))  # a worker is at it
    with Stream(path, magic=MAGIC, version=1).appender() as log:
        log.append_many([encode(command) for command in commands])
    for file in path.iterdir():
        if file.suffix not in (".log", ".lock"):  # ours, to find things faster; the original has none
            file.unlink()
    return ids


def start_server(path: Path) -> tuple[subprocess.Popen[str], str]:
    """`workq-server`, and where it serves."""
    command = [sys.executable, "-m", "forelog", "jobs", "serve", "-listen", "127.0.0.1:0"]
    process = subprocess.Popen([*command, "-cmdlog-path", str(path)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"serving jobs at (\S+)", line):
            return process, found[1]
        print(" ", line.replace(f"{path}", "cmdlog"), end="")
    raise SystemExit("the server didn't start")


def use(address: str, ids: list[uuid.UUID]) -> None:
    """Clients and workers go on."""
    with Client(address) as client:
        for queue in client.inspect_queues():
            print(f"  {queue.name}: {queue.ready} ready, {queue.scheduled} scheduled")
        client.complete(ids[3], b"640x480")
        print("  the worker's result is taken:", client.result(ids[3]).result.decode())
        leased = client.lease("mail")
        assert leased is not None
        assert leased.id == ids[0], "the oldest comes first, as it would have"
        client.complete(leased.id, b"sent")
        client.add("mail", b"new", ttl_ms=24 * HOUR_MS)
        print("  a job is done, and a new one added")


def check_the_way_back(path: Path, old: bytes) -> None:
    """The old server's bytes are as they were, and what follows is what it would have written itself."""
    stream = Stream(path, magic=MAGIC, version=1)
    assert verify(stream).ok
    (segment,) = stream.segments()
    assert Path(segment.path).read_bytes().startswith(old)
    with stream.cursor() as cursor:
        payloads = [record.payload for record in cursor]
    words: Counter[str] = Counter()
    for payload, (_, _, command) in zip(payloads, read_commands(stream), strict=True):
        assert not isinstance(command, BadCommand)
        assert encode(command) == payload
        words[command.word] += 1
    print(f"  {len(old)} bytes of the old server's are unchanged, {segment.byte_count - len(old)} came after them")
    print("  commands:", ", ".join(f"{count} {word}" for word, count in sorted(words.items())))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cmdlog")
        ids = write_old_log(path)
        old = b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
        print("the old server is stopped; the new one starts on its log:")
        server, address = start_server(path)
        try:
            use(address, ids)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
            assert server.stderr is not None
            server.stderr.close()
        print("and if it should be the old one again:")
        check_the_way_back(path, old)


if __name__ == "__main__":
    main()
