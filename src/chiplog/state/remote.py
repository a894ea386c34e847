"""A copy on object storage or any remote filesystem, through fsspec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chiplog.log.position import Position
from chiplog.state.mirror import Resume, Snapshot
from chiplog.state.shipping import Chunk, Source

__all__ = ["RemoteTarget"]


class RemoteTarget:
    """Segments and their tails as objects, with a manifest that is written last."""

    def __init__(self, where: str, owner: Source, storage_options: Mapping[str, Any] | None) -> None:
        raise NotImplementedError

    def connect(self) -> Resume | None:
        raise NotImplementedError

    def restart(self, position: Position) -> None:
        raise NotImplementedError

    def send(self, chunk: Chunk) -> None:
        raise NotImplementedError

    def flush(self) -> Position:
        raise NotImplementedError

    def commit(self, snapshot: Snapshot) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
