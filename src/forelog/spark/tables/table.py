"""A table of Parquet files that grows by atomic commits.

::

    TARGET/date=2026-11-15/000000007-00003-5f0c….parquet    rows
    TARGET/_forelog/lock                                    held by the writer
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
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict

from forelog.errors import LockTimeout, LogNotFound, TableDamaged
from forelog.files import OSFiles, removed_on_failure, write_all
from forelog.files.modes import PRIVATE, mode_like
from forelog.log.directory.tenants import refuse_others
from forelog.log.position import Position
from forelog.spark.tables.commits import (
    FOLDER,
    Commit,
    DataFile,
    TableInfo,
    TableState,
    commit_number,
    commits_folder,
    load_state,
    staging_folder,
)
from forelog.spark.tables.format import TableFormat
from forelog.spark.tables.formats import format_of

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
        self.path = path
        self.state = TableState()
        self._format = fmt
        self._reached = reached
        self._files = OSFiles(mode_like(f"{path}/{FOLDER}", mode))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the table, and finish what a killed run left undone."""
        refuse_others(self._files, self.path, "a table", kind="table")
        self._files.make_dir(commits_folder(self.path))
        self._files.make_dir(staging_folder(self.path))
        try:
            lock = self._files.lock(f"{self.path}/{FOLDER}/lock", exclusive=True, timeout=0)
        except LockTimeout:
            raise LockTimeout(f"{self.path}: another ingest writes to it: only one can at a time") from None
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
            # Tasks of a killed run may still write here: then the next start removes the rest.
            shutil.rmtree(f"{staging_folder(self.path)}/{name}", ignore_errors=True)
        for name in os.listdir(commits_folder(self.path)):
            if commit_number(name) is None:
                self._files.remove(f"{commits_folder(self.path)}/{name}")
        self._forget()

    def stage(self) -> str:
        """Make a staging folder for the files of the next commit."""
        folder = f"{staging_folder(self.path)}/{uuid.uuid4().hex}"
        self._files.make_dir(folder)
        return folder

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
        self.state = TableState(commit, files, dict(positions), dict(commit.traces), known)
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
        """Move the files of a decided commit to their places, also if some of them are there already."""
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
        """Remove commits that are not needed any more."""
        oldest = min(self.state.commits, default=0)
        for name in os.listdir(commits_folder(self.path)):
            number = commit_number(name)
            if number is not None and number < oldest:
                self._files.remove(f"{commits_folder(self.path)}/{name}")


def settled(path: str) -> TableState:
    """The state of a table whose last commit is carried out: by its ingest, or here if that was killed."""
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


def _unfinished(path: str, commit: Commit, fmt: TableFormat) -> bool:
    if not os.path.isdir(f"{staging_folder(path)}/{commit.staging}"):
        return False
    moved = all(os.path.exists(f"{path}/{file.path}") for file in commit.added)
    return not moved or not fmt.is_announced(path, commit)
