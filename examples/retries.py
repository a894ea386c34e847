"""Jobs that fail and are tried again: `python -m examples.retries`.

Three jobs. One fails twice, because the mail server is away, and then succeeds. One can't succeed, and is given
up after the second attempt, with the reason as its result. One hangs for longer than its time to run, and
another thread gets it. The server runs in this process, with its log on disk: stop it at any point, and the
next start continues with what is left.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter

from forelog.jobs import Attempt, Client, LocalServer, Worker, fixed


def make_worker(address: str) -> Worker:
    """A worker with three threads, and what it can do."""
    worker = Worker(server=address, concurrency=3, lease_ms=100)
    tries: Counter[str] = Counter()

    @worker.job("mail")
    def mail(job: Attempt) -> str:
        tries["mail"] += 1
        if tries["mail"] < 3:
            raise ConnectionError("the mail server is away")
        return f"sent {job.payload.decode()} at the third try"

    @worker.job("divide")
    def divide(job: Attempt) -> str:
        return str(1 / int(job.payload))

    @worker.job("report")
    def report(job: Attempt) -> str | None:
        tries["report"] += 1
        if tries["report"] == 1:
            time.sleep(job.remaining() + 1)  # hangs, as programs do, until long after its time
            return None
        return "the second one to get it was quicker"

    return worker


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, LocalServer(f"{folder}/cmdlog") as server:
        worker = make_worker(server.address)
        thread = threading.Thread(target=worker.run)
        thread.start()
        with Client(server.address) as client:
            jobs = {
                "mail": client.add("mail", b"an invoice", retries=4, backoff=fixed("100ms")),
                "divide": client.add("divide", b"0", retries=1, backoff=fixed("100ms")),
                "report": client.add("report", ttr_ms=1000, max_attempts=3),
            }
            for name, job in jobs.items():
                outcome = client.result(job, wait_ms=60_000)
                print(f"{name}: {'done' if outcome.success else 'given up'}: {outcome.result.decode()}")
            worker.stop()
            thread.join()
        did = worker.counters
        print(f"{did.completed} completed, {did.failed} failures, {did.late} late")


if __name__ == "__main__":
    main()
