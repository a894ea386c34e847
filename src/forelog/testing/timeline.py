"""What a writer did to a disk, moment by moment.

A `Recorder` is a `CrashDisk` that keeps the disk as it was after every operation: its *moments*. Between two
operations of the writer nothing changes. So whoever looks at all moments, one after the other, has seen
everything that a reader in another process could have found. A write takes several moments, because its first
bytes can be there before the others (`cuts`).

    moment 41   the file has 31 bytes
    moment 42   "write": 4 bytes of 54 are there
    moment 43            22 bytes of 54, which is where its first record ends
    moment 44            all of them

An operation that changes nothing for readers, such as a sync, makes no moment. What `CrashDisk` learns to do is
recorded without a change here: all of its operations go through `_call`, and all of its attributes with plain
data are kept, except those in `_NO_STATE`.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from forelog.files import Lock
from forelog.formats import Format
from forelog.testing.disk import CrashDisk, Fault, Operation
from forelog.testing.model import DirectoryModel, DiskModel, Event, FileModel

READS = frozenset({"list_dir", "changed", "open_read", "stat", "read", "size", "load"})
"""Operations that change nothing."""
_PIECEWISE = ("write", "write_at")
_NO_STATE = frozenset(
    {"events", "capacity_bytes", "sector_bytes", "origin", "_base", "_model", "_faults", "_calls", "_inodes"}
    | {"_locks", "_mutex", "_changed", "_tape"}
)
_CUTS_MAX = 12


class Killed(BaseException):
    """The writing process was killed. Not an Exception, so that no handler continues."""


class Moment(NamedTuple):
    """A disk between two operations of its writer."""

    state: dict[str, Any]
    """The attributes of the disk that hold its content."""
    locks: dict[str, bool]
    """The locks that the writer holds, and whether they are exclusive."""
    cause: str
    """The last operation, in words."""

    @property
    def model(self) -> DiskModel:
        """Files and directories."""
        model: DiskModel = self.state["_model"]
        return model

    def is_as(self, before: Moment) -> bool:
        """Whether readers can't tell this moment from the one before."""
        return (
            self.locks == before.locks
            and _entries(self.model) == _entries(before.model)
            and self.model.files.keys() == before.model.files.keys()
            and all(file is before.model.files[inode] for inode, file in self.model.files.items())
            and _rest_of(self) == _rest_of(before)
        )


class Timeline:
    """The moments of a disk, from before the first operation to after the last."""

    def __init__(self, moments: list[Moment]) -> None:
        self.moments = moments
        self._changes: dict[str, list[int]] = {}
        self._entries: dict[str, list[tuple[int, str]]] = {}
        self._following: dict[tuple[str, int], int | None] = {}
        names: dict[int, set[str]] = {}
        for number, moment in enumerate(moments):
            before = moments[number - 1] if number else None
            for path, name in _changed_entries(before, moment):
                self._entries.setdefault(path, []).append((number, name))
            for path in set(_changed_paths(before, moment, names)):
                self._changes.setdefault(path, []).append(number)

    @property
    def last(self) -> int:
        """The number of the last moment."""
        return len(self.moments) - 1

    def next_change(self, path: str, after: int) -> int | None:
        """The first moment after another at which an operation on a path could find a difference."""
        key = path, after
        if key not in self._following:
            following = [
                changes[place]
                for changes in (self._changes.get(path, []), self._changes.get("*", []))
                if (place := bisect_right(changes, after)) < len(changes)
            ]
            self._following[key] = min(following, default=None)
        return self._following[key]

    def entry_changes(self, path: str, after: int) -> list[int]:
        """The moments after another at which the entries of a directory changed."""
        return sorted({number for number, _ in self._entries.get(path, ()) if number > after})

    def changed_names(self, path: str, begin: int, end: int) -> list[str]:
        """The names in a directory that were added, removed or replaced between two moments."""
        return sorted({name for number, name in self._entries.get(path, ()) if begin < number <= end})

    def next_free(self, path: str, exclusive: bool, after: int) -> int | None:
        """The first moment, from `after` on, at which no lock of the writer prevents this one."""
        for number in range(after, len(self.moments)):
            if not conflicts(self.moments[number].locks.get(path), exclusive):
                return number
        return None

    def digests(self) -> set[bytes]:
        """One moment for each different disk."""
        return {_digest(moment.model) for moment in self.moments}

    def fingerprint(self) -> str:
        """A digest of the operations: if it is equal, a schedule means the same on both timelines."""
        summary = hashlib.blake2b(digest_size=4)
        for moment in self.moments:
            summary.update(moment.cause.encode() + b"\0")
        return summary.hexdigest()


def conflicts(held: bool | None, exclusive: bool) -> bool:
    """Whether a held lock, exclusive or shared, keeps another one from being taken."""
    return held is not None and (held or exclusive)


class _Tape:
    """What a recorder keeps for itself."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []
        self.cause: str | None = "the beginning"
        self.kind = ""
        self.format: Format | None = None
        self.killer: tuple[Callable[[Operation], bool], int | None] | None = None
        self.dead = False


class Recorder(CrashDisk):
    """A disk that records every moment of its writer."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self._tape = _Tape()

    def now(self) -> int:
        """The number of the current moment."""
        with self._mutex:
            self._settle()
            return len(self._tape.moments) - 1

    def timeline(self) -> Timeline:
        """All moments so far."""
        self.now()
        return Timeline(list(self._tape.moments))

    def cut_records_of(self, fmt: Format) -> None:
        """Make a moment of each record in a write, for the records of a format."""
        self._tape.format = fmt

    # -- a writer that is killed

    def kill(self, when: Callable[[Operation], bool], byte_count: int | None = None) -> None:
        """Kill the writer at the first operation that matches: before it, or in the middle of a write."""
        self._tape.killer = when, byte_count

    def bury(self) -> None:
        """Release the locks of a killed writer, so that another one can use the disk."""
        with self._mutex:
            self._settle()
            self._tape.dead, self._tape.killer = False, None
            self._locks.clear()
            self._tape.cause = "killed"
            self._settle()

    @property
    def dead(self) -> bool:
        """Whether the writer was killed, and bury() has not been called since."""
        return self._tape.dead

    # -- recording

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:
        """Take a lock. Its file stays from then on. Releasing it is a step of the writer too."""
        directory, name = os.path.split(path)
        with self._mutex:
            if not self.dead and name not in self._entries(directory):
                self._settle()
                self._inodes += 1
                self._happen(Event("create", directory, self._inodes, name=name))
                self._tape.cause = f"create {path}"
        return _RecordedLock(self, path, super().lock(path, exclusive=exclusive, timeout=timeout))

    def _call(self, kind: str, path: str, byte_count: int = 0) -> Fault:
        tape = self._tape
        if tape.dead:
            raise Killed
        self._settle()
        fault = self._kill_at(Operation(kind, path, byte_count, self._calls)) or super()._call(
            kind, path, byte_count
        )
        tape.kind = kind
        if kind not in READS:
            tape.cause = f"{kind} {path}"
        return fault

    def _kill_at(self, operation: Operation) -> Fault | None:
        """Find the fault that ends a write early, if the writer dies in the write; raise if it dies before."""
        tape = self._tape
        if tape.killer is None or not tape.killer[0](operation):
            return None
        (_, count), tape.killer, tape.dead = tape.killer, None, True
        if count is None:
            raise Killed
        return Fault(lambda _: False, short_bytes=count)

    def _happen(self, event: Event) -> None:
        tape = self._tape
        if event.kind == "write" and tape.kind in _PIECEWISE:
            cause, model = tape.cause, self._model
            for count in cuts(event, tape.format):
                self._model = _copy_model(model, None)
                self._model.apply(event._replace(data=event.data[:count]))
                tape.cause = f"{cause}: {count} of {len(event.data)} bytes"
                self._settle()
            self._model, tape.cause = model, f"{cause}: all of {len(event.data)} bytes"
        super()._happen(event)

    def _settle(self) -> None:
        """Record a moment, if something was done since the last one."""
        tape = self._tape
        if tape.cause is None:
            return
        before = tape.moments[-1] if tape.moments else None
        state = {
            name: copy.deepcopy(value)
            for name, value in vars(self).items()
            if name not in _NO_STATE and _is_plain(value)
        }
        state["_model"] = _copy_model(self._model, before.model if before else None)
        locks = {path: any(lock.exclusive for lock in held) for path, held in self._locks.items() if held}
        moment = Moment(state, locks, tape.cause)
        if before is None or not moment.is_as(before):
            tape.moments.append(moment)
        tape.cause = None


class _RecordedLock(Lock):
    """A lock that a writer holds."""

    def __init__(self, disk: Recorder, path: str, lock: Lock) -> None:
        self._disk = disk
        self._path = path
        self._lock = lock

    def release(self) -> None:
        with self._disk._mutex:
            if not self._disk.dead:  # else bury() releases it
                self._disk._settle()
                self._lock.release()
                self._disk._tape.cause = f"unlock {self._path}"


# -- pieces of a write


def cuts(event: Event, fmt: Format | None) -> list[int]:
    """The numbers of bytes after which a reader may find a write: at the ends of its records, and inside them."""
    data = event.data
    if len(data) < 2 or not any(data):
        return []
    ends = _record_ends(event.path, data, fmt)
    if not ends:
        return [len(data) // 2]
    places = {ends[0] // 4, ends[0] // 2, len(data) - 1}
    for end in (ends[0], ends[(len(ends) - 1) // 2], ends[-2] if len(ends) > 1 else ends[0]):
        places |= {end - 1, end, end + 5}
    return sorted(place for place in places if 0 < place < len(data))[:_CUTS_MAX]


def _record_ends(path: str, data: bytes, fmt: Format | None) -> list[int]:
    """Where records end in what is written to a segment, or to a spare that will be one; nothing for other
    files."""
    name = os.path.basename(path)
    if fmt is None or (fmt.segment_number(name) is None and name != "append.spare"):
        return []
    scan = fmt.scan(data, 0, len(data), 0, 1000)
    return [*scan.offsets[1:], scan.end] if scan.offsets else []


# -- copies, and what differs between two


def _copy_model(model: DiskModel, before: DiskModel | None) -> DiskModel:
    """What a program sees of a disk. Unchanged files are shared with the copy before."""
    return DiskModel(
        model.sector_bytes,
        {
            inode: _copy_file(file, before.files.get(inode) if before else None)
            for inode, file in model.files.items()
        },
        {path: _copy_directory(directory) for path, directory in model.directories.items()},
    )


def _copy_file(file: FileModel, before: FileModel | None) -> FileModel:
    if before is not None and before.sizes[-1] == file.sizes[-1] and before.content == file.content:
        return before
    # What may be on disk after a power loss is left out: readers see what a program does.
    kept = {"content": bytearray(file.content), "sizes": file.sizes[-1:], "dirty": {}, "stuck": set()}
    return FileModel(**_fields(file, kept))


def _copy_directory(directory: DirectoryModel) -> DirectoryModel:
    return DirectoryModel(**_fields(directory, {"entries": dict(directory.entries), "durable": {}, "pending": []}))


def _is_plain(value: Any) -> bool:
    """Whether a value is plain data, and not an object that belongs to one disk."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str | bytes | bytearray | array)


def _fields(thing: FileModel | DirectoryModel, known: dict[str, Any]) -> dict[str, Any]:
    """The fields of a copy: the known ones, and copies of all others."""
    names = [field.name for field in dataclasses.fields(thing)]
    return known | {name: copy.deepcopy(getattr(thing, name)) for name in names if name not in known}


def _entries(model: DiskModel) -> dict[str, dict[str, int]]:
    return {path: directory.entries for path, directory in model.directories.items()}


def _changed_entries(before: Moment | None, moment: Moment) -> Iterator[tuple[str, str]]:
    """Names whose files have changed, each with its directory: added, removed, or now of another file."""
    old = _entries(before.model) if before else {}
    for path, entries in _entries(moment.model).items():
        were = old.get(path, {})
        yield from ((path, name) for name in entries.keys() | were.keys() if entries.get(name) != were.get(name))


def _changed_paths(before: Moment | None, moment: Moment, names: dict[int, set[str]]) -> Iterator[str]:
    """The paths at which a reader can find a change; `*` if it can find one anywhere.

    A changed file is given by each name that it ever had. `names` has these names, and gets the new ones.
    """
    model, old = moment.model, before.model if before else DiskModel()
    yield from model.directories.keys() - old.directories.keys()
    for path, name in _changed_entries(before, moment):
        yield path
        yield f"{path}/{name}"
        if (inode := model.directories[path].entries.get(name)) is not None:
            names.setdefault(inode, set()).add(f"{path}/{name}")
    for inode, file in model.files.items():
        if old.files.get(inode) is not file:
            yield from names.get(inode, ())
    locks = before.locks if before else {}
    yield from (path for path in moment.locks.keys() | locks.keys() if moment.locks.get(path) != locks.get(path))
    if before is not None and _rest_of(before) != _rest_of(moment):
        yield "*"


def _rest_of(moment: Moment) -> dict[str, Any]:
    return {name: value for name, value in moment.state.items() if name != "_model"}


def _digest(model: DiskModel) -> bytes:
    summary = hashlib.blake2b(digest_size=16)
    for path, directory in sorted(model.directories.items()):
        for name, inode in sorted(directory.entries.items()):
            view = model.files[inode].view()
            summary.update(f"{path}/{name}\0{len(view)}\0".encode() + view)
    return summary.digest()
