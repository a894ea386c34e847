"""The log, for those who are behind: its end from memory, the rest from its files.

A file that is finished gets a list of the topics in it beside it, if they aren't too many: who wants none of them
passes the file over without reading it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from bisect import bisect_right
from collections import deque
from concurrent.futures import Executor

from forelog.broker.flow.batches import Batch
from forelog.broker.sessions.session import Cursor
from forelog.files import Files, OSFiles, removed_on_failure, write_all
from forelog.log.directory.place import read_exactly
from forelog.log.position import Position
from forelog.log.stream import Stream

__all__ = ["History"]

logger = logging.getLogger("forelog")

TOPICS_MAX = 10_000
"""In a file's list. With more of them there is none."""
_TOPICS_BYTES_MAX = 4 << 20
_LIST_BYTES, _ENTRY_BYTES = 300, 50


class History:
    """What has been published, from any position on."""

    def __init__(
        self,
        stream: Stream,
        tail_bytes_max: int,
        executor: Executor,
        *,
        files: Files | None = None,
    ) -> None:
        self._stream = stream
        self._files = files or OSFiles()
        self._executor = executor
        self._tail: deque[Batch] = deque()
        self._tail_bytes = 0
        self._tail_bytes_max = tail_bytes_max
        self.end = Position(0, 0)
        """Where what has been published ends."""
        self._segment = 0
        self._topics: set[bytes] | None = set()
        self._topics_bytes = self._lists_bytes = 0
        self.lists_bytes_max = 32 << 20
        """Of lists that are kept in memory."""
        self._lists: dict[int, list[bytes] | None] = {}

    # -- the end of it

    def add(self, batch: Batch) -> None:
        """Messages that were just written."""
        self._tail.append(batch)
        self._tail_bytes += batch.weight
        while self._tail_bytes > self._tail_bytes_max and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popleft().weight
        self.end = Position(batch.segment, batch.end)
        if batch.segment != self._segment:
            self._finish_list()
            self._segment, self._topics, self._topics_bytes = batch.segment, set(), 0
        if self._topics is not None:
            for topic in batch.topics[1]:
                if topic not in self._topics:
                    self._topics.add(topic)
                    self._topics_bytes += len(topic)
            if len(self._topics) > TOPICS_MAX or self._topics_bytes > _TOPICS_BYTES_MAX:
                self._topics = None

    def recent(self, position: Position) -> Batch | None:
        """The batch that a position is in or before, if memory has it."""
        tail = self._tail
        if not tail or position < Position(tail[0].segment, tail[0].base):
            return None
        found = bisect_right(tail, position, key=lambda batch: Position(batch.segment, batch.base)) - 1
        batch = tail[found]
        if position >= Position(batch.segment, batch.end):
            return tail[found + 1] if found + 1 < len(tail) else None
        return batch

    # -- the rest; on other threads

    def read(self, cursor: Cursor, position: Position) -> tuple[Batch | None, Position]:
        """The next messages from a position on, and where to go on after them: where nothing is wanted, none.

        What memory has isn't read: the end, then, is where memory begins.
        """
        limit = Position(self._tail[0].segment, self._tail[0].base) if self._tail else self.end
        position = self._pass_over(cursor, position, limit)
        if position >= limit:
            return None, limit
        blocks = self._stream.blocks(start=position, until=limit, on_corruption="skip")
        try:
            block = next(blocks, None)
            if block is None:
                return None, limit
            batch = Batch.of_block(block)
            return batch, Position(batch.segment, batch.end)
        finally:
            blocks.close()  # type: ignore[attr-defined]

    def read_from(self, position: Position) -> Batch | None:
        """The messages from a position on, as many as are read together."""
        blocks = self._stream.blocks(start=position, on_corruption="skip")
        try:
            block = next(blocks, None)
            return None if block is None else Batch.of_block(block)
        finally:
            blocks.close()  # type: ignore[attr-defined]

    def _pass_over(self, cursor: Cursor, position: Position, limit: Position) -> Position:
        """The first position whose file may have what is wanted."""
        while (number := self._stream.following(position.segment - 1)) is not None and number < limit.segment:
            topics = self._list_of(number)
            if topics is None or cursor.wants(topics):
                return max(position, Position(number, 0))
            position = Position(number + 1, 0)
        return position

    def _list_of(self, number: int) -> list[bytes] | None:
        if number not in self._lists:
            found = self._read_list(number)
            size = _LIST_BYTES + sum(_ENTRY_BYTES + len(topic) for topic in found or ())
            if self._lists_bytes + size > self.lists_bytes_max:
                self._lists, self._lists_bytes = {}, 0
            if size > self.lists_bytes_max:
                return found
            self._lists[number] = found
            self._lists_bytes += size
            return found
        return self._lists.get(number)

    def _read_list(self, number: int) -> list[bytes] | None:
        path = self._list_path(number)
        found = self._files.stat(path)
        segment_bytes = self._stream.segment_bytes(number)
        if found is None or found[0] > _TOPICS_BYTES_MAX or segment_bytes is None:
            return None
        try:
            file = self._files.open_read(path)
        except OSError as error:
            logger.warning("%s can't be read and isn't used: %s", path, error)
            return None
        try:
            told = json.loads(read_exactly(file, found[0], 0))
            if told["bytes"] != segment_bytes:
                return None  # of a file that has been written to since, or that isn't the same any more
            return [topic.encode() for topic in told["topics"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("%s is damaged and isn't used: %s", path, error)
            return None
        finally:
            file.close()

    def forget_file(self, path: str) -> None:
        """A file is gone: so is its list, and what a killed broker has left of one."""
        for suffix in (".topics", ".topics.new"):
            self._files.remove(path.removesuffix(".dat") + suffix)

    def _finish_list(self) -> None:
        """Leave a list beside the file that was finished. Without it everything works, only slower."""
        if self._topics and self._segment:
            self._executor.submit(self._write_list, self._segment, sorted(self._topics))

    def _write_list(self, number: int, topics: list[bytes]) -> None:
        try:
            path = self._list_path(number)
            told = {"bytes": self._stream.segment_bytes(number), "topics": [topic.decode() for topic in topics]}
            self._files.remove(path)
            new = f"{path}.new"
            with removed_on_failure(self._files, new):
                with contextlib.closing(self._files.open_append(new)) as file:
                    file.truncate(0)
                    write_all(file, json.dumps(told).encode())
                self._files.rename(new, path)
        except OSError as error:
            logger.warning("%s: no list of topics for file %d: %s", self._stream.path, number, error)

    def _list_path(self, number: int) -> str:
        return f"{self._stream.path}/{self._stream.format.segment_name(number).removesuffix('.dat')}.topics"
