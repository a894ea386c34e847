"""A replica server keeps copies of any number of logs, and sends them on to followers.

A new connection waits at the door until it has said hello (door.py). If its token is valid for its log
(tokens.py), it gets a thread. A log has one primary at a time. An older epoch is refused, and so is the same epoch
with another word. Any other primary must claim that its log continues the copy (claim.py); then the connection of
the primary before it is closed. Only the frames that are being received or sent are in memory, and large ones
share a limited room. No lock is held while the server sends or waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from forelog.bounds import BYTES_MAX, COUNT_MAX, TIMER_SECONDS_MAX, check_number, check_whole
from forelog.copies.claim import refuse_other
from forelog.copies.identity import Identity, check_term
from forelog.copies.server.door import Door, Guest
from forelog.copies.server.hosted_log import HostedLog
from forelog.copies.server.receiver import Receiver
from forelog.copies.server.space import Space
from forelog.copies.server.tokens import Tokens
from forelog.copies.shipping import ship
from forelog.copies.targets import LinkTarget
from forelog.copies.wire import (
    VERSION,
    Body,
    Fields,
    Kind,
    Link,
    Room,
    as_token,
    identity_fields,
    is_log_name,
    need_msgspec,
    resume_fields,
)
from forelog.errors import BadFrame, ForelogError, ReplicaError, Superseded
from forelog.files import OSFiles
from forelog.files.modes import PRIVATE
from forelog.log.directory.tenants import refuse_others
from forelog.log.position import Position
from forelog.log.stream import PathLike
from forelog.serving.notices import Notices

CONNECTIONS_MAX = 256
WAITING_MAX = 256
WAITING_PER_ADDRESS_MAX = 64
FOLLOWERS_MAX = 32
WRITERS_MAX = 8  # connections of one log: the primary, candidates for its place, and promotions
LOGS_MAX = 1024
FRAMES_BYTES_MAX = 256 << 20
HELLO_SECONDS = 10.0
CLAIMS_MAX = 20  # attempts of a primary to claim a copy that another one keeps changing
ROLES = ("primary", "follower", "promote")


class _Place(NamedTuple):
    """What a connection came for, with its token."""

    log: str
    role: str
    token: str
    host: str

    @property
    def writes(self) -> bool:
        return self.role != "follower"


class ReplicaServer:
    """Keeps copies of logs: `with ReplicaServer("replica", port=7070) as server: ...`.

    path                     the directory of all copies
    host, port               where to listen; port 0 chooses a free one
    token                    one token for all logs; without `token` and `tokens`, everybody may read and write
    tokens                   the path of a file of tokens, each for the logs that match a pattern (tokens.py)
    tls                      a context; it may require certificates of clients
    connections_max          connections that have said hello, a thread each; per log 32 followers and 8 others
    waiting_max              connections that have not said hello, in all
    waiting_per_address_max  and from one address
    hello_seconds            time to say hello after a connection was accepted
    logs_max                 logs that copies are kept of
    log_bytes_max            disk space for the copies of one log; None for no limit
    bytes_max                disk space for all copies; None for no limit
    frames_bytes_max         memory for frames over 1 MiB that are being received, for all connections
    mode                     permissions of the files of new copies
    """

    def __init__(
        self,
        path: PathLike,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | bytes | None = None,
        tokens: str | os.PathLike[str] | None = None,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
        waiting_max: int = WAITING_MAX,
        waiting_per_address_max: int = WAITING_PER_ADDRESS_MAX,
        hello_seconds: float = HELLO_SECONDS,
        logs_max: int = LOGS_MAX,
        log_bytes_max: int | None = None,
        bytes_max: int | None = None,
        frames_bytes_max: int = FRAMES_BYTES_MAX,
        mode: int = PRIVATE,
    ) -> None:
        need_msgspec()
        check_whole("port", port, least=0, most=65_535)
        for name, count in (
            ("connections_max", connections_max),
            ("waiting_max", waiting_max),
            ("waiting_per_address_max", waiting_per_address_max),
            ("logs_max", logs_max),
        ):
            check_whole(name, count, most=COUNT_MAX)
        check_number("hello_seconds", hello_seconds, above=True, most=TIMER_SECONDS_MAX)
        check_whole("log_bytes_max", log_bytes_max, or_none="for no limit")
        check_whole("bytes_max", bytes_max, or_none="for no limit")
        check_whole("frames_bytes_max", frames_bytes_max, most=BYTES_MAX)
        if token is not None and tokens is not None:
            raise ValueError("token is for all logs, and tokens is a file with many: give only one of them")
        self.path = os.fspath(path)
        self._files = OSFiles(mode)
        self._address = (host, port)
        self._tokens = Tokens.one(as_token(token)) if tokens is None else Tokens.read(os.fspath(tokens))
        self._tls = tls
        self._connections_max = connections_max
        self._waiting = (waiting_max, waiting_per_address_max, hello_seconds)
        self._limits = (bytes_max, log_bytes_max, logs_max)
        self._room = Room(frames_bytes_max)
        self.notices = Notices("replica")
        self._logs: dict[str, HostedLog] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._links: dict[Link, _Place] = {}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._door: Door | None = None
        self._stopping = False
        self._threads: set[threading.Thread] = set()

    # -- starting and stopping

    def start(self) -> Self:
        """Start to listen at `address`."""
        refuse_others(self._files, self.path, "a replica server's copies", kind="replica")
        self._files.make_dir(self.path)
        bytes_max, log_bytes_max, logs_max = self._limits
        self._space = Space(self.path, bytes_max=bytes_max, log_bytes_max=log_bytes_max, logs_max=logs_max)
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._socket = socket.create_server(self._address, family=family, backlog=128)
        places, per_address, seconds = self._waiting
        self._door = Door(
            self._socket,
            self._tls,
            self._admit,
            self.notices,
            seconds=seconds,
            places=places,
            places_per_address=per_address,
        )
        self._door_thread = self._spawn(self._door.run)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens."""
        if self._socket is None:
            raise ReplicaError("the replica server is not running")
        host, port = self._socket.getsockname()[:2]
        return host, port

    def stop(self) -> None:
        """Close all connections, sync the copies, and stop."""
        self._stopping = True
        if self._door is not None:
            self._door.stop()
            self._door_thread.join(5)  # no connection is admitted after this
        with self._lock:
            links, threads = list(self._links), list(self._threads)
        for link in links:
            link.close()
        for hosted in list(self._logs.values()):
            hosted.changed()
        for thread in threads:
            thread.join(5)
        if self._socket is not None:
            self._socket.close()
        for hosted in list(self._logs.values()):
            hosted.close()
        self.notices.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def positions(self) -> dict[str, Position]:
        """Where the copy of each log ends, for the logs that were used since the start."""
        return {name: hosted.slots.position for name, hosted in list(self._logs.items())}

    def figures(self) -> dict[str, int]:
        """Counts of connections, logs and bytes now, and of events since the start."""
        with self._lock:
            places = list(self._links.values())
        return {
            "connections": len(places),
            "followers": sum(not place.writes for place in places),
            "waiting": 0 if self._door is None else self._door.waiting,
            "logs": len(self._logs),
            "bytes": self._space.byte_count,
            **{event.replace(" ", "_"): count for event, count in sorted(self.notices.counts.items())},
        }

    def reload(self, *, token: str | bytes | None = None, tokens: str | os.PathLike[str] | None = None) -> None:
        """Use another token, or read a file of tokens. Connections that lost their right are closed.

        An invalid file raises BadTokens or OSError, and nothing changes.
        """
        new = Tokens.one(as_token(token)) if tokens is None else Tokens.read(os.fspath(tokens))
        with self._lock:
            self._tokens = new
            places = list(self._links.items())
        for link, place in places:
            if self._why_not(place) is not None:
                self.notices.warning(
                    "cut off", place.host, from_=link.who, role=place.role, log=place.log, reason="token revoked"
                )
                link.close()

    # -- connections

    def _spawn(self, work: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, name="forelog-replica", daemon=True)
        with self._lock:
            thread.start()
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        return thread

    def _admit(self, guest: Guest, body: Body) -> None:
        """Give a connection that has said hello a thread, or raise. Called by the door."""
        hello = Fields("the client", body)
        version = hello.need("version")
        if version != VERSION:
            raise BadFrame(f"it speaks version {version} of the protocol: expected {VERSION}")
        place = _Place(hello.need("log"), hello.need("role"), hello.get("token", ""), guest.host)
        if not is_log_name(place.log):
            raise BadFrame(f"{place.log!r:.40} is not a name for a log: expected letters, digits, dots and dashes")
        if place.role not in ROLES:
            raise BadFrame(f"its role is {place.role!r:.40}: expected primary, follower or promote")
        if why := self._why_not(place):
            self.notices.count("token refused")
            raise ReplicaError(f"{why} (log {place.log}, as {place.role})")
        guest.socket.setblocking(True)
        link = Link(guest.socket, who=guest.who)
        link.room = self._room
        with self._lock:
            self._check_places(place)
            self._links[link] = place
        try:
            self._spawn(self._serve, link, place, hello)
        except BaseException:
            self._leave(link)
            raise

    def _why_not(self, place: _Place) -> str | None:
        right = self._tokens.right(place.log, place.token)
        if right is None:
            return "the token isn't right"
        return "the token is only good for reading" if right == "read" and place.writes else None

    def _check_places(self, place: _Place) -> None:
        """Raise if there are too many connections, in all or for the log."""
        if len(self._links) >= self._connections_max:
            raise ReplicaError(f"there are {self._connections_max} connections here already")
        same = [link for link, one in self._links.items() if (one.log, one.writes) == (place.log, place.writes)]
        if not place.writes and len(same) >= FOLLOWERS_MAX:
            raise ReplicaError(f"there are {len(same)} connections of followers of {place.log} here already")
        if place.writes and len(same) >= WRITERS_MAX:
            # The oldest candidate that hasn't become the primary makes way.
            hosted = self._logs.get(place.log)
            next(link for link in same if hosted is None or link is not hosted.primary).close()

    def _leave(self, link: Link) -> None:
        with self._lock:
            self._links.pop(link, None)

    def _serve(self, link: Link, place: _Place, hello: Fields) -> None:
        began, reason, fine = time.monotonic(), "closed", True
        fields = {"from_": link.who, "role": place.role, "log": place.log}
        self.notices.info("connected", place.host, **fields)
        try:
            self._talk(link, place, hello)
        except (ForelogError, OSError) as error:
            reason, fine = str(error), self._stopping
            _refuse(link, error)
        except Exception as error:
            reason, fine = f"{type(error).__name__}: {error}", False
            _refuse(link, ReplicaError("an error in the server: its log says more"))
        finally:
            self._leave(link)
            link.close()
            note = self.notices.info if fine else self.notices.warning
            note("left", place.host, **fields, seconds=round(time.monotonic() - began, 1), reason=reason)

    def _talk(self, link: Link, place: _Place, hello: Fields) -> None:
        if place.role == "primary":
            identity = hello.need_identity()
            self._receive(link, self._hosted(place.log), identity)
        elif place.role == "promote":
            self._promote(link, self._known(place.log))
        else:
            self._pass_on(link, self._known(place.log), hello)

    def _hosted(self, name: str) -> HostedLog:
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        with opening:  # connections of other logs don't wait while it is opened
            hosted = self._logs.get(name)
            if hosted is not None and hosted.is_gone():  # removed or replaced: open it again
                with self._lock:
                    del self._logs[name]
                self._space.forget(name)
                hosted.close()
                hosted = None
            if hosted is None:
                try:
                    self._space.admit(name)
                    hosted = HostedLog(name, os.path.join(self.path, name), self._files)
                except BaseException:
                    with self._lock:
                        self._opening.pop(name, None)
                    raise
                with self._lock:
                    self._logs[name] = hosted
            return hosted

    def _known(self, name: str) -> HostedLog:
        if name not in self._logs and not os.path.isdir(os.path.join(self.path, name)):
            raise ReplicaError(f"there is no log {name!r:.40} here")
        return self._hosted(name)

    # -- primaries, promotions, followers

    def _receive(self, link: Link, hosted: HostedLog, identity: Identity) -> None:
        self._grant(link, hosted, identity)

        def check() -> None:
            if hosted.primary is not link:
                raise Superseded(f"another primary has connected for this log since {identity.opening} did")
            self._space.note(hosted.name, hosted.slots.byte_count)

        def fits(count: int) -> None:
            self._space.fits(hosted.name, hosted.slots.byte_count, count)

        host = link.who.rpartition(":")[0]
        self.notices.info("primary", host, from_=link.who, log=hosted.name, opening=identity.opening)
        receiver = Receiver(
            link, hosted.slots, hosted.lock, renewed=hosted.renewed, changed=hosted.changed, fits=fits
        )
        receiver.run(check)

    def _grant(self, link: Link, hosted: HostedLog, identity: Identity) -> None:
        """Make a connection the primary if its log continues the copy; else raise.

        The client is asked without the lock held. So its claim counts only if the copy hasn't changed meanwhile.
        """
        slots = hosted.slots
        for _ in range(CLAIMS_MAX):
            with hosted.lock:
                refuse_other(slots.path, identity, slots.identity)
                check_term(slots.path, identity, slots.identity)
                known = slots.known()
            link.send_fields(
                Kind.KNOWN, **identity_fields(known.identity), **resume_fields(known.end), content_term=known.term
            )
            claim = Fields(link.who, link.expect(Kind.CLAIM, HELLO_SECONDS))
            if why := claim.get("refused", ""):
                raise ReplicaError(f"{identity} is refused: {why}")
            with hosted.lock:
                if known != slots.known():
                    continue
                slots.adopt(identity, continues=claim.need("continues"))
                hosted.take_over(link)
                resume = slots.growing.resume()
            link.send_fields(Kind.WELCOME, **resume_fields(resume))
            return
        raise ReplicaError(f"{slots.path} is being written by another primary, {slots.identity}")

    def _promote(self, link: Link, hosted: HostedLog) -> None:
        """Begin a new term for a follower that will be the primary, and shut the old primary out."""
        with hosted.lock:
            known = hosted.slots.identity
            if known is None:
                raise ReplicaError("nobody has written to this log yet")
            identity = known.next_term()
            hosted.slots.adopt(identity)
            if hosted.primary is not None:
                hosted.primary.close()
                hosted.primary = None
            position = hosted.slots.whole_end  # with all that was acknowledged, also while a new copy is made
        host = link.who.rpartition(":")[0]
        self.notices.warning("promoted", host, from_=link.who, log=hosted.name, opening=identity.opening)
        link.send_fields(
            Kind.WELCOME, **identity_fields(identity), segment=position.segment, offset=position.offset, tail=b""
        )

    def _pass_on(self, link: Link, hosted: HostedLog, hello: Fields) -> None:
        identity = hosted.slots.identity
        if identity is None:
            raise ReplicaError("nobody has written to this log yet")
        if hosted.view() is None:
            # Don't wait here: a follower that gives up meanwhile would leave its thread behind.
            raise ReplicaError("there is no whole copy of this log yet: its primary hasn't sent all of it")
        link.send_fields(Kind.WELCOME, **identity_fields(identity))
        woken = hosted.follow(link)
        try:
            ship(
                hosted,
                LinkTarget(link, hello.resume(), synced=False),
                woken=woken,
                stopped=lambda: self._stopping,
                acknowledged=lambda _: None,
                apart=True,
            )
        finally:
            hosted.leave(link)


def _refuse(link: Link, error: Exception) -> None:
    """Tell the other side why, if it can still be reached."""
    why = str(error) if isinstance(error, ForelogError) else f"{getattr(error, 'strerror', None) or error}"
    code = "superseded" if isinstance(error, Superseded) else "failed"
    with contextlib.suppress(ForelogError, OSError):
        link.send_fields(Kind.REFUSED, code=code, why=why[:1000])
        link.drain()
