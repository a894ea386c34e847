"""The same tasks for every job queue of `workers.py`, and what runs in processes of its own.

    python -m benchmarks.worker_child enqueue SYSTEM COUNT     adds jobs, and prints how long that took
    python -m benchmarks.worker_child pace SYSTEM COUNT RATE   adds jobs at a rate, each with the time

Workers import this module too, and the tasks of the system that BENCH_SYSTEM names are in it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from typing import Any

SYSTEM = os.environ.get("BENCH_SYSTEM", "")
PORT = int(os.environ.get("BENCH_PORT", "0"))
MARKS = os.environ.get("BENCH_MARKS", "")
QUEUE = "bench"

Enqueue = Callable[..., Any]
app: Any = None
queue: Any = None
celery_app: Any = None
WorkerSettings: Any = None
"""What the commands of the workers name, of the system that BENCH_SYSTEM names."""


def noop() -> None:
    """What is measured."""


def mark(name: str) -> None:
    """Write down when this was done."""
    with open(f"{MARKS}/{name}.part", "w") as file:
        file.write(repr(time.time()))
    os.rename(f"{MARKS}/{name}.part", f"{MARKS}/{name}")


def stamp(sent: float) -> None:
    """Write down how long this took from when it was added."""
    with open(f"{MARKS}/stamps", "a") as file:
        file.write(f"{time.time() - sent!r}\n")


TASKS = (noop, mark, stamp)


def forelog() -> Enqueue:
    """The tasks of forelog."""
    from forelog.jobs import App

    global app
    app = App(f"127.0.0.1:{PORT}", queue=QUEUE)
    tasks = {function.__name__: app.task(name=function.__name__)(function) for function in TASKS}
    return lambda name, *args: tasks[name].delay(*args)


def huey() -> Enqueue:
    """The tasks of Huey."""
    from huey import RedisHuey

    global queue
    queue = RedisHuey(QUEUE, host="127.0.0.1", port=PORT)
    tasks = {function.__name__: queue.task()(function) for function in TASKS}
    return lambda name, *args: tasks[name](*args)


def dramatiq() -> Enqueue:
    """The tasks of Dramatiq."""
    import dramatiq as library
    from dramatiq.brokers.redis import RedisBroker

    library.set_broker(RedisBroker(host="127.0.0.1", port=PORT))
    tasks = {function.__name__: library.actor(function) for function in TASKS}
    return lambda name, *args: tasks[name].send(*args)


def celery() -> Enqueue:
    """The tasks of Celery."""
    from celery import Celery

    global celery_app
    celery_app = Celery(QUEUE, broker=f"redis://127.0.0.1:{PORT}/0")
    celery_app.conf.task_ignore_result = True
    tasks = {function.__name__: celery_app.task(name=function.__name__)(function) for function in TASKS}
    return lambda name, *args: tasks[name].delay(*args)


def rq() -> Enqueue:
    """The tasks of RQ: plain functions."""
    from redis import Redis
    from rq import Queue

    found = Queue(QUEUE, connection=Redis(host="127.0.0.1", port=PORT))
    tasks = {
        function.__name__: getattr(sys.modules["benchmarks.worker_child"], function.__name__) for function in TASKS
    }
    return lambda name, *args: found.enqueue(tasks[name], *args)


def arq() -> Enqueue:
    """The tasks of arq: coroutines, and so is what adds them."""
    from arq import create_pool
    from arq.connections import RedisSettings

    settings = RedisSettings(host="127.0.0.1", port=PORT)

    async def run_noop(_: Any) -> None:
        noop()

    async def run_mark(_: Any, name: str) -> None:
        mark(name)

    async def run_stamp(_: Any, sent: float) -> None:
        stamp(sent)

    from arq.worker import func

    class Chosen:
        functions = [func(run_noop, name="noop"), func(run_mark, name="mark"), func(run_stamp, name="stamp")]  # noqa: RUF012
        redis_settings = settings
        queue_name = QUEUE
        poll_delay = 0.01
        max_jobs = int(os.environ.get("BENCH_THREADS", "1"))

    global WorkerSettings
    WorkerSettings = Chosen
    loop = asyncio.new_event_loop()
    pool: Any = None

    def enqueue(name: str, *args: Any) -> None:
        nonlocal pool
        if pool is None:
            pool = loop.run_until_complete(create_pool(settings, default_queue_name=QUEUE))
        loop.run_until_complete(pool.enqueue_job(name, *args))

    return enqueue


SYSTEMS: dict[str, Callable[[], Enqueue]] = {
    "forelog": forelog,
    "huey": huey,
    "dramatiq": dramatiq,
    "celery": celery,
    "rq": rq,
    "arq": arq,
}


def add(enqueue: Enqueue, count: int) -> float:
    """Add jobs, the first and the last of which write down when they are done. Returns the seconds."""
    enqueue("mark", "begin")
    start = time.perf_counter()
    for _ in range(count):
        enqueue("noop")
    seconds = time.perf_counter() - start
    enqueue("mark", "end")
    return seconds


def pace(enqueue: Enqueue, count: int, rate: float) -> float:
    """Add jobs at a rate."""
    start = time.time()
    for number in range(count):
        time.sleep(max(0.0, start + number / rate - time.time()))
        enqueue("stamp", time.time())
    return time.time() - start


if __name__ == "__main__":
    from benchmarks import worker_child

    assert worker_child.enqueue is not None
    if sys.argv[1] == "enqueue":
        print(add(worker_child.enqueue, int(sys.argv[2])))
    elif sys.argv[1] == "pace":
        print(pace(worker_child.enqueue, int(sys.argv[2]), float(sys.argv[3])))
    else:  # a worker of RQ, in one process: its usual one forks for each job
        from redis import Redis
        from rq import SimpleWorker

        SimpleWorker([QUEUE], connection=Redis(host="127.0.0.1", port=PORT)).work(logging_level="ERROR")
else:
    enqueue: Enqueue | None = SYSTEMS[SYSTEM]() if SYSTEM else None
