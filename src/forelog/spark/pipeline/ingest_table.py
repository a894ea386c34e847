"""A table of Parquet files that grows by commits, each there as a whole or not at all.

::

    TARGET/date=2026-11-15/000000007-00003-5f0c….parquet    rows
    TARGET/_forelog/lock                                    held by the one that writes
    TARGET/_forelog/commits/000000007.json                  a commit: files that came and went, and progress
    TARGET/_forelog/staging/8a1e…/                          files of a commit that is being made

Data and progress are one step, the rename of the commit's file:

1. Tasks write files to a staging folder, and sync them.
2. The commit is written to a hidden name, synced, renamed, and its directory synced. **Now it is decided.**
3. Files that it takes out are removed, those that it brings are moved to their places.
4. A table format that has a log of its own is told, under the commit's number.
5. The staging folder is removed.

A kill before 2 leaves files in staging, which nobody reads and the next start removes. After it, the next start
does again what 3 to 5 had left undone: each of them does nothing where it was done. `_forelog` is hidden from
Spark, Delta and Arrow by its name, so that whoever reads the folder as plain Parquet never sees a row that isn't
committed, nor one twice; between 2 and 3, that is after a kill until the next start, rows of the last commit are
not seen yet. `read_table` finishes such a commit first, and is right always.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from forelog.errors import BadOption, LockTimeout, LogNotFound, TableDamaged
from forelog.files import OSFiles, removed_on_failure, write_all
from forelog.files.modes import PRIVATE, mode_like
from forelog.log.directory.tenants import refuse_others
from forelog.log.position import Position

FOLDER = "_forelog"
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_WHOLE_EVERY = 64  # commits; those with all files in them let the ones before be forgotten
_SETTLE_SECONDS = 60.0
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table."""

    path: str
    """Below the table's folder."""
    rows: int
    bytes: int
    partition: str | None
    """The value that its rows have in the column that the table is partitioned by; None also for null."""
    first: str | None
    """Positions of the first and the last row, where they are of one log."""
    last: str | None
    since_us: int | None
    """Times of the earliest and the latest row."""
    until_us: int | None

    @property
    def folder(self) -> str:
        return os.path.dirname(self.path)


@dataclass(frozen=True, slots=True)
class About:
    """What stays the same in all commits of a table."""

    id: str
    source: str
    recursive: bool
    codec: str
    format: str
    partition_by: str | None
    columns: dict[str, str]
    """With Spark's types; the one that it is partitioned by is the last."""
    catalog: str | None = None
    name: str | None = None
    """Of an Iceberg table: the name that it has in this catalog."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a table."""

    number: int
    kind: str
    about: About
    added: list[DataFile]
    removed: list[str]
    positions: dict[str, str]
    """How far the table goes now, of each log."""
    staging: str
    """The name of the folder in which its files were made."""
    files: list[DataFile] | None = None
    """All files of the table: in some commits, which make those before them needless."""
    traces: dict[str, str] = field(default_factory=dict)
    """What each log has right before its position, as a digest: to know it again."""


@dataclass(slots=True)
class State:
    """A table as of its last commit."""

    last: Commit | None = None
    files: dict[str, DataFile] = field(default_factory=dict)
    positions: dict[str, Position] = field(default_factory=dict)
    traces: dict[str, str] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    """Those that it was put together from."""

    @property
    def number(self) -> int:
        return self.last.number if self.last else 0


class Format(Protocol):
    """A table format on top of the files."""

    keeps_removed: bool
    """Whether files that a commit takes out stay, for the format to remove when it likes."""

    def check_new(self, path: str) -> None:
        """Refuse a place where there is a table already that isn't ours."""

    def announce(self, path: str, commit: Commit) -> None:
        """Make the commit known, unless it is."""

    def is_announced(self, path: str, commit: Commit) -> bool:
        """Whether it is."""

    def current(self, path: str, state: State) -> list[str]:
        """The files of the table, below its folder."""


class Parquet:
    """Nothing but the files."""

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

    def current(self, path: str, state: State) -> list[str]:  # noqa: ARG002 - others look at the path
        return list(state.files)


def format_of(name: str, catalog: str | None = None, table_name: str | None = None) -> Format:
    """The format with this name. A catalog, and the table's name in it, are Iceberg's."""
    if name != "iceberg" and (catalog or table_name):
        raise BadOption(f"a table of {name} is in no catalog, and its name is its folder's: iceberg's has others")
    if name == "parquet":
        return Parquet()
    if name == "delta":
        from forelog.spark.pipeline.ingest_delta import Delta

        return Delta()
    if name == "iceberg":
        from forelog.spark.pipeline.ingest_iceberg import Iceberg

        return Iceberg(catalog, table_name)
    raise BadOption(f"table is {name!r}: expected parquet, delta or iceberg")


def _nothing(_: str) -> None:
    pass


class Table:
    """A table to write; nobody else does while `writing()`.

    `reached` is called with the name of each step of a commit after it is done, so that tests can end it there.
    """

    def __init__(
        self, path: str, fmt: Format, *, reached: Callable[[str], None] = _nothing, mode: int = PRIVATE
    ) -> None:
        self.path = path
        self.state = State()
        self._format = fmt
        self._reached = reached
        self._files = OSFiles(mode_like(f"{path}/{FOLDER}", mode))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the table, with what a killed run left of it put right."""
        refuse_others(self._files, self.path, "a table", kind="table")
        self._files.make_dir(commits_folder(self.path))
        self._files.make_dir(staging_folder(self.path))
        try:
            lock = self._files.lock(f"{self.path}/{FOLDER}/lock", exclusive=True, timeout=0)
        except LockTimeout:
            raise LockTimeout(f"{self.path}: another ingest writes to it; there can be one at a time") from None
        try:
            self._recover()
            yield
        finally:
            lock.release()

    def _recover(self) -> None:
        self.state = load_state(self.path)
        if self.state.last is None:
            self._format.check_new(self.path)
        elif os.path.isdir(f"{staging_folder(self.path)}/{self.state.last.staging}"):
            self._publish(self.state.last)
        else:
            self._format.announce(self.path, self.state.last)  # if a power loss has undone it
        for name in os.listdir(staging_folder(self.path)):
            # What a killed run's tasks are still writing may get in the way: the next start removes it.
            shutil.rmtree(f"{staging_folder(self.path)}/{name}", ignore_errors=True)
        for name in os.listdir(commits_folder(self.path)):
            if _commit_number(name) is None:
                self._files.remove(f"{commits_folder(self.path)}/{name}")
        self._forget()

    def stage(self) -> str:
        """A new folder for the files of the next commit."""
        folder = f"{staging_folder(self.path)}/{uuid.uuid4().hex}"
        self._files.make_dir(folder)
        return folder

    def commit(
        self,
        kind: str,
        about: About,
        staging: str,
        added: Sequence[DataFile],
        positions: dict[str, Position],
        removed: Sequence[str] = (),
        traces: dict[str, str] | None = None,
    ) -> Commit:
        """Decide a commit, and carry it out. Its files are in the staging folder, under their names."""
        self._files.sync_dir(staging)
        self._reached("written")
        files = {path: file for path, file in self.state.files.items() if path not in set(removed)}
        files |= {file.path: file for file in added}
        whole = len(self.state.commits) % _WHOLE_EVERY == 0
        commit = Commit(
            number=self.state.number + 1,
            kind=kind,
            about=about,
            added=list(added),
            removed=list(removed),
            positions={name: str(positions[name]) for name in sorted(positions)},
            traces=dict(self.state.traces if traces is None else traces),
            staging=os.path.basename(staging),
            files=list(files.values()) if whole else None,
        )
        self._write(commit)
        known = [commit.number] if whole else [*self.state.commits, commit.number]
        self.state = State(commit, files, dict(positions), dict(commit.traces), known)
        self._reached("committed")
        self._publish(commit)
        shutil.rmtree(staging, ignore_errors=True)
        self._reached("emptied")
        if whole:
            self._forget()
        return commit

    def _write(self, commit: Commit) -> None:
        folder = commits_folder(self.path)
        part = f"{folder}/.{commit.number:09d}.part"
        self._files.remove(part)
        with removed_on_failure(self._files, part), closing(self._files.open_append(part)) as file:
            write_all(file, json.dumps({"version": 1, **asdict(commit)}, indent=1).encode())
            file.sync()
        self._reached("prepared")
        self._files.rename(part, f"{folder}/{commit.number:09d}.json")
        self._files.sync_dir(folder)

    def _publish(self, commit: Commit) -> None:
        """Put the files of a decided commit where they belong; again, if it was done in part."""
        folders = set()
        if not self._format.keeps_removed:
            for path in commit.removed:
                self._files.remove(f"{self.path}/{path}")
                folders.add(os.path.dirname(path))
                self._reached("removed one")
        for file in commit.added:
            staged = f"{staging_folder(self.path)}/{commit.staging}/{os.path.basename(file.path)}"
            self._files.make_dir(os.path.dirname(f"{self.path}/{file.path}"))
            with suppress(FileNotFoundError):  # it was moved before
                self._files.rename(staged, f"{self.path}/{file.path}")
                self._reached("moved one")
            if self._files.stat(f"{self.path}/{file.path}") is None:
                raise TableDamaged(f"{self.path}/{file.path} of commit {commit.number} is gone")
            folders.add(file.folder)
        for folder in folders:
            with suppress(FileNotFoundError):
                self._files.sync_dir(f"{self.path}/{folder}")
        self._reached("moved")
        self._format.announce(self.path, commit)
        self._reached("announced")

    def _forget(self) -> None:
        """Remove the commits that a later one contains."""
        oldest = min(self.state.commits, default=0)
        for name in os.listdir(commits_folder(self.path)):
            number = _commit_number(name)
            if number is not None and number < oldest:
                self._files.remove(f"{commits_folder(self.path)}/{name}")


# -- reading commits


def load_state(path: str) -> State:
    """The table as its commits say it is."""
    for _ in range(5):
        with suppress(FileNotFoundError):  # forgotten since they were listed, because a later one has it all
            return _load_state(path)
    raise TableDamaged(f"{commits_folder(path)}: commits vanish while they are read")


def _load_state(path: str) -> State:
    folder = commits_folder(path)
    if not os.path.isdir(folder):
        return State()
    numbers = sorted(number for name in os.listdir(folder) if (number := _commit_number(name)) is not None)
    commits: list[Commit] = []
    for number in reversed(numbers):
        if commits and number != commits[-1].number - 1:
            break
        commits.append(_read_commit(f"{folder}/{number:09d}.json"))
        if commits[-1].files is not None:
            break
    if not commits:
        return State()
    if commits[-1].files is None:
        raise TableDamaged(f"{folder}: commit {commits[-1].number - 1} is missing, and those after it build on it")
    files: dict[str, DataFile] = {}
    for commit in reversed(commits):
        for removed in commit.removed:
            files.pop(removed, None)
        files |= {file.path: file for file in (commit.added if commit.files is None else commit.files)}
    positions = {name: Position.parse(text) for name, text in commits[0].positions.items()}
    return State(
        commits[0], files, positions, dict(commits[0].traces), [commit.number for commit in reversed(commits)]
    )


def _read_commit(path: str) -> Commit:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        if found.pop("version") != 1:
            raise TableDamaged(f"{path} is of a version of forelog that is newer than this one")
        found["about"] = About(**found["about"])
        found["added"] = [DataFile(**one) for one in found["added"]]
        if found["files"] is not None:
            found["files"] = [DataFile(**one) for one in found["files"]]
        return Commit(**found)
    except (ValueError, KeyError, TypeError) as error:
        raise TableDamaged(f"{path} is no commit: {error}") from error


def settled(path: str) -> State:
    """The table, with its last commit carried out: by the ingest that is at it, or if it was killed, by us."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        state = load_state(path)
        if state.last is None:
            raise LogNotFound(f"there is no table of an ingest in {path}: expected {commits_folder(path)}")
        fmt = format_of(state.last.about.format)
        if not _unfinished(path, state.last, fmt):
            return state
        try:
            with Table(path, fmt).writing():
                pass
        except LockTimeout:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _unfinished(path: str, commit: Commit, fmt: Format) -> bool:
    if not os.path.isdir(f"{staging_folder(path)}/{commit.staging}"):
        return False
    moved = all(os.path.exists(f"{path}/{file.path}") for file in commit.added)
    return not moved or not fmt.is_announced(path, commit)


def commits_folder(path: str) -> str:
    return f"{path}/{FOLDER}/commits"


def staging_folder(path: str) -> str:
    return f"{path}/{FOLDER}/staging"


def _commit_number(name: str) -> int | None:
    stem, dot, kind = name.partition(".")
    return int(stem) if dot and kind == "json" and stem.isdigit() else None


def partition_folder(column: str, value: str | None) -> str:
    """The folder of a partition, as Hive and Spark name it."""
    if value is None or value == "":
        return f"{column}={NULL_FOLDER}"
    return f"{column}=" + "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in value)
