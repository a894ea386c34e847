"""A disk as a reader finds it beside a writer.

`SeenDisk` shows the moments of a timeline, one at a time. Before each operation of the reader a plan may have the
writer go on: then a size is stale when it is used, and a file grows, shrinks, is replaced or is gone between two
looks. Two operations take time themselves. A listing has every name that is there from its beginning to its end,
and any of those that come, go or are renamed onto in between. A read may have some old bytes and some new ones.

A reader holds locks as any process does. While it has one, the writer stops at the moment at which it would have
to wait for it. Where the writer has one, the reader waits, and the writer goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from forelog.errors import LockTimeout, LogNotFound
from forelog.files import File, Lock
from forelog.log.position import Position, Record
from forelog.log.stream import Stream
from forelog.testing.disk import CrashDisk, Fault, _MemoryFile
from forelog.testing.ledger import Ledger
from forelog.testing.schedule import PARTS, Plan, Step, Switch
from forelog.testing.timeline import Timeline, conflicts
from forelog.testing.writer import Recording

STEPS_MAX = 3000
"""A reader that takes more steps than this without seeing anything or pausing counts as spinning."""
_WORDS_BYTES = 64
_CHANGING = frozenset(
    {"make_dir", "sync_dir", "open_append", "open_update", "open_shared", "rename", "remove"}
    | {"write", "write_at", "truncate", "sync", "store"}
)


class Stuck(BaseException):
    """A reader that doesn't end. Not an Exception, so that no handler catches it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class SeenDisk(CrashDisk):
    """A disk that moves through the moments of a timeline, by a plan."""

    def __init__(self, timeline: Timeline, plan: Plan) -> None:
        super().__init__()
        self.timeline = timeline
        self.plan = plan
        self.moment = plan.start
        self.steps: list[Step] = []
        self.switches: list[Switch] = []
        self.held: dict[str, list[_SeenLock]] = {}
        self.quiet_steps = 0
        self._show()

    # -- the writer advances

    def step(self, kind: str, path: str) -> Switch | None:
        """Count a step of the reader, and ask the plan how far the writer gets."""
        number = len(self.steps)
        step = Step(number, kind, path, self.moment)
        self.steps.append(step)
        self.quiet_steps += 1
        if self.quiet_steps > STEPS_MAX:
            raise Stuck(
                "spins", f"{STEPS_MAX} steps, and none of them gets any further; the last is {kind} {path}"
            )
        switch = self.plan.switch(step, self.timeline)
        if switch is not None:
            switch = switch._replace(to=self.reachable(switch.to))
        return switch if switch is not None and switch.to > self.moment else None

    def go(self, switch: Switch) -> None:
        """Let the writer advance."""
        self.switches.append(switch)
        self.moment = switch.to
        self._show()

    def wait(self, to: int) -> None:
        """Wait for the writer, without asking the plan."""
        self.moment = to
        self._show()

    def reachable(self, to: int) -> int:
        """How far the writer gets without a lock that the reader holds."""
        for number in range(self.moment + 1, min(to, self.timeline.last) + 1):
            locks = self.timeline.moments[number].locks
            for path, held in self.held.items():
                if any(conflicts(locks.get(path), lock.exclusive) for lock in held):
                    return number - 1
        return min(to, self.timeline.last)

    def _show(self) -> None:
        vars(self).update(self.timeline.moments[self.moment].state)

    # -- operations

    def _call(self, kind: str, path: str, byte_count: int = 0) -> Fault:
        if kind in _CHANGING:
            raise OSError(errno.EROFS, "a reader must not change anything", path)
        switch = self.step(kind, path)
        if switch is not None:
            self.go(switch._replace(seen=None))
        return super()._call(kind, path, byte_count)

    def list_dir(self, path: str) -> list[str]:
        with self._mutex:
            begin, switch = self.moment, self.step("list_dir", path)
            if switch is None or switch.seen is None:
                if switch is not None:
                    self.go(switch)
                return list(self._entries(path))
            listed = set(self._entries(path))
            changed = self.timeline.changed_names(path, begin, switch.to)
            self.go(switch)
            return sorted(
                (listed - set(changed)) | {name for bit, name in enumerate(changed) if switch.seen >> bit & 1}
            )

    def open_read(self, path: str) -> File:
        with self._mutex:
            self._call("open_read", path)
            return _SeenFile(self, path, self._inode(path))

    def lock(self, path: str, *, exclusive: bool, timeout: float | None) -> Lock:
        with self._mutex:
            self._call("lock", path)
            if any(exclusive or lock.exclusive for lock in self.held.get(path, ())):
                raise Stuck("waits", f"for {path}, which it has itself")
            if conflicts(self.timeline.moments[self.moment].locks.get(path), exclusive):
                free = self.timeline.next_free(path, exclusive, self.moment)
                if timeout == 0 or (free is None and timeout is not None):
                    raise LockTimeout(f"{path} is locked by the writer")
                if free is None or self.reachable(free) < free:
                    raise Stuck("waits", f"for {path}, which the writer never lets go of")
                self.wait(free)
            lock = _SeenLock(self, path, exclusive)
            self.held.setdefault(path, []).append(lock)
            return lock


class _SeenFile(_MemoryFile):
    """An open file, whose bytes may change while they are read."""

    _disk: SeenDisk

    def read_into(self, buffer: memoryview, offset: int) -> int:
        disk = self._disk
        with disk._mutex:
            switch = disk.step("read", self._path)
            if switch is None or switch.seen is None:
                if switch is not None:
                    disk.go(switch)
                return self._copy(buffer, offset)
            before = bytearray(len(buffer))
            count = self._copy(memoryview(before), offset)
            disk.go(switch)
            after = bytearray(len(buffer))
            later = self._copy(memoryview(after), offset)
            return _mix(buffer, before[:count], after[:later], switch.seen)

    def _copy(self, buffer: memoryview, offset: int) -> int:
        model = self._model()
        count = max(min(len(buffer), model.sizes[-1] - offset), 0)
        buffer[:count] = bytes(model.content[offset : offset + count]).ljust(count, b"\0")
        return count


def _mix(buffer: memoryview, before: bytearray, after: bytearray, late: int) -> int:
    """Fill the buffer from two moments, in eight parts: a part is late or early. Returns the number of bytes.

    A read goes from front to back, so everything after a late part is late too. A few words are an exception:
    they are copied in any order.
    """
    count = min(len(after), len(buffer))
    buffer[:count] = after[:count]
    size = -(-count // PARTS) or 1
    for part in range(PARTS):
        low, high = part * size, min((part + 1) * size, count, len(before))
        is_late = late >> part & 1 if count <= _WORDS_BYTES else late & ((2 << part) - 1)
        if low < high and not is_late:
            buffer[low:high] = before[low:high]
    return count


class _SeenLock(Lock):
    def __init__(self, disk: SeenDisk, path: str, exclusive: bool) -> None:
        self._disk = disk
        self._path = path
        self.exclusive = exclusive

    def release(self) -> None:
        held = self._disk.held.get(self._path, [])
        if self in held:
            held.remove(self)


class Seen(NamedTuple):
    """A record that a reader got."""

    position: Position
    payload: bytes
    moment: int
    """The moment at which the reader got it."""


class Look:
    """What a reader sees from one pause to the next."""

    def __init__(self, begin: int, *, anew: bool) -> None:
        self.begin = begin
        self.end = begin
        self.anew = anew
        """Whether it starts from the first record again, or continues after the look before."""
        self.records: list[Seen] = []
        self.whole = False
        """Whether the reader has read everything that was there."""


class Sight:
    """What a reader gets: the disk, the log on it, and methods that record what it sees.

    >>> def reader(sight):
    ...     with sight.stream().cursor() as cursor:
    ...         for record in cursor:
    ...             sight.see(record)
    """

    def __init__(self, recording: Recording, plan: Plan) -> None:
        self.disk = SeenDisk(recording.timeline, plan)
        self.ledger: Ledger = recording.ledger
        self.path = recording.path
        self.format = recording.format
        self.looks = [Look(self.moment, anew=True)]
        self.problems: list[tuple[str, str]] = []
        """What the reader found wrong: kind and description."""
        self.from_position: Position | None = None
        """The position where it starts, if it has one."""
        self.from_number = 0
        """The first entry of the ledger that it must see, if it starts at a time."""
        self.sees_all = True
        """Whether it reports every record; False if it only counts, or checks something else."""

    @property
    def moment(self) -> int:
        """The current moment of the writer."""
        return self.disk.moment

    def stream(self) -> Stream:
        """The log that the writer writes, for reading."""
        return Stream(self.path, format=self.format, files=self.disk)

    def see(self, record: Record | tuple[Position, bytes]) -> None:
        """Record that the reader got a record, or a position and a payload."""
        position, payload = (record.position, record.payload) if isinstance(record, Record) else record
        self.looks[-1].records.append(Seen(Position(*position), bytes(payload), self.moment))
        self.disk.quiet_steps = 0

    def anew(self) -> None:
        """Begin a look that starts from the first record again."""
        if self.looks[-1].records:
            self.looks.append(Look(self.looks[-1].begin, anew=True))
        self.looks[-1].anew = True

    def problem(self, kind: str, text: str) -> None:
        """Record something that the reader found wrong."""
        self.problems.append((kind, text))

    def pause(self) -> bool:
        """Call this when the reader has read everything and holds no lock. The writer advances; False if it has
        ended.

        What the reader sees until its next pause must include everything acknowledged before this pause ended.
        """
        self.finish()
        disk = self.disk
        disk.quiet_steps = 0
        if self.moment == disk.timeline.last:
            return False
        switch = disk.step("pause", "")
        if switch is not None:
            disk.go(switch._replace(seen=None))
        elif disk.plan.over:
            to = disk.reachable(disk.timeline.last)
            if to == self.moment:
                return False
            disk.wait(to)
        self.looks.append(Look(self.moment, anew=False))
        return True

    def finish(self) -> None:
        """End the look."""
        look = self.looks[-1]
        look.end, look.whole = self.moment, self.sees_all
        if held := sorted(path for path, locks in self.disk.held.items() if locks):
            self.problem("locked", f"holds {' and '.join(held)} while it waits")

    def describe(self) -> list[str]:
        """Every step and the moment that it saw, for finding the cause of a violation."""
        lines = []
        for before, step in zip([None, *self.disk.steps], self.disk.steps, strict=False):
            if before is None or before.moment != step.moment:
                lines.append(f"-- {step.moment}: {self.disk.timeline.moments[step.moment].cause}")
            lines.append(f"{step.number:5} {step.kind} {os.path.basename(step.path)}")
        return lines


def opened(sight: Sight, open_log: Callable[[], Any]) -> Any:
    """Call a function that opens the log, once there is a log. Returns its result, or None if no log appears."""
    while True:
        try:
            return open_log()
        except LogNotFound:
            if sight.ledger.readable(sight.looks[-1].begin):
                raise
            if not sight.pause():
                return None
