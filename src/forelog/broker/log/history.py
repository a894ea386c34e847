"""Reads the log for subscribers that are behind: its tail from memory, the rest from its files.

A finished file gets a list of its topics beside it, unless there are too many. A subscriber that wants none of
them skips the file without reading it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import Executor

from forelog.broker.log.batch import MessageBatch
from forelog.files import Files, OSFiles, removed_on_failure, write_all
from forelog.log.directory.place import read_exactly
from forelog.log.position import Position
from forelog.log.stream import Stream

logger = logging.getLogger("forelog")

TOPICS_MAX = 10_000
"""Topics in the list of a file. A file with more has no list."""
_TOPICS_BYTES_MAX = 4 << 20
_LIST_BYTES, _ENTRY_BYTES = 300, 110
"""Memory that a list takes, and each topic in it, besides the topics' own bytes."""

Wants = Callable[[Set[bytes]], bool]
"""Whether a subscriber may want any of some topics."""


class History:
    """The published messages, from any position on."""

    def __init__(
        self,
        stream: Stream,
        tail_bytes_max: int,
        executor: Executor,
        *,
        lists_bytes_max: int = 32 << 20,
        files: Files | None = None,
    ) -> None:
        self._stream = stream
        self._files = files or OSFiles()
        self._executor = executor
        self._tail: deque[MessageBatch] = deque()
        self._tail_bytes = 0
        self._tail_bytes_max = tail_bytes_max
        self.end = Position(0, 0)
        """The end of the log."""
        self.delivering: Position | None = None
        """The first message that isn't delivered to all live cursors yet; None if there is none."""
        self._current: tuple[int, set[bytes] | None] = (0, None)
        """The file that is written to, and its topics; None if there are too many, or if some aren't known."""
        self._topics_bytes = self._lists_bytes = 0
        self._lists_bytes_max = lists_bytes_max
        self._lists: dict[int, Set[bytes] | None] = {}

    @property
    def delivered(self) -> Position:
        """The position up to which every live cursor has been given its messages."""
        return self.end if self.delivering is None else self.delivering

    # -- the tail, in memory

    def add(self, batch: MessageBatch) -> None:
        """Add messages that were just written."""
        self._tail.append(batch)
        self._tail_bytes += batch.weight
        while self._tail_bytes > self._tail_bytes_max and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popleft().weight
        if batch.segment != self._current[0]:
            self._finish_list()
            is_begun = self.end.segment == batch.segment and self.end.offset > 0  # before a restart
            self._current, self._topics_bytes = (batch.segment, None if is_begun else set()), 0
        topics = self._current[1]
        if topics is not None:
            for topic in batch.topics[1]:
                if topic not in topics:
                    topics.add(topic)
                    self._topics_bytes += len(topic)
            if len(topics) > TOPICS_MAX or self._topics_bytes > _TOPICS_BYTES_MAX:
                self._current = batch.segment, None
        self.end = Position(batch.segment, batch.end)  # last: other threads read its topics up to here

    def recent(self, position: Position) -> MessageBatch | None:
        """The batch that contains a position or follows it, if it is in memory."""
        tail = self._tail
        if not tail or position < Position(tail[0].segment, tail[0].base):
            return None
        found = bisect_right(tail, position, key=lambda batch: Position(batch.segment, batch.base)) - 1
        batch = tail[found]
        if position >= Position(batch.segment, batch.end):
            return tail[found + 1] if found + 1 < len(tail) else None
        return batch

    # -- the rest, from files; called on other threads

    def read(self, wants: Wants, position: Position) -> tuple[MessageBatch | None, Position]:
        """The next messages from a position on, and where to continue; None if only unwanted files were skipped.

        Reads no further than to where the tail in memory starts.
        """
        limit = Position(self._tail[0].segment, self._tail[0].base) if self._tail else self.end
        position = self._skip(wants, position, limit)
        if position >= limit:
            return None, limit
        with contextlib.closing(self._stream.blocks(start=position, until=limit, on_corruption="skip")) as blocks:
            block = next(blocks, None)
            if block is None:
                return None, limit
            batch = MessageBatch.of_block(block)
            return batch, Position(batch.segment, batch.end)

    def read_from(self, position: Position) -> MessageBatch | None:
        """The messages from a position on, as many as one read returns."""
        with contextlib.closing(self._stream.blocks(start=position, on_corruption="skip")) as blocks:
            block = next(blocks, None)
            return None if block is None else MessageBatch.of_block(block)

    def position_of(self, time_ns: int) -> Position:
        """The position of the first message at or after a time."""
        for block in self._stream.blocks(since=time_ns, on_corruption="skip"):
            return Position(block.segment, block.offsets[block.first])
        return self.end

    def _skip(self, wants: Wants, position: Position, limit: Position) -> Position:
        """The first position, from this one on, whose file may have wanted topics."""
        while (number := self._stream.following(position.segment - 1)) is not None and number < limit.segment:
            topics = self._list_of(number)
            if topics is None or wants(topics):
                return max(position, Position(number, 0))
            position = Position(number + 1, 0)
        segment, current = self._current
        if segment == limit.segment and current is not None and not wants(current):
            return limit
        return position

    def _list_of(self, number: int) -> Set[bytes] | None:
        if number not in self._lists:
            found = self._read_list(number)
            size = _LIST_BYTES + sum(_ENTRY_BYTES + len(topic) for topic in found or ())
            if self._lists_bytes + size > self._lists_bytes_max:
                self._lists, self._lists_bytes = {}, 0
            if size > self._lists_bytes_max:
                return found
            self._lists[number] = found
            self._lists_bytes += size
            return found
        return self._lists.get(number)

    def _read_list(self, number: int) -> Set[bytes] | None:
        path = self._list_path(number)
        found = self._files.stat(path)
        segment_bytes = self._stream.segment_bytes(number)
        if segment_bytes is None:
            return frozenset()  # the file was removed, or got the name of its first message
        if found is None or found[0] > _TOPICS_BYTES_MAX:
            return None
        try:
            file = self._files.open_read(path)
        except OSError as error:
            logger.warning("%s can't be read and isn't used: %s", path, error)
            return None
        try:
            content = json.loads(read_exactly(file, found[0], 0))
            if content["bytes"] != segment_bytes:
                return None  # the file has changed since the list was written
            return frozenset(topic.encode() for topic in content["topics"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("%s is damaged and isn't used: %s", path, error)
            return None
        finally:
            file.close()

    def forget_file(self, path: str) -> None:
        """Remove the list of a removed file, and an unfinished list that a killed broker may have left."""
        for suffix in (".topics", ".topics.new"):
            self._files.remove(path.removesuffix(".dat") + suffix)

    def _finish_list(self) -> None:
        """Write the list of the finished file. Without a list the file is read, which is only slower."""
        segment, topics = self._current
        if topics:
            self._executor.submit(self._write_list, segment, sorted(topics))

    def _write_list(self, number: int, topics: list[bytes]) -> None:
        try:
            path = self._list_path(number)
            content = {"bytes": self._stream.segment_bytes(number), "topics": [topic.decode() for topic in topics]}
            self._files.remove(path)
            new = f"{path}.new"
            with removed_on_failure(self._files, new):
                with contextlib.closing(self._files.open_append(new)) as file:
                    file.truncate(0)
                    write_all(file, json.dumps(content).encode())
                self._files.rename(new, path)
        except OSError as error:
            logger.warning("%s: no list of topics for file %d: %s", self._stream.path, number, error)

    def _list_path(self, number: int) -> str:
        return f"{self._stream.path}/{self._stream.format.segment_name(number).removesuffix('.dat')}.topics"
