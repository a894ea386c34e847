"""What a table needs of a table format."""

from __future__ import annotations

from typing import Protocol

from forelog.spark.tables.commits import Commit, TableState

__all__ = ["TableFormat"]


class TableFormat(Protocol):
    """A table format on top of the files."""

    keeps_removed: bool
    """Whether files that a commit takes out stay, for the format to remove when it likes."""

    def check_new(self, path: str) -> None:
        """Refuse a place where there is a table already that isn't ours."""

    def announce(self, path: str, commit: Commit) -> None:
        """Make the commit known, unless it is."""

    def is_announced(self, path: str, commit: Commit) -> bool:
        """Whether it is."""

    def current(self, path: str, state: TableState) -> list[str]:
        """The files of the table, below its folder."""
