"""A commit log for tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from forelog.log import aio
from forelog.log.position import Position

if TYPE_CHECKING:
    from forelog.formats.m3 import Series
    from forelog.log.appender import Payload


class AsyncCommitLog:
    """The methods of a `CommitLog`, to be awaited. Those that never wait are plain methods, as there.

    Tasks and threads can use one log at the same time, and share its syncs. `CommitLog.aio` makes one.
    """

    def __init__(self, log: Any) -> None:
        self.log = log
        self.active_logs = log.active_logs
        self.queue_length = log.queue_length
        self.snapshot = log.snapshot

    @overload
    async def write(self, payload: Payload, /) -> Position | None: ...
    @overload
    async def write(
        self,
        series: Series,
        datapoint: tuple[int, float],
        unit: int = ...,
        annotation: Payload | None = None,
        *,
        created_ns: int | None = None,
    ) -> Position | None: ...
    @overload
    async def write(
        self, topic: str, payload: Payload = b"", properties: Mapping[str, Any] | None = None
    ) -> Position | None: ...
    async def write(self, *args: Any, **kwargs: Any) -> Position | None:
        """Write one item, as CommitLog.write() does."""
        positions = await self._put(self.log.write_of(*args, **kwargs))
        return None if positions is None else positions[0]

    async def write_batch(self, items: Iterable[Any]) -> Sequence[Position] | None:
        """Write items that stay together, as CommitLog.write_batch() does."""
        return await self._put(self.log.write_of_batch(items))

    async def rotate_logs(self) -> str:
        """Continue in a new segment, as CommitLog.rotate_logs() does."""
        return await aio.in_thread(self.log.rotate_logs)

    async def flush(self) -> None:
        """Return when everything written before is on stable storage, as CommitLog.flush() does."""
        await aio.in_thread(self.log.flush)

    async def close(self) -> None:
        """Write and sync what is queued, and close, as CommitLog.close() does."""
        await aio.in_thread(self.log.close)

    async def _put(self, write: Any) -> Sequence[Position] | None:
        if not write.synced:
            await aio.post(self.log.commit, write)
            return None
        positions: Sequence[Position] = await aio.submit(self.log.commit, write)
        return positions
