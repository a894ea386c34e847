"""A log's directory: which segments there are, and the names of the files beside them.

::

    orders.log/
      000000001.log            segments, in order of their numbers; gaps are fine
      000000001.67108991.idx   the index of a sealed segment (index.py)
      000000001.52428800.map   the index of a rewritten one, with the map of its positions
      000000002.log            the last segment is the one that is appended to
      append.lock read.lock    locks, always empty
      append.synced            how far the log was synced (watermark.py)
      append.end               where it ends for readers, while it is open to append (end.py)
      append.journal           a second copy of its end, while it is open, for faster syncs (journal.py)
      removed.ends             where removed segments ended (removed.py)
      000000002.torn           what recovery cut off, kept as evidence
"""

from __future__ import annotations

import contextlib
import copy
from bisect import bisect_right
from itertools import pairwise
from typing import Self

from forelog.errors import LockTimeout, LogNotFound, UnknownFormat
from forelog.files import File, Files, Lock
from forelog.formats import FORMATS, Format, named_format
from forelog.log.directory.end import read_end
from forelog.log.directory.index import index_name, map_name

APPEND_LOCK = "append.lock"
READ_LOCK = "read.lock"
_PROBES_MAX = 32


class Directory:
    """The files of one log."""

    def __init__(self, files: Files, path: str, fmt: Format) -> None:
        self.files = files
        self.path = path
        self.format = fmt
        self.ends_at_mark = True
        """Whether readers stop where the end mark says; recovery and verification look at everything."""
        self._listed: tuple[object, list[int]] | None = None
        """The last listing, and the number of the directory's state before it."""
        self._indexed: tuple[object, dict[int, int]] | None = None
        """The last listing of indexes, and the number of the directory's state before it."""

    def whole(self) -> Self:
        """This directory with everything in its files, also what is past the end mark."""
        other = copy.copy(self)
        other.ends_at_mark = False
        return other

    def names(self) -> list[str]:
        """All names in the directory."""
        try:
            return self.files.list_dir(self.path)
        except FileNotFoundError:
            raise LogNotFound(f"there is no log at {self.path}: an appender would create it") from None
        except NotADirectoryError:
            raise LogNotFound(f"{self.path} is a file: a log is a directory of segments") from None

    def check(self, *, to_append: bool = False) -> None:
        """Check that there is a log of this format. Raises LogNotFound if there is none, UnknownFormat if it is
        of another.

        An appender creates a log if there is none, but not where there is one of another format.
        """
        try:
            names = self.names()
        except LogNotFound:
            if to_append and self.files.stat(self.path) is None:
                return
            raise
        if any(self.format.segment_number(name) is not None for name in names):
            return
        other = segments_elsewhere(self.files, self.path, self.format) if set(names) - {READ_LOCK} else None
        if other is not None:
            raise UnknownFormat(
                f"{other[1]} is a log of the format {other[0].name!r}, and it was opened as one of "
                f"{self.format.name!r}: pass format={other[0].name!r}, or use Stream.open({self.path!r}), which "
                "finds out the format"
            )
        if not to_append and APPEND_LOCK not in names:
            raise LogNotFound(f"there is no log in the directory {self.path}: an appender would make one")

    def numbers(self) -> list[int]:
        """The numbers of the segments, ascending, without gaps that a listing makes.

        One listing may have a segment and lack an earlier one. Segments begin in ascending order. So when a
        listing ends, every segment before the last one in it exists, and a second listing has it. A name that
        only one of the two listings has is looked up by itself.
        """
        try:
            word = self.files.changed(self.path)
        except (FileNotFoundError, NotADirectoryError):
            word = None  # listing it raises what is wrong
        known = self._listed
        if word is not None and known is not None and known[0] == word:
            return list(known[1])
        numbers = self._list(known[1] if known is not None else [])
        self._listed = (word, numbers)
        return list(numbers)

    def _list(self, known: list[int]) -> list[int]:
        first, numbers = self._list_once(), list[int]()
        while not numbers:
            again = self._list_once()
            if not first and not again:
                return []
            last, sure = max(first, default=0), first & again
            unsure = {number for number in (first ^ again).union(known) - sure if number <= last}
            numbers = sorted(number for number in sure | unsure if number in sure or self.has(number))
            first = again  # all that the first one had may be gone by now
        if self.format.numbered_by_time:
            return numbers
        # A rename onto a name can hide it from both listings. Where little is missing it is cheap to look.
        gaps = [
            low + 1 + step for low, high in pairwise(numbers) for step in range(min(high - low - 1, _PROBES_MAX))
        ]
        return sorted([*numbers, *(number for number in gaps[-_PROBES_MAX:] if self.has(number))])

    def _list_once(self) -> set[int]:
        parse = self.format.segment_number
        return {number for name in self.names() if (number := parse(name)) is not None}

    def indexed_sizes(self) -> dict[int, int]:
        """For each segment that has or had an index or a map: the largest size of the segment that these are
        for."""
        known, word = self._indexed, self.files.changed(self.path)
        if known is not None and word is not None and known[0] == word:
            return known[1]
        stems: dict[str, int] = {}
        for name in self.names():
            if name.endswith((".idx", ".map")):
                stem, _, size = name[:-4].rpartition(".")
                if size.isdecimal():
                    stems[stem] = max(int(size), stems.get(stem, 0))
        parse = self.format.segment_number
        sizes = {
            number: size
            for stem, size in stems.items()
            if (number := parse(f"{stem}.log") or parse(stem)) is not None
        }
        self._indexed = (word, sizes)
        return sizes

    def last(self) -> int:
        """The number of the last segment; 0 if there is none."""
        numbers = self.numbers()
        return numbers[-1] if numbers else 0

    def has(self, number: int) -> bool:
        """Whether a segment is there now."""
        return self.files.stat(self.segment_path(number)) is not None

    def following(self, number: int) -> int | None:
        """The number of the segment after this one, also if that is already gone; None if there is none yet.

        Mostly the directory isn't listed: the next segment has the next number, unless one was left out, and
        the end mark has the number of the last.
        """
        known = [] if self._listed is None else self._listed[1]
        if known and number < known[-1]:
            return known[bisect_right(known, number)]
        by_time = self.format.numbered_by_time
        if not by_time and self.has(number + 1):
            return number + 1
        tail = read_end(self).segment if self.ends_at_mark else 0
        if tail and (tail == number or (tail == number + 1 and not by_time)):
            return None  # the last one, or one before a segment that has no name yet
        numbers = self.numbers()
        place = bisect_right(numbers, number)
        return numbers[place] if place < len(numbers) else None

    def segment_name(self, number: int) -> str:
        return self.format.segment_name(number)

    def segment_path(self, number: int) -> str:
        return f"{self.path}/{self.format.segment_name(number)}"

    def index_path(self, number: int, physical_bytes: int) -> str:
        return f"{self.path}/{index_name(self.format.segment_name(number), physical_bytes)}"

    def map_path(self, number: int, physical_bytes: int) -> str:
        return f"{self.path}/{map_name(self.format.segment_name(number), physical_bytes)}"

    def side_path(self, number: int, suffix: str) -> str:
        """The path of a file beside a segment: `000000007` with a suffix, such as `.torn`."""
        return f"{self.path}/{self.format.segment_name(number).removesuffix('.log')}{suffix}"

    def free_path(self, number: int, suffix: str) -> str:
        """A `side_path` that isn't taken: with `.2`, `.3` and so on if needed."""
        for attempt in range(1, 10_000):
            path = self.side_path(number, suffix if attempt == 1 else f"{suffix}.{attempt}")
            if self.files.stat(path) is None:
                break
        return path

    def owner(self, name: str) -> int | None:
        """The number of the segment that a file such as `000000007.torn` lies beside; None for any other file."""
        parts = name.split(".")
        for count in range(1, len(parts)):
            stem = ".".join(parts[:count])
            for segment_name in (f"{stem}.log", stem):
                number = self.format.segment_number(segment_name)
                if number is not None and name != segment_name:
                    return number
        return None

    def open_segment(self, number: int, *, append: bool = False) -> File:
        """Open a segment's file to read, or also to append."""
        path = self.segment_path(number)
        try:
            return self.files.open_append(path) if append else self.files.open_read(path)
        except IsADirectoryError:
            # Not passed over: its number would be given to a segment that can't be made.
            raise UnknownFormat(f"{path} is a directory with the name of a segment: move it away") from None

    def read_lock(self, *, exclusive: bool = False, timeout: float | None = None) -> Lock:
        """Take the lock that readers share and a cleaner holds alone; LockTimeout after `timeout` seconds."""
        return self.files.lock(f"{self.path}/{READ_LOCK}", exclusive=exclusive, timeout=timeout)

    def append_lock(self, *, timeout: float | None = None) -> Lock:
        """Take the lock that one appender holds; LockTimeout after `timeout` seconds."""
        return self.files.lock(f"{self.path}/{APPEND_LOCK}", exclusive=True, timeout=timeout)

    def segment_bytes(self, number: int) -> int | None:
        """The size of a segment's file; None if there is none."""
        found = self.files.stat(self.segment_path(number))
        return None if found is None else found[0]

    def make(self) -> None:
        """Create the directory, durably, and the file that readers lock, because readers of another user
        couldn't create it."""
        self.files.make_dir(self.path)
        with contextlib.suppress(LockTimeout):
            self.read_lock(timeout=0).release()

    def sync(self) -> None:
        self.files.sync_dir(self.path)


def segments_elsewhere(files: Files, path: str, fmt: Format) -> tuple[Format, str] | None:
    """Another format that has segments here, and the path where they are: some formats have a folder for them."""
    for name in FORMATS:
        if name == fmt.name:
            continue
        other = named_format(name)
        for folder in dict.fromkeys((path, f"{path}/{other.folder}".rstrip("/"))):
            try:
                if Directory(files, folder, other).numbers():
                    return other, folder
            except LogNotFound:
                continue
    return None
