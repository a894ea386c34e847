"""Targets that a log is shipped to: a directory here, or a replica server. store/target.py has a third."""

from __future__ import annotations

import ssl

from forelog.copies.claim import Claim, Known
from forelog.copies.shipping import Chunk, Owner
from forelog.copies.slots import Slots
from forelog.copies.snapshot import Resume, Snapshot
from forelog.copies.transfers import Transfer
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
from forelog.files import Files
from forelog.log.position import Position


class DirectoryTarget:
    """A directory on this machine, also of a mounted file system."""

    def __init__(self, path: str, owner: Owner, *, synced: bool, files: Files | None = None) -> None:
        self._path = path
        self._files = files
        self._owner = owner
        self._synced = synced
        self._slots: Slots | None = None
        self.transfer = owner.transfers.new(path)
        self._claim = Claim(owner, path, self.transfer)

    def connect(self) -> Resume | None:
        try:
            slots = self._slots = Slots(self._path, self._files)
        except LockTimeout:
            raise ReplicaError(
                f"{self._path} is in use: another primary writes its copy there, or the copy is open as a log"
            ) from None
        slots.adopt(self._owner.identity, continues=self._claim.check(slots.known()))
        return slots.growing.resume()

    def restart(self, position: Position) -> None:  # noqa: ARG002
        self._open.restart()

    def send(self, chunk: Chunk) -> None:
        self._open.growing.write(chunk.position, chunk.data)

    def flush(self) -> Resume:
        return self._open.flush(synced=self._synced)

    def commit(self, snapshot: Snapshot) -> None:
        self._open.commit(snapshot)

    def close(self) -> None:
        if self._slots is not None:
            slots, self._slots = self._slots, None
            slots.close()

    @property
    def _open(self) -> Slots:
        if self._slots is None:
            raise ReplicaError(f"{self._path}: closed")
        return self._slots


class LinkTarget:
    """The other end of an open connection."""

    def __init__(self, link: Link | None, resume: Resume | None, *, synced: bool, where: str = "") -> None:
        self._link = link
        self._resume = resume
        self._synced = synced
        self._where = where
        self.transfer = Transfer()

    @property
    def _open(self) -> Link:
        if self._link is None:
            raise ReplicaError(f"{self._where}: not connected")
        return self._link

    def connect(self) -> Resume | None:
        return self._resume

    def restart(self, position: Position) -> None:  # noqa: ARG002
        self._open.send(Kind.RESTART)

    def send(self, chunk: Chunk) -> None:
        room = FRAME_BYTES_MAX - 64
        if len(chunk.data) > room:
            raise BadFrame(f"the record at {chunk.position} has more than {room:,} bytes, the most of a frame")
        self._open.send_data(chunk.position, chunk.data)

    def flush(self) -> Resume:
        self._open.send(Kind.FLUSH, bytes((self._synced,)))
        return parse_ack(self._open.expect(Kind.ACK))

    def commit(self, snapshot: Snapshot) -> None:
        self._open.send_committed(snapshot)
        self._open.expect(Kind.ACK)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


class ServerTarget(LinkTarget):
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
        super().__init__(None, None, synced=synced, where=str(address))
        self._address = address
        self._owner = owner
        self._token = as_token(token)
        self._tls = as_tls(tls)
        self.transfer = owner.transfers.new(self._where)
        self._claim = Claim(owner, self._where, self.transfer)

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
        self._link = link
        return resume

    def _make_claims(self, link: Link) -> Fields:
        """Claim to continue the copy, as often as the server asks. Returns its welcome."""
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
