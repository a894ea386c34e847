"""Tables that are nothing but Parquet files."""

from __future__ import annotations

import os

from forelog.errors import BadOption
from forelog.spark.tables.commits import Commit, TableState

__all__ = ["Parquet"]


class Parquet:
    """A table that is nothing but its files."""

    keeps_removed = False

    def check_new(self, path: str) -> None:
        names = sorted(name for name in os.listdir(path) if not name.startswith(("_", ".")))
        if names:
            raise BadOption(
                f"{path} has files already that no ingest made, such as {names[0]}: choose a new folder"
            )

    def announce(self, path: str, commit: Commit) -> None:
        pass

    def is_announced(self, path: str, commit: Commit) -> bool:  # noqa: ARG002
        return True

    def current(self, path: str, state: TableState) -> list[str]:  # noqa: ARG002 - others look at the path
        return list(state.files)
