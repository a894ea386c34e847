"""The next segment, open before it is needed.

To start a segment, the one before has to be synced, a file created, its header and its directory entry
synced: milliseconds in which nobody appends. With a spare, appending continues at once in a file that is open
already, and a thread does the rest::

    000000007.log     000000007.log          000000007.log  synced, index written
    append.spare      append.spare           000000008.log  = the spare, renamed; appending goes on in it
                      appended to            append.spare   a new one
    ------------------------------------------------------------------------------------> time
            swap ^            in the background ^

The spare gets its segment's name only when everything before it is on stable storage. So what is true
without a spare stays true with one: of the segments in a directory only the last can be torn, whatever
survives a crash is what was written first, and a reader that finds a next segment knows that the one
before is complete.

A crash between the two steps leaves records in `append.spare`, none of them acknowledged as synced. If the
machine wasn't restarted, opening the log makes them the next segment. If it was, the end of the segment before
may be lost. Then they are kept as evidence, and their positions are never given to others.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from forelog.files import File, write_all
from forelog.log.directory.directory import Directory

logger = logging.getLogger("forelog")

SPARE = "append.spare"


def spare_path(directory: Directory) -> str:
    return f"{directory.path}/{SPARE}"


class Latch:
    """An event that stays usable if an interrupt hits the thread that waits for it or clears it."""

    def __init__(self) -> None:
        self.is_set = True
        self._lock = threading.Lock()

    def clear(self) -> None:
        self.is_set = False
        self._lock.acquire()

    def set(self) -> None:
        self.is_set = True
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            if not self.is_set:
                with self._lock:
                    pass
            return True
        end = time.monotonic() + timeout
        while not self.is_set and time.monotonic() < end:
            time.sleep(min(0.001, timeout))
        return self.is_set


class Spare:
    """An open, empty segment without a name, and the thread that makes it and gives it one."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file = self._make()
        self._work: Callable[[], None] | None = None
        self._due: SimpleQueue[None] = SimpleQueue()
        self._named = Latch()
        self._idle = Latch()
        self._thread = self._start()

    def _start(self) -> threading.Thread | None:
        """Begin to work, on a thread."""
        thread = threading.Thread(target=self._serve, name="forelog-spare", daemon=True)
        thread.start()
        return thread

    def take(self) -> File | None:
        """Wait for the work for the last spare, and return the open file, which is now the caller's; None if
        there is none."""
        self._idle.wait()
        file, self._file = self._file, None
        return file

    def begin(self, work: Callable[[], None]) -> None:
        """Start `work`, which seals the old segment and names the one that was taken. Then make the next spare."""
        self._named.clear()
        self._idle.clear()
        self._work = work
        self._due.put(None)

    def give_up(self) -> None:
        """Give up a swap that was interrupted, so that nobody waits for it."""
        self._named.set()
        self._idle.set()

    def renew(self) -> None:
        """Try again to make a spare, after that failed."""
        self.begin(lambda: None)

    def wait_named(self, timeout: float | None = None) -> bool:
        """Wait until the segment that is appended to has its name, durably, or that has failed."""
        return self._named.wait(timeout)

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until the work for the last spare is done."""
        return self._idle.wait(timeout)

    @property
    def named(self) -> bool:
        return self._named.is_set

    def close(self) -> None:
        """Finish the work in progress, and leave no spare behind."""
        self._idle.wait()
        self.abandon()
        if self._thread is not None:
            self._thread.join()
        if self._file is not None:
            self._file.close()
            self._file = None
            try:
                self._directory.files.remove(spare_path(self._directory))
            except OSError as error:
                logger.warning("%s: an empty spare stays behind: %s", self._directory.path, error)

    def abandon(self) -> None:
        """End the thread, and leave the files as they are."""
        self._work = None
        self._due.put(None)

    def _serve(self) -> None:
        while True:
            self._due.get()
            if self._work is None:
                return
            try:
                self._work()
                self._named.set()
                self._file = self._make()
            except BaseException:  # the work reports errors itself: this is a defect
                logger.exception("%s: sealing a segment was interrupted", self._directory.path)
            finally:  # whatever happened, nobody may wait for ever
                self._named.set()
                self._idle.set()

    def _make(self) -> File | None:
        """Create a spare; without one, the next segment is started the slow way."""
        try:
            if self._directory.files.stat(spare_path(self._directory)) is not None:
                return None  # its name couldn't be given to it: it has records
            return self._create()
        except OSError as error:
            logger.warning("%s: no spare segment, the next roll will take longer: %s", self._directory.path, error)
            return None

    def _create(self) -> File:
        file = self._directory.files.open_append(spare_path(self._directory))
        try:
            write_all(file, self._directory.format.header())
            file.sync()
            # By this entry opening knows that positions in the next segment may have been handed out.
            self._directory.sync()
        except BaseException:
            file.close()
            self._directory.files.remove(spare_path(self._directory))
            raise
        return file
