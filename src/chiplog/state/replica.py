"""A replica server: it keeps copies of any number of logs, and passes them on to followers.

Each connection has a thread. A log has one primary at a time. An older epoch is refused, and so is the same epoch
with another word. Any other primary is asked whether its log continues the copy (claim.py); if it does, the
connection before it is closed. Nothing is in memory but the frame that is being received.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from chiplog.bounds import COUNT_MAX, check_whole
from chiplog.errors import BadFrame, ChiplogError, LockTimeout, ReplicaError, Superseded
from chiplog.files import OSFiles
from chiplog.log.position import Position
from chiplog.log.tenants import refuse_others
from chiplog.modes import PRIVATE
from chiplog.state.claim import refuse_other
from chiplog.state.copies import Copies
from chiplog.state.identity import Identity
from chiplog.state.receiving import Receiver
from chiplog.state.shipping import View, ship
from chiplog.state.targets import LinkTarget, is_log_name
from chiplog.state.wire import (
    VERSION,
    Fields,
    Kind,
    Link,
    as_token,
    identity_fields,
    need_msgspec,
    resume_fields,
)

__all__ = ["ReplicaServer"]

logger = logging.getLogger("chiplog")

CONNECTIONS_MAX = 256
LOGS_MAX = 1024
HELLO_SECONDS = 10.0
CLAIMS_MAX = 20  # that a primary makes, while another one writes the copy


class _Hosted:
    """One log, its copies, and who is connected for it."""

    def __init__(self, path: str, files: OSFiles) -> None:
        self.copies = Copies(path, files)
        self.lock = threading.RLock()
        self.primary: Link | None = None
        self._lineage = 0
        self._followers: dict[Link, threading.Event] = {}

    def view(self) -> View | None:
        """The whole copy, for followers."""
        with self.lock:
            whole = self.copies.whole
            if whole is None or whole.snapshot is None:
                return None
            return View(whole.stream(), whole.snapshot, self._lineage, whole.before)

    def renewed(self) -> None:
        """Another copy is the whole one now."""
        self._lineage += 1

    def changed(self) -> None:
        """There is more of it."""
        for woken in list(self._followers.values()):
            woken.set()

    def follow(self, link: Link) -> threading.Event:
        """Somebody wants to know when there is."""
        return self._followers.setdefault(link, threading.Event())

    def leave(self, link: Link) -> None:
        """And doesn't any more."""
        self._followers.pop(link, None)

    def take_over(self, link: Link) -> None:
        """A primary is here: whoever was, isn't any more."""
        if self.primary is not None and self.primary is not link:
            self.primary.close()
        self.primary = link

    def is_gone(self) -> bool:
        """Whether the directory isn't the one any more that was opened."""
        with self.lock:
            return self.copies.is_gone()

    def close(self) -> None:
        """Sync, and let go of the copies. Who is connected for them is cut off."""
        for link in [*self._followers, *([] if self.primary is None else [self.primary])]:
            link.close()
        with self.lock:
            self.copies.close()


class ReplicaServer:
    """`with ReplicaServer("replica", port=7070) as server: ...`; port 0 finds one that is free."""

    def __init__(
        self,
        path: str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | bytes | None = None,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
        mode: int = PRIVATE,
    ) -> None:
        need_msgspec()
        check_whole("port", port, least=0, most=65_535)
        check_whole("connections_max", connections_max, most=COUNT_MAX)
        self.path = path
        self._files = OSFiles(mode)
        self._address = (host, port)
        self._token = as_token(token)
        self._tls = tls
        self._room = threading.BoundedSemaphore(connections_max)
        self._logs: dict[str, _Hosted] = {}
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._stopping = False
        self._threads: set[threading.Thread] = set()

    # -- starting and stopping

    def start(self) -> Self:
        """Listen; `address` tells where."""
        refuse_others(self._files, self.path, "a replica server's copies", kind="replica")
        self._files.make_dir(self.path)
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._socket = socket.create_server(self._address, family=family, backlog=128)
        self._spawn(self._accept, self._socket)
        return self

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        if self._socket is None:
            raise ReplicaError("the replica server is not running")
        host, port = self._socket.getsockname()[:2]
        return host, port

    def stop(self) -> None:
        """Cut all connections, sync, close."""
        self._stopping = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        with self._lock:
            links, threads = list(self._links), list(self._threads)
        for link in links:
            link.close()
        for hosted in self._logs.values():
            hosted.changed()
        for thread in threads:
            thread.join(5)
        for hosted in self._logs.values():
            hosted.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def positions(self) -> dict[str, Position]:
        """Up to where each log's copy has everything, for those that have been asked for since the start."""
        return {name: hosted.copies.position for name, hosted in list(self._logs.items())}

    # -- connections

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name="chiplog-replica", daemon=True)
        with self._lock:
            self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        thread.start()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, address = listening.accept()
            except OSError as error:
                if self._stopping:
                    return
                logger.warning("replica: a connection couldn't be accepted: %s", error)
                threading.Event().wait(0.1)  # it may be out of descriptors: not again at once
                continue
            if not self._room.acquire(blocking=False):
                logger.warning("replica: there are too many connections, %s was turned away", address[0])
                accepted.close()
                continue
            self._spawn(self._serve, accepted, f"{address[0]}:{address[1]}")

    def _serve(self, accepted: socket.socket, who: str) -> None:
        link: Link | None = None
        try:
            accepted.settimeout(HELLO_SECONDS)
            if self._tls is not None:
                accepted = self._tls.wrap_socket(accepted, server_side=True)
            link = Link(accepted, who=who)
            with self._lock:
                self._links.add(link)
            self._talk(link)
        except (ChiplogError, OSError) as error:
            if not self._stopping:
                logger.warning("replica: %s: %s", who, error)
            if link is not None:
                _refuse(link, error)
        except Exception:
            logger.exception("replica: %s: the connection is closed", who)
        finally:
            if link is not None:
                with self._lock:
                    self._links.discard(link)
                link.close()
            accepted.close()
            self._room.release()

    def _talk(self, link: Link) -> None:
        hello = Fields(link.who, link.expect(Kind.HELLO, HELLO_SECONDS))
        version = hello.need("version", int)
        if version != VERSION:
            raise BadFrame(f"it speaks version {version} of the protocol, here is {VERSION}")
        if self._token is not None and not hmac.compare_digest(
            hello.get("token", str, "").encode(), self._token.encode()
        ):
            raise ReplicaError("the token isn't right")
        role, name = hello.need("role", str), hello.need("log", str)
        if role == "primary":
            self._receive(link, self._hosted(name), hello.need_identity())
        elif role == "promote":
            self._promote(link, self._known(name))
        elif role == "follower":
            self._pass_on(link, self._known(name), hello)
        else:
            raise BadFrame(f"its role is {role!r:.40}: expected primary, follower or promote")

    def _hosted(self, name: str) -> _Hosted:
        if not is_log_name(name):
            raise BadFrame(f"{name!r:.40} is no name for a log: expected letters, digits, dots and dashes")
        self._forget_if_gone(name)
        with self._lock:
            if name not in self._logs:
                if len(self._logs) >= LOGS_MAX:
                    raise ReplicaError(f"there are {LOGS_MAX} logs here already")
                try:
                    self._logs[name] = _Hosted(os.path.join(self.path, name), self._files)
                except LockTimeout:
                    raise ReplicaError(f"another process has the copy of {name}") from None
            return self._logs[name]

    def _forget_if_gone(self, name: str) -> None:
        """Copies whose directory was removed or replaced are opened anew, for who connects next."""
        hosted = self._logs.get(name)
        if hosted is None or not hosted.is_gone():
            return
        with self._lock:
            if self._logs.get(name) is hosted:
                del self._logs[name]
        hosted.close()

    def _known(self, name: str) -> _Hosted:
        if name not in self._logs and not (is_log_name(name) and os.path.isdir(os.path.join(self.path, name))):
            raise ReplicaError(f"there is no log {name!r:.40} here")
        return self._hosted(name)

    # -- what they come for

    def _receive(self, link: Link, hosted: _Hosted, identity: Identity) -> None:
        self._grant(link, hosted, identity)

        def check() -> None:
            if hosted.primary is not link:
                raise Superseded(f"another primary has connected for this log since {identity.opening} did")

        logger.info("replica: %s is the primary of %s (%s)", link.who, hosted.copies.path, identity)
        Receiver(link, hosted.copies, hosted.lock, renewed=hosted.renewed, changed=hosted.changed).run(check)

    def _grant(self, link: Link, hosted: _Hosted, identity: Identity) -> None:
        """Make it the primary, if its log continues the copy; else raise.

        It is asked without the lock. What it claims counts only for the copy that it was asked about.
        """
        copies = hosted.copies
        for _ in range(CLAIMS_MAX):
            with hosted.lock:
                refuse_other(copies.path, identity, copies.identity)
                known = copies.known()
            link.send_fields(
                Kind.KNOWN, **identity_fields(known.identity), **resume_fields(known.end), content_term=known.term
            )
            claim = Fields(link.who, link.expect(Kind.CLAIM, HELLO_SECONDS))
            if why := claim.get("refused", str, ""):
                raise ReplicaError(f"{identity} is refused: {why}")
            with hosted.lock:
                if known != copies.known():
                    continue
                copies.adopt(identity, continues=claim.need("continues", bool))
                hosted.take_over(link)
                link.send_fields(Kind.WELCOME, **resume_fields(copies.growing.resume()))
                return
        raise ReplicaError(f"{copies.path} is being written by another primary, {copies.identity}")

    def _promote(self, link: Link, hosted: _Hosted) -> None:
        """Whoever asks will be the primary: take nothing from the one there was."""
        with hosted.lock:
            known = hosted.copies.identity
            if known is None:
                raise ReplicaError("nobody has written to this log yet")
            identity = known.next_term()
            hosted.copies.adopt(identity)
            if hosted.primary is not None:
                hosted.primary.close()
                hosted.primary = None
            position = hosted.copies.whole_end  # what was acknowledged is there, also while another is made
        logger.warning("replica: %s was promoted by %s", hosted.copies.path, link.who)
        link.send_fields(
            Kind.WELCOME, **identity_fields(identity), segment=position.segment, offset=position.offset, tail=b""
        )

    def _pass_on(self, link: Link, hosted: _Hosted, hello: Fields) -> None:
        identity = hosted.copies.identity
        if identity is None:
            raise ReplicaError("nobody has written to this log yet")
        if hosted.view() is None:
            # Not waited for here: a follower that gives up meanwhile would leave its thread and its place.
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
            )
        finally:
            hosted.leave(link)


def _refuse(link: Link, error: Exception) -> None:
    """Say why, if it can still be said."""
    why = str(error) if isinstance(error, ChiplogError) else f"{getattr(error, 'strerror', None) or error}"
    code = "superseded" if isinstance(error, Superseded) else "failed"
    with contextlib.suppress(ChiplogError, OSError):
        link.send_fields(Kind.REFUSED, code=code, why=why[:1000])
        link.drain()
