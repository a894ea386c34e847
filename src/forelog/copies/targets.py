"""Where a log can be shipped to: a directory, a replica server, or whatever fsspec reaches."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from forelog.copies.claim import Claim, Known
from forelog.copies.mirror import Resume, Snapshot
from forelog.copies.sent import Sent
from forelog.copies.shipping import Chunk, Owner, Target
from forelog.copies.slots import SLOTS, Copies, refuse_a_log
from forelog.copies.wire import (
    FRAME_BYTES_MAX,
    VERSION,
    Address,
    Fields,
    Kind,
    Link,
    as_tls,
    as_token,
    connect,
    identity_fields,
    need_msgspec,
    parse_ack,
)
from forelog.errors import BadFrame, LockTimeout, ReplicaError
from forelog.files import Files, OSFiles, disk
from forelog.log.position import Position

__all__ = ["DirectoryTarget", "LinkTarget", "ReplicaTarget", "make_target", "parse_address"]

PORT = 7070
_LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class DirectoryTarget:
    """A directory, here or mounted here."""

    def __init__(self, path: str, owner: Owner, *, synced: bool, files: Files | None = None) -> None:
        self._path = path
        self._files = files
        self._owner = owner
        self._synced = synced
        self._copies: Copies | None = None
        self.sent = owner.memory.new(path)
        self._claim = Claim(owner, path, self.sent)

    def connect(self) -> Resume | None:
        try:
            copies = self._copies = Copies(self._path, self._files)
        except LockTimeout:
            raise ReplicaError(
                f"{self._path} is in use: another primary keeps its copy there, or the copy is open as a log"
            ) from None
        copies.adopt(self._owner.identity, continues=self._claim.check(copies.known()))
        return copies.growing.resume()

    def restart(self, position: Position) -> None:  # noqa: ARG002
        self._open.restart()

    def send(self, chunk: Chunk) -> None:
        self._open.growing.write(chunk.position, chunk.data)

    def flush(self) -> Resume:
        return self._open.flush(synced=self._synced)

    def commit(self, snapshot: Snapshot) -> None:
        self._open.commit(snapshot)

    def close(self) -> None:
        if self._copies is not None:
            copies, self._copies = self._copies, None
            copies.close()

    @property
    def _open(self) -> Copies:
        if self._copies is None:
            raise ReplicaError(f"{self._path}: closed")
        return self._copies


class LinkTarget:
    """The other end of a connection that is open."""

    def __init__(self, link: Link, resume: Resume | None, *, synced: bool) -> None:
        self._link = link
        self._resume = resume
        self._synced = synced
        self.sent = Sent()

    def connect(self) -> Resume | None:
        return self._resume

    def restart(self, position: Position) -> None:  # noqa: ARG002
        self._link.send(Kind.RESTART)

    def send(self, chunk: Chunk) -> None:
        room = FRAME_BYTES_MAX - 64
        if len(chunk.data) > room:
            raise BadFrame(f"a record at {chunk.position} has more than the {room:,} bytes that a frame takes")
        self._link.send_data(chunk.position, chunk.data)

    def flush(self) -> Resume:
        self._link.send(Kind.FLUSH, bytes((self._synced,)))
        return parse_ack(self._link.expect(Kind.ACK))

    def commit(self, snapshot: Snapshot) -> None:
        self._link.send_committed(snapshot)
        self._link.expect(Kind.ACK)

    def close(self) -> None:
        self._link.close()


class ReplicaTarget:
    """A replica server."""

    def __init__(
        self,
        address: Address,
        owner: Owner,
        *,
        synced: bool,
        token: str | bytes | None,
        tls: ssl.SSLContext | bool | None,
    ) -> None:
        need_msgspec()
        self._address = address
        self._owner = owner
        self._synced = synced
        self._token = as_token(token)
        self._tls = as_tls(tls)
        self._target: LinkTarget | None = None
        self.sent = owner.memory.new(str(address))
        self._claim = Claim(owner, str(address), self.sent)

    def connect(self) -> Resume | None:
        link = connect(self._address, self._tls)
        try:
            link.send_fields(
                Kind.HELLO,
                version=VERSION,
                role="primary",
                log=self._address.log,
                token=self._token or "",
                **identity_fields(self._owner.identity),
            )
            resume = self._make_claims(link).resume()
        except BaseException:
            link.close()
            raise
        self._target = LinkTarget(link, resume, synced=self._synced)
        return resume

    def _make_claims(self, link: Link) -> Fields:
        """Say that this log continues the copy, as often as the replica asks; its welcome."""
        while (frame := link.expect_any(Kind.KNOWN, Kind.WELCOME)).kind is Kind.KNOWN:
            said = Fields(link.who, frame.body)
            known = Known(said.identity(), said.resume(), said.get("content_term", 0))
            try:
                continues = self._claim.check(known)
            except ReplicaError as error:
                link.send_fields(Kind.CLAIM, continues=False, refused=str(error)[:1000])
                raise
            link.send_fields(Kind.CLAIM, continues=continues)
        return Fields(link.who, frame.body)

    def restart(self, position: Position) -> None:
        self._open.restart(position)

    def send(self, chunk: Chunk) -> None:
        self._open.send(chunk)

    def flush(self) -> Resume:
        return self._open.flush()

    def commit(self, snapshot: Snapshot) -> None:
        self._open.commit(snapshot)

    def close(self) -> None:
        if self._target is not None:
            self._target.close()

    @property
    def _open(self) -> LinkTarget:
        if self._target is None:
            raise ReplicaError(f"{self._address}: not connected")
        return self._target


def parse_address(where: str) -> Address:
    """`replica://HOST:PORT/LOG`."""
    parts = urlsplit(where)
    log = unquote(parts.path.strip("/"))
    try:
        port = parts.port or PORT
    except ValueError:
        port = 0
    if parts.scheme != "replica" or not parts.hostname or not 0 < port < 65536 or not is_log_name(log):
        raise ValueError(f"{where!r} is no replica: expected replica://HOST:PORT/LOG, where LOG is a plain name")
    return Address(parts.hostname, port, log)


def is_log_name(name: str) -> bool:
    """Whether a log may be called that on a replica server, where it is a directory."""
    return _LOG_NAME.fullmatch(name) is not None


def make_target(
    where: str,
    owner: Owner,
    *,
    synced: bool,
    token: str | bytes | None = None,
    tls: ssl.SSLContext | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    mode: int | None = None,
) -> Target:
    """The target that an address means."""
    local = "://" not in where or urlsplit(where).scheme == "file"
    if mode is not None and not local:
        raise ValueError(f"{where}: mode is for directories")
    scheme = urlsplit(where).scheme if "://" in where else ""
    if scheme == "replica":
        return ReplicaTarget(parse_address(where), owner, synced=synced, token=token, tls=tls)
    if token is not None or tls:
        raise ValueError(f"{where}: token and tls are for replica://")
    if scheme in ("", "file"):
        path = unquote(urlsplit(where).path) if scheme else where
        _check_directory(path, owner.path)
        return DirectoryTarget(path, owner, synced=synced, files=disk(None, mode))
    from forelog.copies.store.remote import RemoteTarget  # only who uses it needs fsspec

    return RemoteTarget(where, owner, storage_options)


def _check_directory(path: str, log: str) -> None:
    """Raise if no copy may ever be kept in a directory. What can change, as a disk that is away, is no error."""
    if not path:
        raise ValueError("a destination is a directory or a URL, and this one is empty: say where the copy goes")
    place, own = os.path.realpath(path), os.path.realpath(log)
    if own == place or own in [f"{place}/{slot}" for slot in SLOTS]:
        raise ValueError(f"{path} is where the log itself is: choose another directory for the copy")
    if place.startswith(f"{own}/"):
        raise ValueError(f"{path} is inside of the log itself: choose another directory for the copy")
    if os.path.isfile(place):
        raise ValueError(f"{path} is a file: a copy is kept in a directory")
    refuse_a_log(path, OSFiles())
