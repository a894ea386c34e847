"""The broker: builds its parts, starts them and stops them.

Everything happens on one event loop, in turns (`flow.turns`). Only old messages and retention are read on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from forelog.bounds import TIMER_MS_MAX, check_whole
from forelog.broker.access.control import Access
from forelog.broker.clients.acknowledgements import Acknowledgements
from forelog.broker.clients.groups import Groups
from forelog.broker.clients.lifecycle import Clients
from forelog.broker.clients.publications import Publications
from forelog.broker.clients.subscriptions import Subscriptions
from forelog.broker.clients.wills import Wills
from forelog.broker.connections.admission import Admission
from forelog.broker.connections.buffers import SharedBuffers
from forelog.broker.connections.inputs import Inputs
from forelog.broker.connections.listeners import listen
from forelog.broker.connections.services import Services
from forelog.broker.figures import Figures
from forelog.broker.flow.catchup import CatchUp
from forelog.broker.flow.delivery import Delivery
from forelog.broker.flow.intake import Intake
from forelog.broker.flow.retained import RetainedDelivery
from forelog.broker.flow.routes import Routes
from forelog.broker.flow.sender import Sender
from forelog.broker.flow.slices import Slices
from forelog.broker.flow.turns import Turns
from forelog.broker.limits import Limits
from forelog.broker.log.batch import MessageBatch
from forelog.broker.log.clock import MessageClock
from forelog.broker.log.history import History
from forelog.broker.mqtt.packets import MQTT_5_0, Disconnect, Pubcomp, Pubrec, Pubrel, Subscribe, Unsubscribe
from forelog.broker.mqtt.reasons import ReasonCode
from forelog.broker.notices import ClientNotices
from forelog.broker.retention import Retention
from forelog.broker.sessions.presence import Presence
from forelog.broker.sessions.quotas import SessionQuotas
from forelog.broker.sessions.store import SessionStore
from forelog.broker.system import SystemTopics
from forelog.broker.tasks import LoopWork, Tasks
from forelog.broker.traffic import Traffic
from forelog.broker.upkeep import Upkeep
from forelog.errors import ForelogError
from forelog.files import OSFiles
from forelog.formats.messages import Messages
from forelog.log.appender import SEGMENT_BYTES, Appender, Sync
from forelog.log.directory.journal import JOURNAL_BYTES
from forelog.log.directory.tenants import refuse_others
from forelog.log.stream import Stream
from forelog.serving.heap import Heap

READERS = 2
"""Threads that read old messages."""
DELIVERY_SECONDS_MAX = 2.0
"""How long a broker that stops goes on delivering what was published."""


class Broker:
    """An MQTT broker whose memory is a log.

        async with Broker("log") as broker:
            await broker.listen("127.0.0.1", 1883)
            await asyncio.Event().wait()

    Messages are in `path/messages`, and can be read there beside the broker. Sessions and retained messages are in
    `path/sessions`. `sync` says what acknowledged messages survive: with "os" a crash of the process; with
    "interval" also a power loss, except for those of the last `sync_interval_ms`; with "always" every power loss.
    `file_bytes` is the size of a file of messages, and `mode` the permissions of new files. The other attributes
    are the broker's parts.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: Sync = "os",
        sync_interval_ms: int = 1000,
        file_bytes: int = SEGMENT_BYTES,
        limits: Limits | None = None,
        access: Access | None = None,
        mode: int | None = None,
    ) -> None:
        """A broker for the log at a path. Nothing is opened before `open`."""
        check_whole("sync_interval_ms", sync_interval_ms, most=TIMER_MS_MAX)
        check_whole("file_bytes", file_bytes)
        self.path = os.fspath(path)
        self.limits = limits or Limits()
        self.access = access or Access()
        self.stream = Stream(f"{self.path}/messages", format=Messages(), mode=mode)
        self._sync: Sync = sync
        self._sync_interval_ms = sync_interval_ms
        self._file_bytes = file_bytes
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="forelog-broker")
        self._loop_work = LoopWork()
        self._servers: list[asyncio.Server] = []
        self._is_stopping = False
        self.intake = Intake(self._appender)
        self.history = History(
            self.stream,
            self.limits.tail_bytes_max,
            self._readers,
            lists_bytes_max=self.limits.lists_bytes_max,
        )
        self.store = SessionStore(
            f"{self.path}/sessions",
            self.limits,
            written=lambda: self.intake.written_ns,
            delivered=lambda: self.history.delivered,
            run=self._loop_work.run,
            mode=mode,
            sync=sync,
            sync_interval_ms=sync_interval_ms,
        )

    # -- starting and stopping

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def open(self) -> None:
        """Open the log, and restore sessions. No client can connect before `listen`."""
        refuse_others(OSFiles(), self.path, "a broker", kind="broker")
        self.loop = asyncio.get_running_loop()
        self.intake.open()
        try:
            self.intake.start()
            self.store.open()
            self.history.end = self.intake.appender.position
            for block in self.stream.blocks(since=self.store.known_ns, on_corruption="skip"):
                self.store.learn(MessageBatch.of_block(block))
        except BaseException:
            self.intake.appender.close()
            raise
        self.store.learned()
        self._loop_work.start(self.loop)
        self._build_flow()
        self._build_clients()
        self.groups.restore()
        self.clients.restore()
        self.store.flush()
        for work in (self.upkeep.run(), self.retention.run(), self.system.run(), self.store.tend()):
            self.tasks.start(work)

    async def listen(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        websockets: bool = False,
        origins: Iterable[str] = (),
    ) -> list[tuple[str, int]]:
        """Let clients connect; returns the addresses and ports. May be called several times.

        With `tls` clients must use TLS. With `websockets` they speak MQTT over WebSockets, as browsers do;
        pages of this machine may connect, and pages of the `origins`, where "*" stands for all.
        """
        server = await listen(self.services, host, port, tls, websockets, origins)
        self._servers.append(server)
        return [found.getsockname()[:2] for found in server.sockets]

    def reload(self) -> None:
        """Read the files of users and rules again. They take effect at once, also for connected clients."""
        self.turns.run()  # what was published before was published under the old rules
        self.access.reload()
        self.clients.judge_again()

    def figures(self) -> dict[str, float]:
        """Figures about the broker, as of now: the values of `$SYS` topics and of Prometheus metrics."""
        return self.system.figures.read()

    async def stop(self) -> None:
        """Disconnect all clients, write everything, and close the log."""
        if self._is_stopping:
            return
        self._is_stopping = True
        self.admission.close()
        for server in self._servers:
            server.close()
        self.tasks.cancel()
        self.turns.run()
        deadline = time.monotonic() + DELIVERY_SECONDS_MAX
        while self.delivery.is_behind and time.monotonic() < deadline:
            await asyncio.sleep(0)
        for connection in list(self.presence.connections):
            if connection.session is not None and connection.version == MQTT_5_0:
                connection.send_packet(Disconnect(ReasonCode.SERVER_SHUTTING_DOWN))
                connection.linger()
            else:
                connection.close()
        await self.admission.see_off(self.presence.connections)
        for connection in list(self.presence.connections):
            self.clients.left(connection)
        self.catchup.stop()
        self.slices.finish()
        self.store.note_known()
        with contextlib.suppress(OSError, ForelogError):  # closing the store reports it
            self.upkeep.note_progress()
        self.access.close()
        self.notices.close()
        self._readers.shutdown(wait=True)
        self._loop_work.stop()
        await self.loop.run_in_executor(None, self._close)

    def _close(self) -> None:
        try:
            self.store.close()
        finally:
            self.intake.appender.close()

    # -- parts

    def _appender(self) -> Appender:
        return self.stream.appender(
            segment_bytes=self._file_bytes,
            journal_bytes=JOURNAL_BYTES if self._sync == "always" else 0,
            sync=self._sync,
            sync_interval_ms=self._sync_interval_ms,
            timeout=0,
        )

    def _build_flow(self) -> None:
        """Build what writes and delivers messages."""
        limits, store, history = self.limits, self.store, self.history
        self.tasks = Tasks(self.loop)
        self.notices = ClientNotices()
        self.traffic = Traffic()
        self.presence = Presence()
        self.admission = Admission(limits, self.notices)
        self.buffers = SharedBuffers(limits, self.notices)
        self.routes = Routes()
        self.slices = Slices(self.loop.call_soon)
        self.clock = MessageClock()
        self.sender = Sender(store, self.clock)
        self.catchup = CatchUp(self.sender, history, self.clock, self.slices, self._readers, self.loop)
        self.delivery = Delivery(self.routes, history, self.sender, self.catchup, self.slices, self.presence)
        self.retention = Retention(
            self.stream, limits, store=store, presence=self.presence, history=history, intake=self.intake
        )
        figures = Figures(
            stream=self.stream,
            store=store,
            presence=self.presence,
            routes=self.routes,
            intake=self.intake,
            sender=self.sender,
            admission=self.admission,
            traffic=self.traffic,
            retention=self.retention,
            notices=self.notices,
        )
        self.system = SystemTopics(
            figures,
            interval_seconds=limits.system_interval_seconds,
            retention=self.retention,
            history=history,
            routes=self.routes,
            slices=self.slices,
            clock=self.clock,
        )
        self.retained = RetainedDelivery(store.retained, self.system.retained, self.sender, self.slices)
        self.turns = Turns(
            self.loop,
            self.intake,
            self.clock,
            self.delivery,
            self.catchup,
            self.retained,
            self.sender,
            limits,
            syncs=self._sync == "always",
        )

    def _build_clients(self) -> None:
        """Build what serves clients, and what their connections need of it."""
        limits, store, history, presence = self.limits, self.store, self.history, self.presence
        self.quotas = SessionQuotas(limits)
        self.groups = Groups(
            presence.groups, store, history, self.routes, self.delivery, self.catchup, self.sender.moved_groups
        )
        self.acknowledgements = Acknowledgements(store, self.turns)
        self.publications = Publications(self.intake, self.turns, store, self.access, self.notices, limits)
        self.subscriptions = Subscriptions(
            limits=limits,
            store=store,
            quotas=self.quotas,
            groups=self.groups,
            routes=self.routes,
            history=history,
            delivery=self.delivery,
            catchup=self.catchup,
            retained=self.retained,
            turns=self.turns,
            slices=self.slices,
            tasks=self.tasks,
            executor=self._readers,
            notices=self.notices,
        )
        self.clients = Clients(
            self.loop,
            limits=limits,
            access=self.access,
            store=store,
            quotas=self.quotas,
            presence=presence,
            history=history,
            delivery=self.delivery,
            turns=self.turns,
            subscriptions=self.subscriptions,
            wills=Wills(self.loop, self.access, self.publications, self.notices),
            slices=self.slices,
            notices=self.notices,
            is_full=self.admission.is_full,
        )
        self.upkeep = Upkeep(
            store=store,
            history=history,
            clock=self.clock,
            turns=self.turns,
            acknowledgements=self.acknowledgements,
            groups=self.groups,
            clients=self.clients,
            admission=self.admission,
            notices=self.notices,
            heap=Heap(),
        )
        self._build_services()

    def _build_services(self) -> None:
        self.services = Services(
            loop=self.loop,
            limits=self.limits,
            tasks=self.tasks,
            notices=self.notices,
            traffic=self.traffic,
            admission=self.admission,
            buffers=self.buffers,
            inputs=Inputs(self.loop.call_soon),
            presence=self.presence,
            access=self.access,
            intake=self.intake,
            slices=self.slices,
            routes=self.routes,
            delivery=self.delivery,
            turns=self.turns,
            clients=self.clients,
            publications=self.publications,
            acknowledgements=self.acknowledgements,
            handlers={
                Pubrec: self.acknowledgements.received,
                Pubrel: self.acknowledgements.released,
                Pubcomp: self.acknowledgements.completed,
                Subscribe: self.subscriptions.subscribe,
                Unsubscribe: self.subscriptions.unsubscribe,
            },
        )
