"""One segment of a log, open to read; and writing the segments of a new log.

>>> import forelog, tempfile
>>> stream = forelog.Stream(tempfile.mkdtemp())
>>> writer = SegmentWriter(stream.directory)
>>> writer.begin(1)
>>> writer.write([b"one", b"two"], [1_000, 2_000])
>>> writer.finish()
>>> [(record.time_ns, record.payload) for record in stream.cursor()]
[(1000, b'one'), (2000, b'two')]
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from forelog.files import File, write_all
from forelog.formats import Block
from forelog.kernel.types import TIME_MAX, TRUNCATED
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import visible_bytes
from forelog.log.directory.foreign import foreign_index
from forelog.log.directory.index import SegmentIndex, read_index
from forelog.log.directory.place import read_exactly
from forelog.log.position import Position, make_position

logger = logging.getLogger("forelog")

_FIRST_RECORD_BYTES = 4096


class SegmentReader:
    """One segment, open to read. Its size is how much readers may read, as of when it was opened or last
    refreshed."""

    def __init__(self, directory: Directory, number: int) -> None:
        self.directory = directory
        self.number = number
        self.path = directory.segment_path(number)
        self.file = directory.open_segment(number)
        self._identity: object = None
        """The identity of the file, once somebody has asked for it."""
        try:
            self.header_bytes = directory.format.header_bytes
            self._look()
            head = read_exactly(self.file, min(self.size, self.header_bytes), 0)
            self.header_blank = not any(head)
            self.header_defect = directory.format.header_defect(head)
        except BaseException:
            self.file.close()
            raise

    def _look(self) -> None:
        """Find out how much of it readers may read. That is all of a segment with an index, because it is
        finished."""
        directory, number = self.directory, self.number
        self.size = self.file.size()
        self.map_damaged = False
        self.index_path = directory.index_path(number, self.size)  # or that of its map, if it has one
        self.index = self._read_index()
        if self.index is None and not self.map_damaged:
            if directory.ends_at_mark:
                self.size = visible_bytes(directory, number, self.file)
            self.index = foreign_index(directory, number, self.size, self.file)

    def _read_index(self) -> SegmentIndex | None:
        if self.size < self.header_bytes + self.directory.format.record_bytes_min:
            return None  # no record, nor anything known of any
        tail = read_exactly(self.file, 4, self.size - 4)
        files, map_path = self.directory.files, self.directory.map_path(self.number, self.size)
        mapped = files.stat(map_path) is not None
        if mapped:
            self.index_path = map_path
        try:
            index = read_index(files, self.index_path, self.number, self.size, tail)
        except OSError as error:
            if mapped:
                raise
            logger.warning("%s can't be read, and is done without: %s", self.index_path, error)
            return None
        self.map_damaged = mapped and index is None
        return index

    @property
    def rewritten(self) -> bool:
        """Whether cleaning or repair has taken bytes out of it, as far as is known."""
        return self.map_damaged or (self.index is not None and self.index.rewritten)

    def refresh(self) -> bool:
        """Find out again how much of it readers may read. Returns whether the size has changed."""
        if self.index is not None and self.index.foreign_end:
            return False
        before, marked = self.size, self.directory.ends_at_mark and self.index is None
        self.size = visible_bytes(self.directory, self.number, self.file) if marked else self.file.size()
        if self.size != before:
            self.index = None  # it was that of another size, and a segment that grows was never rewritten
        return self.size != before

    def replaced(self) -> bool:
        """Whether the file under this name is another one by now, or gone."""
        found = self.directory.files.stat(self.path)
        if self._identity is None:
            self._identity = self.file.identity()
        return found is None or found[1] != self._identity

    def physical(self, logical: int) -> int:
        place = max(logical, self.header_bytes)
        return self.index.physical(place) if self.index else place

    def logical(self, physical: int) -> int:
        return self.index.logical(physical) if self.index else physical

    def position(self, physical: int) -> Position:
        return make_position((self.number, self.logical(physical)))

    def end(self) -> int:
        """The logical offset of the end."""
        return self.index.logical_end if self.index else max(self.size, self.header_bytes)

    def first_time(self) -> int | None:
        """The time of the first record; None if no record can be read."""
        if self.index and self.index.records and self.index.first_time:  # 0 may be of a record without a time
            return self.index.first_time
        fmt = self.directory.format
        data = read_exactly(
            self.file, min(_FIRST_RECORD_BYTES, max(self.size - self.header_bytes, 0)), self.header_bytes
        )
        scan = fmt.scan(data, 0, len(data), 0, 1)
        long = scan.reason == TRUNCATED and scan.need <= self.size - self.header_bytes  # not looked at to its end
        if self.header_defect or not (scan.offsets or (long and len(data) >= fmt.record_bytes_min)):
            return None
        time_ns = fmt.exact_time(data)
        return None if time_ns == TIME_MAX else time_ns

    def close(self) -> None:
        self.file.close()


class SegmentWriter:
    """Writes the segments of a log that is made from another one, in order.

    Unlike an appender it is given the times of records, and locks nothing. So build the log beside its place,
    and move it there when it is complete (`forelog.files.built_beside`).
    """

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.numbers: list[int] = []
        """The segments that were begun, in order."""
        self.records = 0
        self.byte_count = 0
        """The size of all of them, headers included."""
        self.segment_bytes = 0
        """The size of the one that is being written."""
        self._file: File | None = None

    def begin(self, number: int) -> None:
        """Sync the segment before this one, if there is one, and start this one."""
        self._seal()
        self._file = self.directory.files.open_append(self.directory.segment_path(number))
        self._encoder = self.directory.format.encoder(number)
        self.numbers.append(number)
        self.segment_bytes = 0
        self._put(self.directory.format.header())

    def write(self, items: Sequence[Any], times_ns: Sequence[int]) -> None:
        """Write items of the format, each with its time.

        In formats whose records depend on earlier ones, such as M3's, the times are in the items.
        """
        encode = self.directory.format.encode
        if encode is not None:
            self._put(b"".join(map(encode, items, times_ns)))
        else:
            self._put(self._encoder.encode_many(items, 0)[0])
            self._encoder.accept()
        self.records += len(items)

    def copy(self, block: Block) -> None:
        """Write the wanted records of a block as they are."""
        offsets, first, last = block.scan.offsets, block.first, block.last
        stop = offsets[last] if last < len(offsets) else block.base + block.scan.end
        self._put(block.buffer[offsets[first] - block.base : stop - block.base])
        self.records += last - first

    def _put(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        write_all(self._file, data)
        self.segment_bytes += len(data)
        self.byte_count += len(data)

    def _seal(self) -> None:
        if self._file is not None:
            self._file.sync()
            self.close()

    def finish(self) -> None:
        """Sync everything, and close."""
        self._seal()
        self.directory.sync()

    def close(self) -> None:
        """Close the file. Without finish() its content isn't synced."""
        if self._file is not None:
            self._file.close()
            self._file = None
