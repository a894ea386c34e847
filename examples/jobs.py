"""Jobs that survive their server: `python -m examples.jobs`.

A server, a thousand jobs, and a worker with four threads. Halfway through, the server is killed and started
again from its log. At the end every job has its result.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

from forelog.jobs import Attempt, Client, Worker

JOBS = 1000


def start_server(path: str, address: str = "127.0.0.1:0") -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, and where it serves."""
    command = [sys.executable, "-m", "forelog", "jobs", "serve", "-listen", address, "-cmdlog-path", path]
    process = subprocess.Popen([*command, "-cmdlog-sync", "os"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        print(" ", line, end="")
        if found := re.search(r"serving jobs at (\S+)", line):
            return process, found[1]
    raise SystemExit("the server didn't start")


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    os.kill(process.pid, how)
    process.wait()
    assert process.stderr is not None
    process.stderr.close()


def main(path: str | None = None) -> None:
    """Keep the command log in `path`, or in a folder that goes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/cmdlog" if path is None else path
        server, address = start_server(log)
        attempts: Counter[bytes] = Counter()
        worker = Worker(server=address, concurrency=4, lease_ms=100)

        @worker.job("hash")
        def hash_it(job: Attempt) -> str:
            attempts[job.payload] += 1
            time.sleep(0.001)
            return hashlib.sha256(job.payload).hexdigest()

        with Client(address, retry_seconds=30) as client:
            ids = client.add_many("hash", [b"%d" % number for number in range(JOBS)], ttr_ms=2000)
            print(f"{len(ids)} jobs were added")
            thread = threading.Thread(target=worker.run)
            thread.start()

            client.result(ids[JOBS // 2], wait_ms=30_000)
            print(f"kill -9, after {worker.counters.completed} jobs")
            end(server, signal.SIGKILL)
            server, _ = start_server(log, address)

            results = [client.result(job, wait_ms=30_000).result for job in ids]
            worker.stop()
            thread.join()

        right = [hashlib.sha256(b"%d" % number).hexdigest().encode() for number in range(JOBS)]
        assert results == right
        again = sum(count - 1 for count in attempts.values())
        print(f"{len(results)} results, all of them right; {again} jobs were done more than once")
        end(server, signal.SIGTERM)


if __name__ == "__main__":
    main()
