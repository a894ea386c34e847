"""Rules for what a cleaner drops, which run no Python per record.

A function `(path, record) -> bool` can decide anything, at the speed of Python. These rules decide the
common cases in the kernel, a block of records at a time, and where possible from a segment's index alone:

- `OlderThan("24h")`: records older than that
- `KeepLast(byte_count=10 << 30)`, `KeepLast(segments=100)`: whole segments beyond the newest ones
- `KeepLatest(key=slice(0, 16))`, `KeepLatest(until=b"=")`: all but the newest record of each key
"""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Protocol

from forelog import kernel
from forelog.bounds import check_whole
from forelog.formats import Block
from forelog.log.directory.directory import Directory
from forelog.log.directory.index import SegmentIndex
from forelog.times import in_column, parse_duration


class Rule(Protocol):
    """Decides what to keep. It is asked about each segment, and about each block of a segment, newest first."""

    needs_last: bool
    """Whether the rule must see the last segment, although that is never cleaned."""

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:
        """Prepare for a run, with the whole log. Ages count back from `now_ns`."""

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:
        """Decide about a segment. True keeps all of it, False drops all of it, None means that it must be read."""

    def keep(self, block: Block) -> bytearray:
        """Return a mask with 1 for each row of the block to keep."""


class OlderThan(Rule):
    """Drops records older than an age, given as `"24h"` or a timedelta, or than a time in ns.

    An age counts back from the start of each run, by the stream's clock. So a rule can be used again.
    """

    needs_last = False

    def __init__(self, age: str | timedelta | None = None, *, time_ns: int | None = None) -> None:
        if (age is None) == (time_ns is None):
            raise TypeError("OlderThan takes an age or time_ns=, one of them")
        self._age_ns: int | None = None
        if age is not None:
            if isinstance(age, timedelta):
                self._age_ns = (age // timedelta(microseconds=1)) * 1000
            else:
                self._age_ns = parse_duration(age)
            if self._age_ns < 0:
                raise ValueError(f"{age} isn't an age: expected one such as 24h")
        self._time_ns = in_column(operator.index(time_ns or 0))

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:  # noqa: ARG002
        if self._age_ns is not None:
            self._time_ns = in_column(now_ns - self._age_ns)

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        if index is None or not index.records:
            return None
        if index.last_time < self._time_ns:
            return False
        return True if index.first_time >= self._time_ns else None

    def keep(self, block: Block) -> bytearray:
        mask: bytearray = kernel.keep_since(block.scan.times, self._time_ns)
        return mask


class KeepLast(Rule):
    """Drops whole segments beyond the newest `segments`, or beyond the newest that hold `byte_count` bytes.

    At least that much stays, because the segment in which the limit falls is kept.
    """

    needs_last = False

    def __init__(self, *, byte_count: int | None = None, segments: int | None = None) -> None:
        if (byte_count is None) == (segments is None):
            raise TypeError("KeepLast takes byte_count= or segments=, one of them")
        check_whole("byte_count", byte_count, least=0, or_none="for segments")
        check_whole("segments", segments, least=0, or_none="for byte_count")
        self.byte_count = byte_count
        self.segments = segments
        self._kept: set[int] = set()

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:  # noqa: ARG002
        self._kept = set()
        total = 0
        for number in reversed(numbers):
            if self.segments is not None:
                enough = len(self._kept) >= self.segments
            else:
                enough = total >= (self.byte_count or 0)
            if enough:
                return
            total += directory.segment_bytes(number) or 0
            self._kept.add(number)

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        return number in self._kept

    def keep(self, block: Block) -> bytearray:
        return bytearray(b"\1") * len(block.scan.offsets)


class KeepLatest(Rule):
    """Drops every record whose key occurs again later.

    The key is a slice of the payload, or what comes before the first byte `until` (all of it, if that
    byte isn't there), or both: what comes before `until` within the slice. A record that ends before its
    key would begin has no key, and stays.
    """

    needs_last = True

    def __init__(self, *, key: slice | None = None, until: bytes | None = None) -> None:
        if key is None and until is None:
            raise TypeError("KeepLatest takes key= (a slice of the payload) or until= (a byte), or both")
        start, stop, step = (key.start, key.stop, key.step) if key is not None else (None, None, None)
        if (start or 0) < 0 or (stop or 0) < 0 or step not in (None, 1):
            raise ValueError(f"{key} must count from the payload's start, without a step")
        if stop is not None and stop <= (start or 0):
            raise ValueError(f"{key} is empty: all records would have the same key, and only the last would stay")
        for name, end in (("start", start), ("stop", stop)):
            check_whole(f"the key's {name}", end, least=0, or_none="for none")
        if until is not None and (not isinstance(until, bytes) or len(until) != 1):
            raise ValueError(f"until is {until!r}: expected a single byte, as in b'='")
        self._start = start or 0
        self._stop = 2**62 if stop is None else stop
        self._delimiter = -1 if until is None else until[0]
        self._keys = kernel.KeySet()

    def begin(self, directory: Directory, numbers: list[int], now_ns: int) -> None:  # noqa: ARG002
        self._keys = kernel.KeySet()

    def segment(self, number: int, index: SegmentIndex | None) -> bool | None:  # noqa: ARG002
        return None

    def keep(self, block: Block) -> bytearray:
        scan = block.scan
        mask: bytearray = self._keys.keep_latest(
            block.buffer, scan.starts, scan.ends, self._start, self._stop, self._delimiter
        )
        return mask
