"""A table of Parquet files that grows by atomic commits.

::

    TARGET/date=2026-11-15/000000007-00003-5f0c….parquet    rows
    TARGET/_forelog/lock                                    held by the writer, in a folder
    TARGET/_forelog/commits/000000007.json                  a commit: added and removed files, and positions
    TARGET/_forelog/staging/8a1e…/                          files of a commit that is being made

Data and positions change in one step, the rename of the commit's file:

1. Tasks write files to a staging folder, and sync them.
2. The commit is written to a hidden name, synced, renamed, and its directory synced. **Now it is decided.**
3. Removed files are deleted, and added files are moved to their places.
4. A table format with a log of its own gets the commit, under its number.
5. The staging folder is removed.

A kill before step 2 leaves files in staging: nobody reads them, and the next start removes them. After a kill
later on, the next start repeats steps 3 to 5, which skip what was done. Spark, Delta and Arrow ignore `_forelog`
because of its name, so a reader of plain Parquet never sees an uncommitted row, nor a row twice. After a kill
between 2 and 3 it doesn't see the rows of the last commit until the next start. `read_table` finishes such a
commit first.

In a bucket (storage.py), step 2 creates the commit's object on condition that there is none. So whoever opens the
table later takes it over: with its first commit it is the writer, and the other one's next commit is refused. Only
then does it remove what others have staged.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from forelog.errors import LockTimeout, LogNotFound, TableDamaged
from forelog.files.modes import PRIVATE
from forelog.log.position import Position
from forelog.spark.tables.commits import (
    Commit,
    DataFile,
    TableInfo,
    TableState,
    commit_name,
    commit_number,
    load_state,
)
from forelog.spark.tables.format import TableFormat
from forelog.spark.tables.formats import format_of
from forelog.spark.tables.layout import COMMITS, STAGING
from forelog.spark.tables.storage import Storage, storage_of

__all__ = ["Table", "settled"]

_WHOLE_EVERY = 64  # commits: each 64th lists all files, so that older ones can be removed
_SETTLE_SECONDS = 60.0


def _nothing(_: str) -> None:
    pass


class Table:
    """A table that is written to, by one process at a time.

    `reached` is called with the name of each step of a commit after it is done, so that tests can end it there.
    """

    def __init__(
        self, path: str, fmt: TableFormat, *, reached: Callable[[str], None] = _nothing, mode: int = PRIVATE
    ) -> None:
        self.storage = storage_of(path, mode)
        self.state = TableState()
        self._format = fmt
        self._reached = reached
        self._ours = False
        """Whether nobody else can commit any more."""

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the table, and finish what a killed run left undone."""
        self.storage.prepare()
        with self.storage.lock():
            self._recover()
            yield

    def _recover(self) -> None:
        self.state = load_state(self.storage)
        last = self.state.last
        if last is None:
            self._format.check_new(self.storage)
        elif last.staging in self.storage.names(STAGING):
            self._publish(last)
            self.storage.remove_folder(f"{STAGING}/{last.staging}")
        else:
            self._format.announce(self.storage, last)  # if a power loss has undone it
        self._ours = self.storage.locks
        if self._ours:
            self._clear("")
        self._forget()

    def _clear(self, own: str) -> None:
        """Remove what others have staged and never committed, and now never can."""
        for name in self.storage.names(STAGING):
            # Tasks of a killed run may still write here: then the next start removes the rest.
            if name != own:
                self.storage.remove_folder(f"{STAGING}/{name}")
        for name in self.storage.names(COMMITS):
            if commit_number(name) is None:
                self.storage.remove(f"{COMMITS}/{name}")

    def stage(self) -> str:
        """Make a folder for the files of the next commit. Returns its name in the table."""
        name = f"{STAGING}/{uuid.uuid4().hex}"
        self.storage.make_folder(name)
        return name

    def drop(self, staging: str) -> None:
        """Remove a folder of files that aren't committed."""
        self.storage.remove_folder(staging)

    def commit(
        self,
        kind: str,
        about: TableInfo,
        staging: str,
        added: Sequence[DataFile],
        positions: dict[str, Position],
        removed: Sequence[str] = (),
        traces: dict[str, str] | None = None,
    ) -> Commit:
        """Write a commit and carry it out. Its files are in the staging folder, by name."""
        self.storage.sync(staging)
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
        self.state = TableState(commit, files, dict(positions), dict(commit.traces), known)
        self._reached("committed")
        self._publish(commit)
        self.storage.remove_folder(staging)
        self._reached("emptied")
        if not self._ours:
            self._clear(commit.staging)
            self._ours = True
        if whole:
            self._forget()
        return commit

    def _write(self, commit: Commit) -> None:
        data = json.dumps({"version": 1, **asdict(commit)}, indent=1).encode()
        try:
            self.storage.create(commit_name(commit.number), data, lambda: self._reached("prepared"))
        except FileExistsError:
            self.storage.remove_folder(f"{STAGING}/{commit.staging}")
            raise LockTimeout(
                f"{self.storage.path}: another ingest writes to it, and has made commit {commit.number}: only one "
                "can at a time"
            ) from None

    def _publish(self, commit: Commit) -> None:
        """Move the files of a decided commit to their places, also if some of them are there already."""
        folders = set()
        if not self._format.keeps_removed:
            for path in commit.removed:
                self.storage.remove(path)
                folders.add(os.path.dirname(path))
                self._reached("removed one")
        for file in commit.added:
            with suppress(FileNotFoundError):  # it was moved before
                self.storage.move(f"{STAGING}/{commit.staging}/{os.path.basename(file.path)}", file.path)
                self._reached("moved one")
            if not self.storage.exists(file.path):
                raise TableDamaged(f"{self.storage.path}/{file.path} of commit {commit.number} is gone")
            folders.add(file.folder)
        for folder in folders:
            with suppress(FileNotFoundError):
                self.storage.sync(folder)
        self._reached("moved")
        self._format.announce(self.storage, commit)
        self._reached("announced")

    def _forget(self) -> None:
        """Remove commits that are not needed any more."""
        oldest = min(self.state.commits, default=0)
        for name in self.storage.names(COMMITS):
            number = commit_number(name)
            if number is not None and number < oldest:
                self.storage.remove(f"{COMMITS}/{name}")


def settled(path: str) -> TableState:
    """The state of a table whose last commit is carried out: by its ingest, or here if that was killed."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    storage = storage_of(path)
    while True:
        state = load_state(storage)
        if state.last is None:
            raise LogNotFound(f"there is no table of an ingest in {path}: expected {path}/{COMMITS}")
        fmt = format_of(state.last.about.format)
        if not _unfinished(storage, state.last, fmt):
            return state
        try:
            with Table(path, fmt).writing():
                pass
        except LockTimeout:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _unfinished(storage: Storage, commit: Commit, fmt: TableFormat) -> bool:
    if commit.staging not in storage.names(STAGING):
        return False
    moved = all(storage.exists(file.path) for file in commit.added)
    return not moved or not fmt.is_announced(storage, commit)
