"""The commits of a table: each names the files that came and went, and how far the table goes in each log."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forelog.errors import TableDamaged
from forelog.log.position import Position
from forelog.spark.tables.layout import COMMITS

if TYPE_CHECKING:
    from forelog.spark.tables.storage import Storage

__all__ = [
    "Commit",
    "DataFile",
    "TableInfo",
    "TableState",
    "commit_name",
    "commit_number",
    "load_state",
    "partition_folder",
]

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table."""

    path: str
    """The path below the table's folder."""
    rows: int
    """The number of rows."""
    bytes: int
    """The size of the file."""
    partition: str | None
    """The value of the partition column in all of its rows; None for null, and without such a column."""
    first: str | None
    """The positions of the first and the last row, if all rows are from one log."""
    last: str | None
    """The position of the last row."""
    since_us: int | None
    """The times of the earliest and the latest row."""
    until_us: int | None
    """The time of the latest row."""

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What is the same in all commits of a table."""

    id: str
    """The id of the table."""
    source: str
    """The log, or the folder of logs."""
    recursive: bool
    """Whether the source is a folder of logs."""
    codec: str
    """The codec of the records."""
    format: str
    """The format of the table."""
    partition_by: str | None
    """The partition column; None without one."""
    columns: dict[str, str]
    """The columns with their Spark types; the partition column is the last one."""
    catalog: str | None = None
    """The catalog of an Iceberg table."""
    name: str | None = None
    """The name of an Iceberg table in its catalog."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a table."""

    number: int
    """The number of the commit."""
    kind: str
    """What it does: append or compact."""
    about: TableInfo
    """What is the same in all commits."""
    added: list[DataFile]
    """The files that it adds."""
    removed: list[str]
    """The paths of the files that it removes."""
    positions: dict[str, str]
    """The position that the table has reached in each log."""
    staging: str
    """The name of the folder in which its files were made."""
    files: list[DataFile] | None = None
    """All files of the table, only in some commits: those before them are not needed any more."""
    traces: dict[str, str] = field(default_factory=dict)
    """A digest of what each log has right before its position, to recognise the log."""


@dataclass(slots=True)
class TableState:
    """A table after its last commit."""

    last: Commit | None = None
    """The last commit; None for a new table."""
    files: dict[str, DataFile] = field(default_factory=dict)
    """All files, by path."""
    positions: dict[str, Position] = field(default_factory=dict)
    """The position reached in each log."""
    traces: dict[str, str] = field(default_factory=dict)
    """The trace of each log there."""
    commits: list[int] = field(default_factory=list)
    """The numbers of the commits that this was read from."""

    @property
    def number(self) -> int:
        return self.last.number if self.last else 0


def load_state(storage: Storage) -> TableState:
    """Read the state of a table from its commits."""
    for _ in range(5):
        with suppress(FileNotFoundError):  # removed since they were listed, because a later one lists all files
            return _load_state(storage)
    raise TableDamaged(f"{storage.path}/{COMMITS}: commits vanish while they are read")


def _load_state(storage: Storage) -> TableState:
    names = storage.names(COMMITS)
    numbers = sorted(number for name in names if (number := commit_number(name)) is not None)
    commits: list[Commit] = []
    for number in reversed(numbers):
        if commits and number != commits[-1].number - 1:
            break
        commits.append(_read_commit(storage, commit_name(number)))
        if commits[-1].files is not None:
            break
    if not commits:
        return TableState()
    if commits[-1].files is None:
        number = commits[-1].number - 1
        raise TableDamaged(f"{storage.path}/{COMMITS}: commit {number} is missing, and those after it build on it")
    files: dict[str, DataFile] = {}
    for commit in reversed(commits):
        for removed in commit.removed:
            files.pop(removed, None)
        files |= {file.path: file for file in (commit.added if commit.files is None else commit.files)}
    positions = {name: Position.parse(text) for name, text in commits[0].positions.items()}
    return TableState(
        commits[0], files, positions, dict(commits[0].traces), [commit.number for commit in reversed(commits)]
    )


def _read_commit(storage: Storage, name: str) -> Commit:
    try:
        found: dict[str, Any] = json.loads(storage.read(name))
        if found.pop("version") != 1:
            raise TableDamaged(f"{storage.path}/{name} is of a version of forelog that is newer than this one")
        found["about"] = TableInfo(**found["about"])
        found["added"] = [DataFile(**one) for one in found["added"]]
        if found["files"] is not None:
            found["files"] = [DataFile(**one) for one in found["files"]]
        return Commit(**found)
    except (ValueError, KeyError, TypeError) as error:
        raise TableDamaged(f"{storage.path}/{name} is not a commit: {error}") from error


def commit_name(number: int) -> str:
    """The name of a commit's file, below the table."""
    return f"{COMMITS}/{number:09d}.json"


def commit_number(name: str) -> int | None:
    stem, dot, kind = name.partition(".")
    return int(stem) if dot and kind == "json" and stem.isdigit() else None


def partition_folder(column: str, value: str | None) -> str:
    """The folder of a partition, as Hive and Spark name it."""
    if value is None or value == "":
        return f"{column}={NULL_FOLDER}"
    return f"{column}=" + "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)
