"""How far the log was synced: the file `append.synced`.

After every successful sync the appender writes here, in 56 bytes and without a sync, how far the segment is
known to be on stable storage. After a power loss the file may have an older mark. So a mark may be too low, and
never too high. It shows three things:

- A defect below the mark is damage to synced data, never a torn tail: recovery doesn't cut it.
- A file shorter than the mark has lost synced bytes. Nothing else could show that.
- Whether the log was closed, and in which boot of the machine it was written: if it wasn't closed before
  a reboot, records past the mark may be gone without a trace. Then appending continues in a new segment: no
  position is ever given to two records.

The file is locked while the log is open to append: a second appender is kept out even if somebody removes
`append.lock` meanwhile.

The file has two marks. Both are written and synced when the log is opened, one after the other; the second
is overwritten with every note, and may be lost or garbled by a crash. Of two marks that of the later
opening counts, and of one opening the higher. ::

    0     | "CLSY" 4 | version 1, u32 | opening u64 | segment u64 | offset u64 | boot 16 |
          | closed 0 or 1, u32 | CRC-32C u32 |
    4096  | the same |                                                                 all big-endian
    8192  | "CLTO" 4 | version 1, u32 | segment u64 | CRC-32C u32 |

The third part has the number of the segment from which on forelog wrote every
record. Times never go back in those: a
time is found by binary search. Segments of another program may have any times.
"""

from __future__ import annotations

import logging
import struct
from typing import NamedTuple

from forelog import kernel
from forelog.errors import LockTimeout
from forelog.files import File
from forelog.log.directory.end import boot_digest
from forelog.log.directory.place import Place, if_there, read_exactly

logger = logging.getLogger("forelog")

NAME = "append.synced"
_LAYOUT = struct.Struct(">4sIQQQ16sI")
_BYTES = _LAYOUT.size + 4
_FIRST, _SECOND = 0, 4096  # apart, so that no sector holds both
_OWN = 8192
_OWN_LAYOUT = struct.Struct(">4sIQ")
_DYING_SECONDS = 2.0  # a process that is killed lets go of append.lock a moment before it lets go of this
_OPENING_MAX, _OFFSET_MAX = 2**63 - 1, 2**62 - 1


class Mark(NamedTuple):
    """Everything before physical `offset` in `segment` was synced, during `boot`."""

    opening: int
    """How often the log had been opened to append."""
    segment: int
    """The segment's number."""
    offset: int
    """The physical offset in that segment."""
    boot: bytes
    """A digest of the boot's name."""
    closed: bool
    """Whether the log was closed in order."""

    def plausible(self, segment_max: int) -> bool:
        """Whether a log can have reached this place."""
        return self.opening <= _OPENING_MAX and self.segment <= segment_max and self.offset <= _OFFSET_MAX


def _encode(mark: Mark) -> bytes:
    body = _LAYOUT.pack(b"CLSY", 1, mark.opening, mark.segment, mark.offset, mark.boot, mark.closed)
    return body + kernel.crc32c(body).to_bytes(4, "big")


def _encode_own(segment: int) -> bytes:
    body = _OWN_LAYOUT.pack(b"CLTO", 1, segment)
    return body + kernel.crc32c(body).to_bytes(4, "big")


def _decode(data: bytes) -> Mark | None:
    if len(data) != _BYTES or int.from_bytes(data[-4:], "big") != kernel.crc32c(data[:-4]):
        return None
    magic, version, opening, segment, offset, boot, closed = _LAYOUT.unpack_from(data)
    return Mark(opening, segment, offset, boot, bool(closed)) if magic == b"CLSY" and version == 1 else None


def _read_marks(file: File, path: str, segment_max: int) -> list[Mark]:
    marks = []
    for place in (_FIRST, _SECOND):
        mark = _decode(read_exactly(file, _BYTES, place))
        if mark is not None and mark.plausible(segment_max):
            marks.append(mark)
        elif mark is not None:
            logger.error(
                "%s: the mark at byte %d is ignored, no log gets that far: opening %d, segment %d, offset %d",
                path,
                place,
                mark.opening,
                mark.segment,
                mark.offset,
            )
    return marks


def _latest(marks: list[Mark]) -> Mark | None:
    """The later of two marks. Of two equal ones the second is later, and has the boot."""
    return max(reversed(marks), key=lambda mark: (mark.opening, mark.segment, mark.offset), default=None)


def read_mark(directory: Place) -> Mark | None:
    """The valid mark of a log; None if it has none, as in logs that another program wrote."""
    path = f"{directory.path}/{NAME}"
    # Any error but a missing file is raised: damage must not pass for a torn tail because of it.
    with if_there(directory.files.open_read, path) as file:
        return None if file is None else _latest(_read_marks(file, path, directory.format.segment_number_max))


def read_own_from(directory: Place) -> int | None:
    """The segment from which on forelog wrote every record, in the order of time; None if that isn't known."""
    with if_there(directory.files.open_read, f"{directory.path}/{NAME}") as file:
        return None if file is None else _read_own_from(file)


def _read_own_from(file: File) -> int | None:
    data = read_exactly(file, _OWN_LAYOUT.size + 4, _OWN)
    if len(data) < _OWN_LAYOUT.size + 4 or int.from_bytes(data[-4:], "big") != kernel.crc32c(data[:-4]):
        return None
    magic, version, segment = _OWN_LAYOUT.unpack_from(data)
    return segment if (magic, version) == (b"CLTO", 1) else None


class Watermark:
    """The marks of a log that is being opened to append."""

    def __init__(self, directory: Place) -> None:
        files = directory.files
        self.boot = boot_digest(files.boot_id())
        self._directory = directory
        path = f"{directory.path}/{NAME}"
        try:
            self._lock = files.lock(path, exclusive=True, timeout=_DYING_SECONDS)
        except LockTimeout:
            raise LockTimeout(
                f"{directory.path} is open to append elsewhere, and its append.lock was removed: close it there "
                "first"
            ) from None
        try:
            self._file: File = files.open_update(path)
            try:
                self.found = _latest(_read_marks(self._file, path, directory.format.segment_number_max))
                self.own_from = _read_own_from(self._file)
            except BaseException:
                self._file.close()
                raise
        except BaseException:
            self._lock.release()
            raise
        self._opening = self.found.opening + 1 if self.found else 1

    def begin_new(self, *, own: bool) -> None:
        """Put the marks of a new log on disk, with one sync. `own` notes that forelog writes every record.

        There is nothing yet that a torn write could lose. The entry in the directory is durable once that of the
        first segment is: both are synced together, before anything is appended.
        """
        opened = _encode(Mark(self._opening, 0, 0, self.boot, False))
        for place in (_SECOND, _FIRST):
            self._file.write_at(opened, place)
        if own:
            self._file.write_at(_encode_own(0), _OWN)
        self._file.sync()
        if own:
            self.own_from = 0

    def begin(self, segment: int, offset: int) -> None:
        """Put marks on disk, before anything is appended.

        They keep the boot of the marks that were found: until the tail was examined, the files are as that boot
        left them.
        """
        boot = self.found.boot if self.found else self.boot
        opened = _encode(Mark(self._opening, segment, offset, boot, False))
        for place in (_SECOND, _FIRST):  # while one is written, which may garble it, the other one is there
            self._file.write_at(opened, place)
            self._file.sync()
        if self.found is None:
            self._directory.sync()

    def note(self, segment: int, offset: int, *, closed: bool = False) -> None:
        """Note that everything before `offset` has been synced."""
        self._file.write_at(_encode(Mark(self._opening, segment, offset, self.boot, closed)), _SECOND)

    def place(self) -> tuple[int, bytes, int]:
        """Where a frequent writer puts notes: a descriptor or -1, a mark as a template, and its offset in the
        file."""
        return self._file.descriptor(), _encode(Mark(self._opening, 0, 0, self.boot, False)), _SECOND

    def note_own_from(self, segment: int) -> None:
        """Note that forelog wrote every record from this segment on. The note is on disk when this returns."""
        self._file.write_at(_encode_own(segment), _OWN)
        self._file.sync()
        self.own_from = segment

    def close(self) -> None:
        self._file.close()
        self._lock.release()
