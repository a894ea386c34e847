"""What talks to the servers: machines that publish, a subscriber that is away for a while, an office, workers.

All of them are threads with clients that anybody would use: paho for MQTT, `forelog.jobs.Client` for jobs. None of
them is told of the kill. They notice that their server is gone, wait, and go on.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client as Paho
from paho.mqtt.client import MQTTMessage, MQTTv311
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.ledger import FAILS, JOBS, MESSAGES, RESULTS, Ledger
from examples.demo.writers import MACHINES
from forelog.errors import ConnectionLost, JobError
from forelog.jobs import Client

PATIENCE_S = 60
WORKERS = 2
TTR_MS = 3000
"""A job whose worker was cut off is given to another after so long."""


@dataclass(frozen=True)
class Queue:
    jobs_per_second: float
    work_s: float


QUEUES = {"invoice": Queue(20, 0.004), "label": Queue(14, 0.022), "forecast": Queue(5, 0.1)}


class Clients:
    """Every client there is, from start() to finish()."""

    def __init__(self, ledger: Ledger, broker: str, jobs: str) -> None:
        self.ledger, self.broker, self.jobs = ledger, broker, jobs
        self.subscriber = Subscriber(broker)
        self.adding, self.working = threading.Event(), threading.Event()
        self._first: list[threading.Thread] = []
        self._workers: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._flaky: set[str] = set()

    def start(self) -> None:
        self.subscriber.come()
        self._first = [self._thread(self._publish, n, name) for n, name in enumerate(MACHINES)]
        self._first += [self._thread(self._add, name, queue) for name, queue in QUEUES.items()]
        self._workers = [self._thread(self._work) for _ in range(WORKERS)]

    def finish(self) -> None:
        """No more is published or added; what is under way is finished, and every job done."""
        self.adding.set()
        for thread in self._first:
            thread.join()
        with Client(self.jobs, retry_seconds=PATIENCE_S) as client:
            for job in self.ledger.acknowledged[JOBS]:
                client.result(job, wait_ms=PATIENCE_S * 1000)
        self.subscriber.wait_for(self.ledger.acknowledged[MESSAGES])
        self.close()
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """End all of it, finished or not."""
        self.adding.set()
        self.working.set()
        for thread in (*self._first, *self._workers):
            thread.join()
        self.subscriber.leave()

    def _thread(self, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*arguments)
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    # -- machines

    def _publish(self, number: int, machine: str) -> None:
        """Telemetry at QoS 1: paho sends again what wasn't acknowledged, when the broker is back."""
        answered: deque[tuple[int, int]] = deque()
        client = _paho(machine)
        client.on_publish = lambda _c, _u, mid, _r, _p: answered.append((mid, time.time_ns()))
        host, _, port = self.broker.rpartition(":")
        client.connect(host, int(port))
        client.loop_start()
        sent: dict[int, str] = {}
        for n in range(10**9):
            kind = ("temperature", "vibration")[n % 3 == 0]
            topic = f"factory/{machine}/{kind}"
            body = {"n": n, "at": time.time_ns(), "value": round(40 + 10 * math.sin(n / 50 + number), 2)}
            sent[client.publish(topic, json.dumps(body).encode(), qos=1).mid] = f"{topic} {n}"
            self._take(answered, sent)
            rate = (45 + 25 * number) * (1 + 0.5 * math.sin(time.time() * 2 * math.pi / (5 + number)))
            if self.adding.wait(1 / rate):
                break
        deadline = time.monotonic() + PATIENCE_S
        while sent and not self.working.is_set() and time.monotonic() < deadline:
            time.sleep(0.02)
            self._take(answered, sent)
        client.disconnect()
        client.loop_stop()

    def _take(self, answered: deque[tuple[int, int]], sent: dict[int, str]) -> None:
        while answered:
            mid, time_ns = answered.popleft()
            self.ledger.note(MESSAGES, sent.pop(mid), time_ns)

    # -- the office

    def _add(self, name: str, queue: Queue) -> None:
        chance = random.Random(name)
        with Client(self.jobs, retry_seconds=PATIENCE_S) as client:
            while not self.adding.wait(chance.expovariate(queue.jobs_per_second)):
                kind = chance.choices(["plain", "flaky", "hopeless"], [90, 7, 3])[0]
                job = client.add(name, kind.encode(), ttr_ms=TTR_MS, max_fails=3)
                self.ledger.note(JOBS, str(job))

    def _work(self) -> None:
        """Lease, do, and tell what came of it. What was under way when the server died is leased once more."""
        chance = random.Random()
        with Client(self.jobs, retry_seconds=PATIENCE_S) as client:
            while not self.working.is_set():
                try:
                    job = client.lease(*QUEUES, wait_ms=200)
                    if job is None:
                        continue
                    time.sleep(QUEUES[job.name].work_s * chance.uniform(0.5, 2))
                    key = str(job.id)
                    if job.payload == b"hopeless" or (job.payload == b"flaky" and key not in self._flaky):
                        self._flaky.add(key)
                        client.fail(job.id, b"no luck")
                        self.ledger.note(FAILS, f"{key} {time.time_ns()}")
                    else:
                        client.complete(job.id, b"done")
                        self.ledger.note(RESULTS, key)
                except ConnectionLost:
                    self.working.wait(0.1)
                except JobError:
                    continue  # somebody else has finished it: our attempt's time was over


class Subscriber:
    """A durable one: the broker keeps for it what comes while it is away."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._client: Paho | None = None
        self.received: dict[str, int] = {}
        """How often each message has come."""
        self.delays: list[tuple[float, float]] = []
        """When a message came, in seconds since 1970, and how many seconds after it was sent."""
        self.away: list[float] = []
        """When it left, and when it was back."""

    def come(self) -> None:
        host, _, port = self._broker.rpartition(":")
        subscribed = threading.Event()
        client = _paho("archive")
        client.on_message = self._got
        client.on_subscribe = lambda *_: subscribed.set()
        client.on_connect = lambda client, *_: client.subscribe("factory/#", qos=1)
        client.connect(host, int(port))
        client.loop_start()
        self._client = client
        if not subscribed.wait(PATIENCE_S):
            raise SystemExit("the broker doesn't answer the subscriber")

    def leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.loop_stop()

    def wait_for(self, keys: dict[str, int]) -> None:
        """Until all of these have come, or patience ends."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and any(key not in self.received for key in keys):
            time.sleep(0.02)

    def _got(self, _client: Paho, _data: Any, message: MQTTMessage) -> None:
        body = json.loads(message.payload)
        key = f"{message.topic} {body['n']}"
        now = time.time_ns()
        self.received[key] = self.received.get(key, 0) + 1
        self.delays.append((now / 1e9, (now - body["at"]) / 1e9))


def _paho(name: str) -> Paho:
    client = Paho(CallbackAPIVersion.VERSION2, client_id=name, clean_session=False, protocol=MQTTv311)
    client.reconnect_delay_set(1, 1)
    return client
