"""How far the log was synced: the file `append.synced`.

After every successful sync the appender notes here, in 48 bytes and without a sync of its own, up to
where the segment is known to be on stable storage. It is a hint, and only ever too low: after a power
loss the note itself may be an older one. What it is good for:

- A defect below the mark is damage to synced data, never a torn tail: recovery doesn't cut it.
- A file shorter than the mark has lost synced bytes, which nothing else could tell.
- The mark at the very end of the last segment means that the log was closed cleanly.
- The boot it was written in: after a reboot, bytes past the mark may be gone although nothing is torn, so
  that appending goes on in a new segment and no position is ever given to two records.

The file has two marks. The first is written and synced when the log is opened, the second is overwritten
with every note; should a crash garble that one, the first still tells that this log has marks at all. ::

    0     | "CLSY" 4 | version 1, u32 | segment u64 | offset u64 | boot 16 | 0 u32 | CRC-32C u32 |
    4096  | the same |                                                                 all big-endian
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from chiplog import kernel
from chiplog.files import File, Files

NAME = "append.synced"
_LAYOUT = struct.Struct(">4sIQQ16sI")
_BYTES = _LAYOUT.size + 4
_FIRST, _SECOND = 0, 4096  # apart, so that no sector holds both


class Mark(NamedTuple):
    """Everything before physical `offset` in `segment` was synced, during `boot`."""

    segment: int
    offset: int
    boot: bytes


def boot_digest(boot_id: str) -> bytes:
    """A boot's name, in sixteen bytes."""
    return hashlib.blake2b(boot_id.encode(), digest_size=16).digest()


def _encode(mark: Mark) -> bytes:
    body = _LAYOUT.pack(b"CLSY", 1, mark.segment, mark.offset, mark.boot, 0)
    return body + kernel.active.crc32c(body).to_bytes(4, "big")


def _decode(data: bytes) -> Mark | None:
    if len(data) != _BYTES or int.from_bytes(data[-4:], "big") != kernel.active.crc32c(data[:-4]):
        return None
    magic, version, segment, offset, boot, _ = _LAYOUT.unpack_from(data)
    return Mark(segment, offset, boot) if magic == b"CLSY" and version == 1 else None


def _read_marks(file: File) -> list[Mark]:
    marks = []
    for place in (_FIRST, _SECOND):
        buffer = bytearray(_BYTES)
        count = file.read_into(memoryview(buffer), place)
        if (mark := _decode(bytes(buffer[:count]))) is not None:
            marks.append(mark)
    return marks


def read_mark(files: Files, directory: str) -> Mark | None:
    """The highest mark of a log; None if it has none, as one that another program wrote."""
    try:
        file = files.open_read(f"{directory}/{NAME}")
    except OSError:
        return None
    try:
        return max(_read_marks(file), default=None)
    except OSError:
        return None
    finally:
        file.close()


class Watermark:
    """The marks of a log that is open to append."""

    def __init__(self, files: Files, directory: str) -> None:
        self.boot = boot_digest(files.boot_id())
        path = f"{directory}/{NAME}"
        existed = files.stat(path) is not None
        self._file: File = files.open_update(path)
        try:
            self.found = max(_read_marks(self._file), default=None)
            # There has to be a mark on disk before there is anything that it could be too low for; and the
            # second one has to be there before the first is touched.
            self._file.sync()
            self._file.write_at(_encode(self.found or Mark(0, 0, self.boot)), _FIRST)
            self._file.sync()
            if not existed:
                files.sync_dir(directory)
        except BaseException:
            self._file.close()
            raise

    def note(self, segment: int, offset: int) -> None:
        """Everything before `offset` has been synced."""
        self._file.write_at(_encode(Mark(segment, offset, self.boot)), _SECOND)

    def close(self) -> None:
        self._file.close()
