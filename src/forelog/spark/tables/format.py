"""What a table needs of a table format."""

from __future__ import annotations

from typing import Protocol

from forelog.spark.tables.commits import Commit, TableState
from forelog.spark.tables.storage import Storage

__all__ = ["TableFormat"]


class TableFormat(Protocol):
    """A table format on top of Parquet files."""

    keeps_removed: bool
    """Whether the files that a commit removes stay, until the format removes them."""

    def check_new(self, storage: Storage) -> None:
        """Raise if there is another table in the folder already."""

    def announce(self, storage: Storage, commit: Commit) -> None:
        """Tell the format about a commit, unless it knows it."""

    def is_announced(self, storage: Storage, commit: Commit) -> bool:
        """Whether the format knows a commit."""

    def current(self, storage: Storage, state: TableState) -> list[str]:
        """The paths of the table's files, below its folder."""
