"""The broker: publishers in front of a log, subscribers behind it.

    intake.py         what publishers sent, into the log with one write for all of them
    delivery.py       from the log to subscribers that are live
    catchup.py        and to those who are behind, each at its own pace
    sender.py         messages as packets to one of them
    history.py        the log, for those who are behind
    clients.py        who comes and goes
    subscriptions.py  who wants what
    groups.py         shared subscriptions
    slices.py         what takes long, a little at a time
    memory.py         what must be known after a crash

Everything happens on one event loop, in turns: what has been published since the last turn is written, then its
publishers are answered, then it is sent on. Reading what lies further back happens on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from forelog.bounds import TIMER_MS_MAX, check_whole
from forelog.broker.access.access import Access
from forelog.broker.connections import listeners as listening
from forelog.broker.connections.buffers import SharedBuffers
from forelog.broker.connections.connection import Connection
from forelog.broker.connections.door import Door
from forelog.broker.connections.visits import Visits, reason_text
from forelog.broker.flow.batches import Batch, Stored
from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.clock import MessageClock
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.history import History
from forelog.broker.flow.intake import Intake, Written
from forelog.broker.flow.outgoing import kept_properties
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.sender import Sender
from forelog.broker.flow.slices import Slices
from forelog.broker.limits import Limits
from forelog.broker.mqtt import (
    MQTT_5_0,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Subscribe,
    Unsubscribe,
    encode,
)
from forelog.broker.retention import Keeping
from forelog.broker.sessions.acknowledgements import Acknowledgements
from forelog.broker.sessions.clients import Clients
from forelog.broker.sessions.groups import Group
from forelog.broker.sessions.holdings import Holdings
from forelog.broker.sessions.memory import Memory
from forelog.broker.sessions.session import Cursor, Session
from forelog.broker.sessions.subscriptions import Subscriptions
from forelog.broker.system import System
from forelog.errors import AppenderFailed, ForelogError
from forelog.files import OSFiles
from forelog.formats.messages import Messages
from forelog.log.appender import SEGMENT_BYTES, Appender
from forelog.log.directory.journal import JOURNAL_BYTES
from forelog.log.directory.tenants import refuse_others
from forelog.log.position import Position
from forelog.log.stream import Stream

__all__ = ["Broker"]

logger = logging.getLogger("forelog")

TICK_SECONDS = 0.1
SWEEP_SECONDS = 1.0
KNOWN_SECONDS = 5.0
READERS = 2
DELIVERY_SECONDS_MAX = 2.0  # to deliver what was published, before clients are disconnected
GROUPS_PER_TURN = 64  # of a client that has room again
PATIENCE_SECONDS_MAX = 0.001  # to wait for those who shared the last sync


class Broker:
    """`async with Broker("log") as broker: await broker.listen("127.0.0.1", 1883)`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: str = "os",
        sync_interval_ms: int = 1000,
        file_bytes: int = SEGMENT_BYTES,
        limits: Limits | None = None,
        access: Access | None = None,
        mode: int | None = None,
    ) -> None:
        check_whole("sync_interval_ms", sync_interval_ms, most=TIMER_MS_MAX)
        check_whole("file_bytes", file_bytes)
        self.path = os.fspath(path)
        self.limits = limits or Limits()
        self.access = access or Access()
        self.now = time.monotonic()
        """The time, as of this turn."""
        self._options: dict[str, Any] = {"sync": sync, "sync_interval_ms": sync_interval_ms, "timeout": 0}
        self.stream = Stream(f"{self.path}/messages", format=Messages(), mode=mode)
        self._file_bytes = file_bytes
        self.memory = Memory(f"{self.path}/sessions", self.limits, mode=mode, **self._options)
        self.visits, self.door = Visits(), Door(self)
        self.shared = SharedBuffers(self.limits, self.visits.notices)
        self.executor = ThreadPoolExecutor(READERS, thread_name_prefix="forelog-broker")
        self.routes = Routes()
        self.clock = MessageClock()
        self.history = History(self.stream, self.limits.tail_bytes_max, self.executor)
        self.history.lists_bytes_max = self.limits.lists_bytes_max
        self.holdings = Holdings(self.limits)
        self.clients = Clients(self)
        self.subscriptions = Subscriptions(self)
        self.acknowledgements = Acknowledgements(self)
        self.system, self.keeping = System(self), Keeping(self)
        self.handlers: dict[type, Callable[[Session, Any], None]] = {
            Pubrec: self.acknowledgements.received,
            Pubrel: self.acknowledgements.let_go,
            Pubcomp: self.acknowledgements.completed,
            Subscribe: self.subscriptions.subscribe,
            Unsubscribe: self.subscriptions.unsubscribe,
        }
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn_due = False
        self._roomy: dict[Session, None] = {}
        self._stopping = False
        self._swept = self._known = 0.0
        self._syncs = sync == "always"
        self._share = 0
        self._ended = self._patience = 0.0
        self.failures = 0

    # -- starting and stopping

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def open(self) -> None:
        """Open the log, and bring back what was known. Nobody can connect before `listen`."""
        refuse_others(OSFiles(), self.path, "a broker", kind="broker")
        self.loop = asyncio.get_running_loop()
        self.intake = Intake(self._open_appender)
        try:
            self.intake.start()
            self.memory.open()
            self.history.end = self.intake.appender.position
            for block in self.stream.blocks(since=self.memory.known_ns, on_corruption="skip"):
                self.memory.learn(Batch.of_block(block))
        except BaseException:
            self.intake.appender.close()
            raise
        self.memory.learned()
        self.memory.written = lambda: self.intake.written_ns
        self.memory.run_slice = self._on_loop
        self._deliver()
        self.subscriptions.groups.restore()
        self.clients.restore()
        self.memory.flush()
        for work in (self._tick(), self.keeping.run(), self.system.run(), self.memory.tend()):
            self.later(work)

    def _deliver(self) -> None:
        """What sends messages on, and what must be known of it after a crash."""
        self.slices = Slices(self.loop.call_soon)
        self.sender = Sender(self.memory, self.clock, self.subscriptions.groups.moved)
        self.catchup = CatchUp(self.sender, self.history, self.clock, self.slices, self.executor, self.loop)
        self.delivery = Delivery(
            self.routes, self.history, self.sender, self.catchup, self.slices, self._live_cursors
        )
        self.memory.end = lambda: self.delivery.end

    def _live_cursors(self) -> list[Cursor]:
        """All cursors that may be live."""
        found: list[Cursor] = list(self.subscriptions.groups.all.values())
        for connection in self.clients.connections:
            if connection.session is not None:
                found += connection.session.cursors.values()
        return found

    def _open_appender(self) -> Appender:
        journal_bytes = JOURNAL_BYTES if self._syncs else 0
        return self.stream.appender(segment_bytes=self._file_bytes, journal_bytes=journal_bytes, **self._options)

    async def listen(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        websockets: bool = False,
        origins: Iterable[str] = (),
    ) -> list[tuple[str, int]]:
        """Let clients in, with `websockets` those who speak MQTT inside of them; returns where."""
        server = await listening.listen(self, host, port, tls, websockets, origins)
        self._servers.append(server)
        return [found.getsockname()[:2] for found in server.sockets]

    def reload(self) -> None:
        """Read the files of users and rules again; they count at once, also for those who are here."""
        self.turn()  # what was published before is before
        self.access.reload()
        self.clients.judge_again()

    async def stop(self) -> None:
        """Take no more clients, say goodbye, write everything, close."""
        if self._stopping:
            return
        self._stopping = True
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        self.turn()
        deadline = self.loop.time() + DELIVERY_SECONDS_MAX
        while self.delivery.is_behind and self.loop.time() < deadline:
            await asyncio.sleep(0)
        for connection in list(self.clients.connections):
            if connection.session is not None and connection.version == MQTT_5_0:
                connection.send_packet(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
                connection.linger()
            else:
                connection.close()
        await self.door.see_off()
        for connection in list(self.clients.connections):
            self.clients.left(connection)
        self.slices.finish()
        self.memory.note_known()
        with contextlib.suppress(OSError, ForelogError):  # closing will tell
            self._note_progress()
        self.access.close()
        self.visits.notices.close()
        self.executor.shutdown(wait=True)
        self.memory.run_slice = lambda work: work()
        await self.loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        try:
            self.memory.close()
        finally:
            self.intake.appender.close()

    def later(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something beside the rest."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("broker: a task has failed", exc_info=error)

    def _on_loop(self, work: Any) -> None:
        """From another thread: do it on the event loop, and wait for it."""

        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result()

    # -- connections

    def arrived(self, connection: Connection) -> None:
        """A socket was accepted."""
        self.now = time.monotonic()
        if not self.door.let_near(connection) or self._stopping:
            connection.abort()
            return
        self.clients.connections.add(connection)

    def left(self, connection: Connection) -> None:
        """A connection was closed, or is about to be."""
        self.shared.partial.drop(connection)
        self.clients.left(connection)
        self.door.left(connection)

    # -- into the log

    def publish(self, connection: Connection, session: Session, packet: Publish) -> None:
        """A message that isn't plain: retained, of QoS 2, with properties, or by who may not publish anywhere."""
        if packet.qos == 2 and packet.packet_id in session.received:
            # It comes again: the log has it, or will have with this turn, whatever its client may do by now.
            self._answer_in_turn(connection, encode(Pubrec(packet.packet_id), connection.version))
            return
        refused = self._refusal(connection, packet)
        answer: type[Puback] | type[Pubrec] = Puback if packet.qos == 1 else Pubrec
        if refused is not None:
            self.visits.refused("publish refused", connection, topic=packet.topic, reason=reason_text(refused))
            if packet.qos and connection.version == MQTT_5_0:
                connection.send_packet(answer(packet.packet_id, refused))
            elif connection.version != MQTT_5_0:
                connection.refuse(refused, f"it may not publish to {packet.topic!r:.100}")
            return
        if packet.qos == 2 and len(session.received) >= self.limits.receive_max:
            connection.refuse(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, "more of QoS 2 than may be under way")
            return
        kept = kept_properties(
            packet.properties,
            packet.qos,
            sender=session.client_id,
            retain=packet.retain,
            packet_id=packet.packet_id if packet.qos == 2 else 0,
        )
        acks = encode(answer(packet.packet_id), connection.version) if packet.qos else b""
        self.put(packet.topic, packet.payload, kept, connection, acks, session)

    def _refusal(self, connection: Connection, packet: Publish) -> ReasonCode | None:
        if packet.topic.startswith("$"):
            return ReasonCode.TOPIC_NAME_INVALID
        assert connection.session is not None
        if not self.access.verdicts.may_publish(connection.session.rights, packet.topic):
            return ReasonCode.NOT_AUTHORIZED
        asks = packet.retain and packet.qos and connection.version == MQTT_5_0  # others can't be told
        if asks and not self.memory.retained.has_room(packet.topic, packet.payload, packet.properties):
            return ReasonCode.QUOTA_EXCEEDED
        return None

    def _answer_in_turn(self, connection: Connection, data: bytes) -> None:
        """After what is being written is: it may be what is answered."""
        if self.intake.inbox:
            self.turn()
        connection.send(data)

    def put(
        self,
        topic: str,
        payload: bytes,
        kept: dict[str, Any],
        connection: Connection | None = None,
        acks: bytes = b"",
        session: Session | None = None,
    ) -> None:
        """One message into the log, with this turn."""
        if kept.get("retain") and not self.memory.retained.has_room(topic, payload, kept):
            del kept["retain"]  # it is delivered all the same, and whoever could be told was
            self.visits.notices.warning("not retained", "", topic=topic, reason="quota exceeded")
        time_ns = self.intake.put(topic, payload, kept, connection, acks)
        if kept.get("retain"):
            message = Stored(time_ns, topic, payload, kept)
            self.memory.retained.reserve(message)
            self.intake.when_written(lambda: self._retain(message))
            self.intake.when_failed(functools.partial(self.memory.retained.release, topic))
        packet_id = kept.get("id")
        if packet_id is not None and session is not None:
            session.received[packet_id] = time_ns
            self.memory.taking[session] = None
            self.intake.when_failed(functools.partial(session.received.pop, packet_id, None))
        self.turn_soon()

    def _retain(self, message: Stored) -> None:
        self.memory.note_retained(message.topic, self.memory.retain(message))

    # -- turns

    def turn_soon(self) -> None:
        """There is something to write."""
        if self.intake.inbox.byte_count > self.limits.turn_bytes_max:
            self.turn()
        elif not self._turn_due:
            self._turn_due = True
            self.loop.call_soon(self._due)

    def _due(self) -> None:
        now = time.monotonic()
        if len(self.intake.inbox.runs) < self._share and now - self._ended < self._patience:
            self.loop.call_soon(self._due)  # those who shared the last sync are about to share the next
            return
        self._turn_due = False
        self.now = now
        self.turn()
        if self._syncs:
            self._ended = time.monotonic()
            self._patience = min((self._ended - now) / 2, PATIENCE_SECONDS_MAX)

    def turn(self) -> None:
        """Write what was published, answer, send on."""
        if self.intake.inbox:
            try:
                written = self.intake.write()
            except (OSError, ForelogError) as error:
                self._write_failed(error)
            else:
                self.clock.wrote(self.intake.written_ns)
                self._answer(written)
                self.delivery.dispatch(written.batch)
                self._share = len(written.answers)
        if self._roomy:
            roomy, self._roomy = self._roomy, {}
            for session in roomy:
                self._pump(session)

    def _answer(self, written: Written) -> None:
        """What follows from what was written. What fails of it doesn't keep anything else from happening."""
        for action in written.actions:
            try:
                action()
            except Exception:
                logger.exception("broker: a message was written, and something that follows from it failed")
        for connection, acks in written.answers:
            if acks and connection is not None:
                try:
                    connection.send(acks)
                except Exception:
                    logger.exception("broker: %s is disconnected: its socket has failed", connection.peer)
                    connection.abort()

    def _write_failed(self, error: Exception) -> None:
        """Nothing of this turn is in the log: nobody is told that it were."""
        self.failures += 1
        logger.error("broker: messages couldn't be written, their publishers are disconnected: %s", error)
        for connection in self.intake.failed_connections():
            connection.refuse(ReasonCode.QUOTA_EXCEEDED, f"the log can't be written: {error}")
        if isinstance(error, AppenderFailed):
            try:
                self.intake.reopen()
            except (OSError, ForelogError) as again:
                logger.error("broker: the log can't be opened again: %s", again)

    # -- who has room

    def has_room(self, session: Session) -> None:
        """A client can take more: who is behind may go on, with this turn."""
        session.wake()
        if session.connection is not None and (session.retained_left or session.behind or session.waiting):
            self._roomy[session] = None
            if not self._turn_due:
                self._turn_due = True
                self.loop.call_soon(self._due)

    def _pump(self, session: Session) -> None:
        self.subscriptions.send_retained(session)
        if session.behind:
            self.catchup.pump(session)
        for _ in range(min(len(session.waiting), GROUPS_PER_TURN)):
            group, _ = session.waiting.popitem()
            assert isinstance(group, Group)
            group.has_room(session)
            if not group.live:
                self.catchup.pump(group)
        if session.waiting and self.sender.can_take(session):
            self.has_room(session)

    # -- now and then

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.now = time.monotonic()
            with contextlib.suppress(OSError, ForelogError):  # it is told where it matters
                self._note_progress()
            if self.now - self._swept >= SWEEP_SECONDS:
                self._swept = self.now
                self.door.sweep(self.now)
                self.visits.notices.sweep()
                self.clients.sweep(self.now)
            self.memory.forget_expired(self.clock.seconds_left)
            if self.now - self._known >= KNOWN_SECONDS:
                self._known = self.now
                self.memory.note_known()

    def _note_progress(self) -> None:
        """How far sessions have got, for after a crash: they get again what they acknowledged since."""
        moved = self.acknowledgements.take_moved()
        end = self.delivery.end
        for session in moved:
            if session.durable and session.client_id in self.memory.sessions:
                self.memory.note_places(session)
            if session.shares:
                self.subscriptions.groups.acknowledged(session)
        self.subscriptions.groups.note_moved(end)
        self.memory.flush()

    def position_of(self, time_ns: int) -> Position:
        """Where the first message at or after a time is."""
        for block in self.stream.blocks(since=time_ns, on_corruption="skip"):
            return Position(block.segment, block.offsets[block.first])
        return self.history.end
