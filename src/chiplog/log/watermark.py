"""How far the log was synced: the file `append.synced`.

After every successful sync the appender notes here, in 48 bytes and without a sync of its own, up to
where the segment is known to be on stable storage. It is a hint, and only ever too low: after a power
loss the note itself may be an older one, or gone. What it is good for:

- A defect below the mark is damage to synced data, never a torn tail: recovery doesn't cut it.
- A file shorter than the mark has lost synced bytes, which nothing else could tell.
- The mark at the very end of the last segment means that the log was closed cleanly.
- The boot it was written in: after a reboot, bytes past the mark may be gone although nothing is torn, so
  that appending goes on in a new segment and no position is ever given to two records.

::

    | "CLSY" 4 | version 1, u32 | segment u64 | offset u64 | boot 16 | 0 u32 | CRC-32C u32 |     big-endian
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


def read_mark(files: Files, directory: str) -> Mark | None:
    """The mark of a log; None if there is none that can be trusted."""
    try:
        file = files.open_read(f"{directory}/{NAME}")
    except OSError:
        return None
    try:
        buffer = bytearray(_BYTES)
        count = file.read_into(memoryview(buffer), 0)
    except OSError:
        return None
    finally:
        file.close()
    return _decode(bytes(buffer[:count]))


class Watermark:
    """The mark of a log that is open to append."""

    def __init__(self, files: Files, directory: str) -> None:
        self.boot = boot_digest(files.boot_id())
        self.found = read_mark(files, directory)
        self._file: File = files.open_append(f"{directory}/{NAME}")
        if self.found is None:
            # There has to be a mark on disk before there is anything that it could be too low for.
            self._file.truncate(0)
            data = _encode(Mark(0, 0, self.boot))
            if self._file.write(data) != len(data):
                raise OSError(f"{directory}/{NAME}: short write")
            self._file.sync()
            files.sync_dir(directory)

    def note(self, segment: int, offset: int) -> None:
        """Everything before `offset` has been synced."""
        self._file.write_at(_encode(Mark(segment, offset, self.boot)), 0)

    def close(self) -> None:
        self._file.close()
