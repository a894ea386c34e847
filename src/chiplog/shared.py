"""Words in a file that every process sees at once, through memory that they share."""

from __future__ import annotations

import errno
import mmap
import os

__all__ = ["OSShared"]

_WORD_BYTES = 8


class OSShared:
    """Words of a file that is mapped into memory."""

    def __init__(self, path: str, count: int) -> None:
        size = count * _WORD_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
