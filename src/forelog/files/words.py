"""Words in a file that every process sees at once, through memory that they share."""

from __future__ import annotations

import errno
import mmap
import os

from forelog.files.modes import PRIVATE, open_or_create

_WORD_BYTES = 8


class OSShared:
    """Words of a file that is mapped into memory."""

    def __init__(self, path: str, count: int, mode: int = PRIVATE) -> None:
        size = count * _WORD_BYTES
        fd = open_or_create(path, os.O_RDWR, mode)
        try:
            missing = size - os.fstat(fd).st_size
            # Written, and not left to be filled in by the filesystem: on a full disk that would be a signal.
            if missing > 0 and os.pwrite(fd, bytes(missing), size - missing) != missing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._words = memoryview(self._map).cast("Q")

    def store(self, index: int, value: int) -> None:
        self._words[index] = value

    def words(self) -> memoryview | None:
        return self._words

    def close(self) -> None:
        self._words.release()
        self._map.close()
