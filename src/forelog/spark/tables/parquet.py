"""Tables that are nothing but Parquet files."""

from __future__ import annotations

from forelog.errors import BadOption
from forelog.spark.tables.commits import Commit, TableState
from forelog.spark.tables.storage import Storage

__all__ = ["Parquet"]


class Parquet:
    """A table that is nothing but its files."""

    keeps_removed = False

    def check_new(self, storage: Storage) -> None:
        names = sorted(name for name in storage.names("") if not name.startswith(("_", ".")))
        if names:
            raise BadOption(
                f"{storage.path} has files already that no ingest made, such as {names[0]}: choose a new folder"
            )

    def announce(self, storage: Storage, commit: Commit) -> None:
        pass

    def is_announced(self, storage: Storage, commit: Commit) -> bool:  # noqa: ARG002
        return True

    def current(self, storage: Storage, state: TableState) -> list[str]:  # noqa: ARG002 - others look at the path
        return list(state.files)
