"""A broker's durable subscriber: its connection is cut again and again, and its session goes on.

The broker is a process of its own, and it is what writes the log: it is given little room, or killed. It keeps
next to nothing in memory, so that a subscriber that was away is served from the files. A message of QoS 1 may come
again after a cut, and does; none may be missing.
"""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

from forelog import Stream
from forelog.broker import MessageLogReader
from forelog.broker.mqtt.packets import Disconnect, Puback, Publish
from forelog.broker.mqtt.reasons import ReasonCode
from tests.broker.serving import Served
from tests.broker.talking import Closed, Talk
from tests.readers.ledger import Noted
from tests.readers.pair import Pair, Plan, joined
from tests.readers.process import errors_in
from tests.readers.publisher import TOPIC, Publisher
from tests.readers.records import Notes, Seen, as_seen, last_seen, read_seen
from tests.readers.writer import wait_for_growth

FILE_BYTES = {"rolling": 1000, "full": 256 << 10, "killed": 32 << 20}
LIMITS = {"tail_bytes_max": 2000, "system_interval_seconds": 0}
LIMITS_FULL = {"retain_bytes": 1 << 20, "retain_interval_seconds": 0.1}
NEVER = 0xFFFF_FFFF
HERE_SECONDS, AWAY_SECONDS = 0.15, 0.05
KILL_SECONDS = (0.05, 0.4)
LAST_SECONDS = 0.5
GROWTH_SECONDS_MAX = 1.0
POLL_SECONDS = 0.05
LAG_MESSAGES_MAX = 2000


class Subscriber(Pair):
    """A durable subscriber beside a broker."""

    reader = "broker"
    exact = False

    def __init__(self, way: str, place: Path, folder: Path, plan: Plan) -> None:
        super().__init__(way, place, folder, plan)
        self.path = place / "broker"
        self.broker: Served | None = None
        self.client: Client | None = None

    @property
    def stream(self) -> Stream:
        return Stream(self.path / "messages", format="messages")

    def start(self) -> None:
        limits = LIMITS | (LIMITS_FULL if self.way == "full" else {})
        flags = "--file-bytes", str(FILE_BYTES[self.way]), "--limits", json.dumps(limits)
        self.broker = Broker(self.path, self.folder / "broker.said", *flags)
        self.client = Client(self.broker.port, Notes(self.folder), self.plan.seed)
        self.client.start()
        self.client.subscribed.wait(10)

    def work(self) -> None:
        assert self.broker is not None
        publisher = Publisher(self.way, self.broker.port, self.ledger, self.plan.seed)
        try:
            if self.way == "killed":
                self._kill_again_and_again(publisher)
            deadline = time.monotonic() + (LAST_SECONDS if self.way == "killed" else self.plan.seconds)
            while time.monotonic() < deadline:
                self._publish(publisher)
        finally:
            publisher.close()
            # What it cut off of refused messages it keeps no evidence of: only what a kill has torn is counted.
            for torn in (self.path / "messages").glob("*.torn"):
                publisher.ledger.note(f"cut {torn.name}")

    def _publish(self, publisher: Publisher) -> None:
        """More, unless the subscriber is far behind: in files of a few messages it catches up slowly."""
        if publisher.ledger.next - last_seen(self.folder) > LAG_MESSAGES_MAX:
            time.sleep(POLL_SECONDS)
        else:
            publisher.publish()

    def _kill_again_and_again(self, publisher: Publisher) -> None:
        assert self.broker is not None
        chance = random.Random(self.plan.seed)
        for _ in range(self.plan.kills):
            killer = threading.Thread(target=self._kill_in_the_middle, args=(chance.uniform(*KILL_SECONDS),))
            killer.start()
            while killer.is_alive():
                self._publish(publisher)
            publisher.close()
            publisher.ledger.note("killed")
            self.broker.close()
            self.broker.start()

    def _kill_in_the_middle(self, after_seconds: float) -> None:
        """Kill the broker when its log next grows."""
        assert self.broker is not None
        time.sleep(after_seconds)
        wait_for_growth(self.path / "messages", GROWTH_SECONDS_MAX)
        self.broker.process.kill()

    def has(self, noted: Noted) -> bool:
        assert self.client is not None
        self.client.stay()
        return last_seen(self.folder) >= max(noted.acked, default=0)

    def pids(self) -> list[int]:
        assert self.broker is not None
        return [self.broker.process.pid]

    def finish(self) -> str | None:
        assert self.client is not None
        assert self.broker is not None
        client, stopped, told = self.client.end(), None, None
        try:
            self.broker.stop()
        except AssertionError as error:
            stopped = str(error)
        # A session can't be noted on a full disk: its client is turned away, and told so in a traceback.
        if errors := [line for line in errors_in(self.broker.said()) if "No space left" not in line]:
            told = f"the broker had {len(errors)} errors, the last of them: {errors[-1]}"
        return joined(client, stopped, told)

    def seen(self) -> list[Seen]:
        return read_seen(self.folder)

    def kept(self) -> list[Seen]:
        with MessageLogReader(self.path / "messages") as reader:
            return as_seen((message.payload, message.position) for message in reader)

    def close(self) -> None:
        if self.client is not None:
            self.client.end()
        if self.broker is not None:
            self.broker.close()


class Broker(Served):
    """A broker. What it says doesn't take room from its log."""

    def __init__(self, path: Path, said: Path, *flags: str) -> None:
        self._elsewhere = said
        super().__init__(path, *flags)

    def start(self) -> None:
        self.said_at = self._elsewhere
        super().start()


class Client(threading.Thread):
    """The subscriber, on a thread: it comes, stays for a moment, and is gone without a word."""

    def __init__(self, port: int, notes: Notes, seed: int) -> None:
        super().__init__(name="subscriber", daemon=True)
        self._port, self._notes = port, notes
        self._chance = random.Random(seed)
        self._ending = self._staying = False
        self._failed: str | None = None
        self.subscribed = threading.Event()

    def stay(self) -> None:
        """Be cut off no more."""
        self._staying = True

    def end(self) -> str | None:
        """Leave; what was wrong."""
        self._ending = True
        self.join()
        return self._failed

    def run(self) -> None:
        while not self._ending and self._failed is None:
            try:
                with Talk(self._port) as talk:
                    self._visit(talk)
            except (OSError, Closed):
                pass  # the broker was killed, or hasn't come back yet
            except Exception as error:
                self._failed = f"the subscriber: {type(error).__name__}: {error}"
            time.sleep(self._chance.expovariate(1 / AWAY_SECONDS))

    def _visit(self, talk: Talk) -> None:
        welcome = talk.connect("reader", clean=False, expiry=NEVER)
        if welcome.reason_code == ReasonCode.SERVER_UNAVAILABLE:
            return  # the disk is full, so the broker can't note that the client is here: it comes again
        if not self.subscribed.is_set():
            talk.subscribe(TOPIC, qos=1)
            self.subscribed.set()
        elif not welcome.session_present:
            self._failed = "the broker has lost the session"
            return
        talk.socket.settimeout(POLL_SECONDS)
        leaves_at = time.monotonic() + self._chance.expovariate(1 / HERE_SECONDS)
        while not self._ending and (self._staying or time.monotonic() < leaves_at):
            try:
                packet = talk.read()
            except TimeoutError:
                continue
            if isinstance(packet, Publish):
                self._notes.add(packet.payload)
                talk.send(Puback(packet.packet_id))
            elif isinstance(packet, Disconnect):
                return  # the broker couldn't note that it is here: it comes again
