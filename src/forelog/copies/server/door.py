"""Where connections to a replica server wait until they have said hello.

One thread serves all of them. Before its HELLO a connection costs a socket and a few kilobytes. Its deadline runs
from the moment it was accepted, whatever it sends. The number of places is limited, in all and for one address. If
all are taken, a newcomer gets the place of the longest waiting connection of the address that has most. So a
client that says hello at once gets in, however many others don't. Admitted connections no longer take a place
here.

A client that speaks TLS to a server without it, or the other way round, is refused with a line that says so.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from forelog.copies.wire import HELLO_BYTES_MAX, Body, Kind, frame_bytes, pack, parse_head
from forelog.errors import ForelogError, ReplicaError
from forelog.serving.addresses import shown
from forelog.serving.notices import Notices
from forelog.serving.shares import Shares
from forelog.serving.tls import explain, tls_hint

HEAD_BYTES = 5
LEAVE_SECONDS = 1.0  # for a client that was refused to read why
LEAVE_BYTES_MAX = 1 << 16
_ACCEPTED_AT_ONCE = 64


class Guest:
    """A connection that hasn't said hello."""

    def __init__(self, sock: socket.socket, address: tuple[Any, ...], deadline: float, *, tls: bool) -> None:
        self.socket = sock
        self.host = str(address[0])
        self.who = shown(self.host, address[1])
        self.deadline = deadline
        self.tls = tls
        """Whether it still has to do its TLS handshake."""
        self.got = bytearray()
        self.missing = HEAD_BYTES
        self.left = LEAVE_BYTES_MAX
        self.leaving = False


class Door:
    """Accepts connections. Calls `admit(guest, body)` for each that said hello; it raises to refuse one."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        admit: Callable[[Guest, Body], None],
        notices: Notices,
        *,
        seconds: float,
        places: int,
        places_per_address: int,
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._admit = admit
        self._notices = notices
        self._seconds = seconds
        self._places_per_address = places_per_address
        self._guests: Shares[Guest] = Shares(places - 1)
        """The longest waiting first. At its limit there is no place for another one."""
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._stopping = False

    @property
    def waiting(self) -> int:
        """The number of waiting connections."""
        return len(self._guests)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"x")

    def run(self) -> None:
        """Accept and serve connections until `stop` is called."""
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            while not self._stopping:
                for key, _ in self._selector.select(self._pause()):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.data is not None and key.data in self._guests:
                        self._look_at(key.data)
                self._turn_away_the_late()
                self._notices.sweep()
        finally:
            for guest in self._guests.holders():
                self._drop(guest)
            self._selector.close()
            self._woken.close()
            self._wake.close()

    def _pause(self) -> float:
        if not self._guests:
            return 1.0
        return min(max(min(guest.deadline for guest in self._guests.holders()) - time.monotonic(), 0), 1.0)

    # -- arriving

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not self._stopping:
                    self._notices.warning("connection not accepted", "", reason=error.strerror or str(error))
                    self._make_place(next(iter(self._guests.holders()), None))  # there may be no descriptors left
                    time.sleep(0.02)
                return
            guest = Guest(sock, address, time.monotonic() + self._seconds, tls=self._tls is not None)
            sock.setblocking(False)
            self._enter(guest)

    def _enter(self, guest: Guest) -> None:
        if self._guests.sum_of(guest.host) >= self._places_per_address:
            self._make_place(self._guests.oldest_of(guest.host))
        else:
            self._make_place(self._guests.surplus())
        self._guests.set(guest, guest.host, 1)
        self._selector.register(guest.socket, selectors.EVENT_READ, guest)

    def _make_place(self, guest: Guest | None) -> None:
        if guest is not None:
            if not guest.leaving:
                self._notices.warning("no hello", guest.host, from_=guest.who, reason="others need its place")
            self._drop(guest)

    def _turn_away_the_late(self) -> None:
        now = time.monotonic()
        for guest in [one for one in self._guests.holders() if one.deadline <= now]:
            if not guest.leaving:
                what = "no TLS handshake" if guest.tls else "no hello"
                self._notices.warning(what, guest.host, from_=guest.who, reason=f"not within {self._seconds:g} s")
            self._drop(guest)

    # -- reading

    def _look_at(self, guest: Guest) -> None:
        try:
            if guest.leaving:
                self._drain(guest)
            elif guest.tls:
                self._shake_hands(guest)
            else:
                self._listen_to(guest)
        except (ssl.SSLWantReadError, BlockingIOError):
            self._watch(guest, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(guest, selectors.EVENT_WRITE)
        except ssl.SSLError as error:
            self._notices.warning("TLS refused", guest.host, from_=guest.who, reason=explain(error))
            self._drop(guest)
        except OSError as error:
            if not isinstance(error, ForelogError):
                self._notices.info("left before its hello", guest.host, from_=guest.who, reason=error.strerror)
                self._drop(guest)
            else:
                self._refuse(guest, error)
        except ForelogError as error:
            self._refuse(guest, error)

    def _watch(self, guest: Guest, events: int) -> None:
        if guest in self._guests:
            self._selector.modify(guest.socket, events, guest)

    def _shake_hands(self, guest: Guest) -> None:
        assert self._tls is not None
        if not isinstance(guest.socket, ssl.SSLSocket):
            first = guest.socket.recv(3, socket.MSG_PEEK)
            if not first:
                raise ConnectionResetError(None, "closed")
            if first[0] != 0x16:
                guest.tls = False
                raise ReplicaError("this server expects TLS, and the client does not speak it")
            self._selector.unregister(guest.socket)
            guest.socket = self._tls.wrap_socket(guest.socket, server_side=True, do_handshake_on_connect=False)
            self._selector.register(guest.socket, selectors.EVENT_READ, guest)
        guest.socket.do_handshake()
        guest.tls = False
        self._watch(guest, selectors.EVENT_READ)
        self._listen_to(guest)

    def _listen_to(self, guest: Guest) -> None:
        while guest.missing:
            data = guest.socket.recv(guest.missing)
            if not data:
                raise ConnectionResetError(None, "closed")
            guest.got += data
            guest.missing -= len(data)
            if not guest.missing and len(guest.got) == HEAD_BYTES:
                kind, length = parse_head(guest.who, guest.got, HELLO_BYTES_MAX)
                if kind is not Kind.HELLO:
                    raise ReplicaError(f"it sends {kind.name} before it has said hello")
                guest.missing = length - 1
        self._admit(guest, guest.got[HEAD_BYTES:])
        self._guests.drop(guest)
        with contextlib.suppress(KeyError, ValueError):  # its thread may have closed it by now
            self._selector.unregister(guest.socket)

    # -- leaving

    def _refuse(self, guest: Guest, error: Exception) -> None:
        """Send the reason, and give the client a moment to read it."""
        hint = tls_hint(guest.got)
        self._notices.warning("refused", guest.host, from_=guest.who, reason=f"it {hint}" if hint else str(error))
        guest.leaving, guest.deadline = True, time.monotonic() + LEAVE_SECONDS
        try:
            guest.socket.send(frame_bytes(Kind.REFUSED, pack({"code": "failed", "why": str(error)[:1000]})))
            guest.socket.shutdown(socket.SHUT_WR)
            self._watch(guest, selectors.EVENT_READ)
        except OSError:
            self._drop(guest)

    def _drain(self, guest: Guest) -> None:
        data = guest.socket.recv(1 << 14)
        guest.left -= len(data)
        if not data or guest.left < 0:
            self._drop(guest)

    def _drop(self, guest: Guest) -> None:
        self._guests.drop(guest)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.socket)
        guest.socket.close()
