"""Commits of an ingest as versions of a Delta table, through `deltalake`, without Spark's jars.

The files are in their places before Delta gets them, in one transaction that also has the commit's number under an
application id of the table. After a kill, the number shows whether Delta has the commit. Readers of Delta see what
its log says. Merged files stay until the table is vacuumed.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from forelog.errors import BadOption, MissingExtra, TableDamaged
from forelog.spark.types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from forelog.spark.tables.commits import Commit, DataFile, TableInfo, TableState
    from forelog.spark.tables.storage import Storage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _load_deltalake() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise MissingExtra.needed("deltalake", by="a Delta table", extra="delta") from error
    return deltalake


class Delta:
    """The format of Delta tables."""

    keeps_removed = True

    def __init__(self) -> None:
        self._deltalake = _load_deltalake()

    def check_new(self, storage: Storage) -> None:
        names = sorted(name for name in storage.names("") if name != "_forelog")
        if names:
            raise BadOption(
                f"{storage.path} has files already that no ingest made, such as {names[0]}: choose a new folder"
            )

    def announce(self, storage: Storage, commit: Commit) -> None:
        from deltalake.transaction import CommitProperties, RemoveAction, Transaction

        about, path = commit.about, storage.path
        by = [] if about.partition_by is None else [about.partition_by]
        schema = self._deltalake.Schema.from_arrow(_schema(about))
        if not self._is_there(storage):
            if commit.number > 1:
                raise _gone(path)
            self._deltalake.DeltaTable.create(path, schema, mode="ignore", partition_by=by)
            _sync(storage)
            storage.sync("")
        table = self._deltalake.DeltaTable(path)
        if self.is_announced(storage, commit):
            return
        appends = commit.kind == "append"
        actions: list[Any] = [_added(commit, file, data_change=appends) for file in commit.added]
        actions += [RemoveAction(name, False, time.time_ns() // 10**6) for name in commit.removed]
        properties = CommitProperties(
            custom_metadata={"forelog.positions": json.dumps(commit.positions)},
            app_transactions=[Transaction(_app(about), commit.number)],
        )
        table.create_write_transaction(actions, "append", schema, by, commit_properties=properties)
        _sync(storage)

    def is_announced(self, storage: Storage, commit: Commit) -> bool:
        if not self._is_there(storage):
            return False
        known = self._deltalake.DeltaTable(storage.path).transaction_version(_app(commit.about)) or 0
        return known >= commit.number or not (commit.added or commit.removed)

    def current(self, storage: Storage, state: TableState) -> list[str]:  # noqa: ARG002 - Delta's own log says it
        if not self._is_there(storage):
            raise _gone(storage.path)
        table = self._deltalake.DeltaTable(storage.path)
        return [unquote(name) for name in table.get_add_actions(flatten=True)["path"].to_pylist()]

    def _is_there(self, storage: Storage) -> bool:
        return bool(self._deltalake.DeltaTable.is_deltatable(storage.path))


def _gone(path: str) -> TableDamaged:
    return TableDamaged(
        f"{path} is no Delta table any more: its _delta_log is gone, which said what its files are. Put it back, "
        "or choose a new folder"
    )


def _app(about: TableInfo) -> str:
    return f"forelog-{about.id}"


def _sync(storage: Storage) -> None:
    """Sync the last version to the disk, which deltalake doesn't do."""
    if storage.locks:  # a bucket has it already
        storage.sync("_delta_log", max(name for name in storage.names("_delta_log") if name.endswith(".json")))


def _schema(about: TableInfo) -> pa.Schema:
    import pyarrow as pa

    schema = arrow_schema(about.columns, [name for name, kind in about.columns.items() if kind != "date"])
    return schema.append(pa.field("date", pa.date32())) if about.partition_by == "date" else schema


def _added(commit: Commit, file: DataFile, *, data_change: bool) -> Any:
    from deltalake.transaction import AddAction

    by = commit.about.partition_by
    stats: dict[str, Any] = {"numRecords": file.rows}
    times = [name for name, kind in commit.about.columns.items() if kind == "timestamp"]
    if times and file.since_us is not None and file.until_us is not None:
        # Delta's statistics have milliseconds: rounded so that no row falls out of them.
        stats["minValues"] = {times[0]: _iso(file.since_us // 1000)}
        stats["maxValues"] = {times[0]: _iso(-(-file.until_us // 1000))}
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={} if by is None else {by: file.partition},
        modification_time=time.time_ns() // 10**6,
        data_change=data_change,
        stats=json.dumps(stats),
    )


def _iso(milliseconds: int) -> str:
    return f"{(_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec='milliseconds')[:23]}Z"
