"""What a writer writes to: a log, or a state log that is copied.

Both do the same for the writer: `write` appends records together and returns their positions, `make_room` makes
some on a filesystem that is full. Whatever becomes shorter is noted in the ledger.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from forelog import LockTimeout, Position, Record, Stream
from forelog.copies.destinations import Ack
from forelog.errors import AppenderFailed, ForelogError, NotReplicated
from forelog.files import File, Files, OSFiles
from forelog.state import Enumeration, StateLog
from tests.readers.process import wait_until
from tests.readers.records import CHAFF, read_reached

OPEN_SECONDS = CATCH_UP_SECONDS = 20.0
CLEAN_SECONDS = 0.2
CHAFF_PAUSE_SECONDS = 0.001
BALLAST_SHARE = 0.9  # of a small filesystem, that a state log gets bit by bit


class Place(Protocol):
    """Where records go."""

    def open(self) -> None:
        """To append. Raises whatever the log raises."""

    def write(self, payloads: Sequence[bytes]) -> list[Position | None]:
        """Append records together."""

    def make_room(self, share: float) -> None:
        """On a full filesystem. `share` is how much of the writer's time has passed."""

    def pause(self) -> None:
        """Nothing more is written; return when all that goes on beside it has come to rest."""

    def close(self) -> None:
        """In order."""


def opened(place: Place) -> None:
    """Open a place, also on a filesystem that has no room at the moment."""
    deadline = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            place.open()
            return
        except (OSError, ForelogError):
            if time.monotonic() > deadline:
                raise
            place.make_room(1.0)
            time.sleep(0.02)


class LogPlace:
    """A log. Room is made by cleaning away what its reader has read."""

    def __init__(self, path: str, *, segment_bytes: int, reached: Path, files: Files) -> None:
        self._stream = Stream(path, files=files)
        self._segment_bytes = segment_bytes
        self._reached = reached

    def open(self) -> None:
        self._appender = self._stream.appender(segment_bytes=self._segment_bytes, timeout=OPEN_SECONDS)

    def write(self, payloads: Sequence[bytes]) -> list[Position | None]:
        if len(payloads) == 1:
            return [self._appender.append(payloads[0])]
        return list(self._appender.append_many(payloads))

    def make_room(self, share: float) -> None:
        reached = read_reached(self._reached)
        if reached is None:
            return

        def was_read(_: str, record: Record) -> bool:
            return record.position.segment < reached.segment

        with contextlib.suppress(LockTimeout, OSError), self._stream.cleaner(timeout=CLEAN_SECONDS) as cleaner:
            cleaner.clean(was_read)

    def pause(self) -> None:
        """There is nothing beside it."""

    def close(self) -> None:
        with contextlib.suppress(AppenderFailed):  # which the writer knows
            self._appender.close()


class StatePlace:
    """A state log with copies. With `ack="synced"` each of them has an update before it is acknowledged.

    Another thread updates chaff all the time, so that the copies are kept up also while the writer is in the
    middle of an update. The log never rotates, because the copies are compared with all that was ever written. On
    a small filesystem a file takes most of the room at first, and leaves it bit by bit.
    """

    def __init__(self, path: str, *, segment_bytes: int, copies: Sequence[str], ack: Ack, files: Files) -> None:
        self._path = path
        self._ack = ack
        self._segment_bytes = segment_bytes
        self._copies = copies
        self._files = files
        self._ballast: Ballast | None = None
        self._ended = threading.Event()
        self._chatting = threading.Thread(target=self._chat, name="chaff", daemon=True)

    def open(self) -> None:
        self._log = StateLog(
            self._path,
            replay=lambda _: None,
            enumerate=_nothing,
            codec=Plain(),
            rotate_bytes=1 << 40,
            segment_bytes=self._segment_bytes,
            timeout=OPEN_SECONDS,
            files=self._files,
        )
        self._log.open()
        for where in self._copies:
            self._log.add_destination(where, ack=self._ack, rotate=False)
        if not self._chatting.is_alive():
            self._chatting.start()

    def write(self, payloads: Sequence[bytes]) -> list[Position | None]:
        try:
            if len(payloads) == 1:
                return [self._log.update(payloads[0])]
            return list(self._log.update_many(payloads))
        except NotReplicated as error:
            if error.position is None:
                raise
            return [None] * len(payloads)  # the log has them, and so will the copies in the end

    def fill(self) -> None:
        """Leave little room."""
        self._ballast = Ballast(Path(self._path).parent / "ballast")

    def make_room(self, share: float) -> None:
        if self._ballast is not None:
            self._ballast.leave(1.0 - share)

    def pause(self) -> None:
        """Return when every copy has everything."""
        self._ended.set()
        self._chatting.join()
        wait_until(self._caught_up, CATCH_UP_SECONDS)

    def _chat(self) -> None:
        while not self._ended.wait(CHAFF_PAUSE_SECONDS):
            with contextlib.suppress(ForelogError):  # the writer tells of what is wrong
                self._log.update(CHAFF)

    def _caught_up(self) -> bool:
        health = self._log.health()
        return all(one.state == "live" and one.lag_bytes == 0 for one in health.destinations.values())

    def close(self) -> None:
        with contextlib.suppress(AppenderFailed):
            self._log.close()


class Ballast:
    """A file that takes most of a filesystem's room."""

    def __init__(self, path: Path) -> None:
        room = os.statvfs(path.parent)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = int(room.f_bavail * room.f_frsize * BALLAST_SHARE)
        os.posix_fallocate(self._fd, 0, self._size)

    def leave(self, share: float) -> None:
        """Keep this share of what it took at first."""
        os.ftruncate(self._fd, int(self._size * max(share, 0.0)))


class Plain:
    """A codec of events that are bytes already."""

    def encode(self, event: Any) -> bytes:
        return bytes(event)

    def decode(self, data: bytes) -> Any:
        return data


def _nothing(_: Enumeration) -> None:
    """There is no state but the log."""


class NotingFiles(OSFiles):
    """The operating system's files. A segment that is made shorter is noted.

    Without `syncs` nothing is synced: no power is lost here, and a writer rolls ten times as often. A cut takes
    `cut_seconds`, as on a slow disk: what is cut off is there for so long, for others to see.
    """

    def __init__(self, note: Callable[[str], None], *, syncs: bool, cut_seconds: float) -> None:
        self._note = note
        self._syncs = syncs
        self._cut_seconds = cut_seconds

    def open_append(self, path: str) -> File:
        return self._noting(super().open_append(path), path)

    def open_update(self, path: str) -> File:
        return self._noting(super().open_update(path), path)

    def sync_dir(self, path: str) -> None:
        if self._syncs:
            super().sync_dir(path)

    def _noting(self, file: File, path: str) -> File:
        name = os.path.basename(path)
        return NotingFile(file, name, self._note, self._syncs, self._cut_seconds)


class NotingFile:
    """A file whose truncations are noted, if it is a segment."""

    def __init__(
        self, file: File, name: str, note: Callable[[str], None], syncs: bool, cut_seconds: float
    ) -> None:
        self._file = file
        self._name = name
        self._is_segment = name.endswith(".log") or name.startswith("append.")  # where new ones begin
        self._note = note
        self._syncs = syncs
        self._cut_seconds = cut_seconds

    def sync(self) -> None:
        if self._syncs:
            self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def truncate(self, size: int) -> None:
        if self._is_segment and 0 < size < self._file.size():  # to nothing only what was never used
            self._note(f"cut {self._name}")
            time.sleep(self._cut_seconds)
        self._file.truncate(size)


def copies_from(text: str) -> list[str]:
    """Where copies go, from a word on a command line."""
    found: list[str] = json.loads(text)
    return found
