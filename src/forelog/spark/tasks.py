"""Tasks of a query, as Spark sends them to its executors.

A task is a slice of a log. Where Java can read it, it has a plan: what a program has to know that reads whole,
right records from files that are as they were when the slice was planned. At anything else Java stops, and Python
reads the rest of the slice (`resumed`).
"""

from __future__ import annotations

import pickle
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql.datasource import InputPartition

from forelog.errors import DataLoss
from forelog.kernel.types import CLOCK_MAX, CLOCK_MIN, TIME_MAX, TIME_MIN
from forelog.log.directory.end import End, read_end
from forelog.log.directory.watermark import Mark, read_mark
from forelog.log.position import Position
from forelog.log.seek import TimeOrder
from forelog.spark.options import ReadOptions
from forelog.spark.planning import Log, Slice
from forelog.spark.totals import Values

__all__ = [
    "Bundle", "Task", "bundled", "bundles_of", "must_stay", "restored", "resumed", "tasks_in", "tasks_of",
]  # fmt: skip

_ROWS_MAX = 8192
_CODEC = "records"
_TASKS_MANY, _TASKS_LEAST = 256, 64
_OPEN_COST_BYTES = 1 << 18  # as much can be read in the time that it takes to open a log


@dataclass
class Task(InputPartition):
    """A slice for one task; None where there is nothing to read."""

    piece: Slice | None
    plan: dict[str, Any] | None = field(default=None, compare=False)
    """What Java needs to know about the task."""
    segments: tuple[int, ...] = ()
    """Segments that must still exist when the task reads."""

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (self.plan, pickle.dumps((self.piece, self.segments)))

    @property
    def byte_count(self) -> int:
        """The bytes of log that it reads."""
        if self.plan is not None:
            return int(self.plan["bytes"])
        return 0 if self.piece is None else max(self.piece.stop.offset - self.piece.start.offset, 0)

    def check(self) -> None:
        """Raise DataLoss if a segment is gone that was planned. The caller holds the read lock."""
        if self.piece is None:
            return
        directory = self.piece.log.stream().directory
        for number in self.segments:
            if not directory.has(number):
                raise DataLoss(
                    f"{directory.segment_path(number)} was removed after this batch was planned and before it was "
                    "read: its records are missing. Let retention keep segments for longer, or continue without "
                    "them with failOnDataLoss=false"
                )


@dataclass
class Bundle(InputPartition):
    """Small tasks, one after the other in one task of Spark, which costs much more than to open a log."""

    tasks: tuple[Task, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return bundled, ([pickle.dumps(task) for task in self.tasks],)


def bundled(pickled: list[bytes]) -> Bundle:
    """A bundle in a Python worker. Java reads the same pickle."""
    return Bundle(tuple(map(pickle.loads, pickled)))


def bundles_of(tasks: Sequence[Task], options: ReadOptions) -> Sequence[Task | Bundle]:
    """Tasks of about `partitionBytes` each, if there are many small ones."""
    if len(tasks) <= _TASKS_MANY:
        return tasks
    known = [task for task in tasks if task.piece is None]
    tasks = [task for task in tasks if task.piece is not None]
    costs = [task.byte_count + _OPEN_COST_BYTES for task in tasks]
    most = min(options.partition_bytes, sum(costs) // max(_TASKS_LEAST, options.partitions_min))
    groups: list[list[Task]] = []
    room = 0
    for task, cost in zip(tasks, costs, strict=True):
        if cost > room or not groups:
            groups.append([])
            room = most
        groups[-1].append(task)
        room -= cost
    return [*known, *(group[0] if len(group) == 1 else Bundle(tuple(group)) for group in groups)]


def tasks_in(partition: InputPartition) -> Sequence[Task]:
    """The tasks that have something to read."""
    tasks = partition.tasks if isinstance(partition, Bundle) else (partition,)
    return [task for task in tasks if isinstance(task, Task) and task.piece is not None]


def restored(_plan: dict[str, Any] | None, pickled: bytes) -> Task:
    """A task in a Python worker. Java reads the same pickle, and takes the plan."""
    piece, segments = pickle.loads(pickled)
    return Task(piece, segments=segments)


def resumed(pickled: bytes, segment: int, offset: int) -> Task:
    """The rest of a task that Java has read up to a position."""
    task: Task = pickle.loads(pickled)
    assert task.piece is not None
    rest = tuple(number for number in task.segments if number >= segment)
    return Task(replace(task.piece, start=Position(segment, offset), at_record=True), segments=rest)


def must_stay(tasks: Sequence[Task]) -> list[Task]:
    """These tasks, changed to fail if a segment of theirs is removed before they have read it."""
    listed: dict[str, list[int]] = {}
    for task in tasks:
        piece = task.piece
        if piece is None:
            continue
        if piece.log.path not in listed:
            listed[piece.log.path] = piece.log.stream().directory.numbers()
        numbers = listed[piece.log.path]
        last = piece.stop.segment if piece.stop.offset else piece.stop.segment - 1
        task.segments = tuple(numbers[bisect_left(numbers, piece.start.segment) : bisect_right(numbers, last)])
    return list(tasks)


def tasks_of(slices: Sequence[Slice], options: ReadOptions, known: Values = ()) -> list[Task]:
    """A task for each slice, and one for aggregates that are `known` already.

    There is at least one, because Spark calls the reader without a task, too.
    """
    if not options.java:
        return [Task(piece) for piece in slices] or [Task(None)]
    logs: dict[str, _Files] = {}
    tasks = [Task(None, {"bytes": 0, "known": list(known)})] if known else []
    for piece in slices:
        if piece.log.path not in logs:
            logs[piece.log.path] = _Files(piece.log)
        tasks.append(Task(piece, logs[piece.log.path].plan(piece, options)))
    return tasks or [Task(None, {"bytes": 0})]


class _Files:
    """The files of a log, as they are while a query is planned."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._directory = log.stream().directory

    @cached_property
    def _numbers(self) -> list[int]:
        return self._directory.numbers()

    @cached_property
    def _indexed(self) -> dict[int, int]:
        return self._directory.indexed_sizes()

    @cached_property
    def _mark(self) -> Mark | None:
        return read_mark(self._directory)

    @cached_property
    def _end(self) -> End:
        return read_end(self._directory)

    @cached_property
    def _order(self) -> TimeOrder:
        return TimeOrder(self._directory)

    def plan(self, piece: Slice, options: ReadOptions) -> dict[str, Any]:
        """What Java has to know of a slice; without a folder if only Python can read it."""
        parts = self._parts(piece)
        plan: dict[str, Any] = {"bytes": sum(max(part[4] - part[3], 0) for part in parts)}
        if not self._readable(piece, parts, options):
            return plan
        numbers, sizes, identities, starts, stops = (list(column) for column in zip(*parts, strict=True))
        return plan | {
            "log": piece.log.name,
            "folder": piece.log.path.rstrip("/"),
            "header": piece.log.format.header(),
            "numbers": _packed(numbers),
            "sizes": _packed(sizes),
            "identities": _packed(identities),
            "starts": _packed(starts),
            "stops": _packed(stops),
            "since": TIME_MIN if piece.since_ns is None else piece.since_ns,
            "until": TIME_MAX if piece.until_ns is None else piece.until_ns,
            "ascends": piece.until_ns is not None and all(map(self._order.holds, numbers)),
            "rows": min(options.batch_rows, _ROWS_MAX, options.limit or _ROWS_MAX),
        }

    def _parts(self, piece: Slice) -> list[tuple[int, int, int, int, int]]:
        """Number, size and inode of each segment of a slice, and the part of it that is the slice's."""
        directory, parts = self._directory, []
        head = directory.format.header_bytes
        low, high = piece.start.segment, piece.stop.segment
        for number in self._numbers:
            if not low <= number <= high or (number == high and piece.stop.offset <= head):
                continue
            found = directory.files.stat(directory.segment_path(number))
            if found is None:
                continue  # cleaned away since it was listed
            size, identity = found
            start = max(piece.start.offset if number == low else 0, head)
            stop = piece.stop.offset if number == high else size
            inode = identity[1] if isinstance(identity, tuple) else 0
            parts.append((number, size, inode, start, stop))
        return parts

    def _readable(self, piece: Slice, parts: list[tuple[int, int, int, int, int]], options: ReadOptions) -> bool:
        """Whether all of it is records of this format in files that nobody has rewritten, as far as is known."""
        bounds = [bound for bound in (piece.since_ns, piece.until_ns) if bound is not None]
        return (
            self._log.format.name == "captain"
            and options.codec == _CODEC
            and not options.defects
            and bool(parts)
            and all(CLOCK_MIN < bound < CLOCK_MAX for bound in bounds)
            and all(self._as_written(*part, last=part[0] == piece.stop.segment) for part in parts)
        )

    def _as_written(self, number: int, size: int, _inode: int, start: int, stop: int, *, last: bool) -> bool:
        mark = self._mark
        if not start <= stop <= size or self._indexed.get(number, 0) > size:
            return False
        if mark is not None and mark.closed and mark.segment == number and mark.offset > size:
            return False
        return last or self._end.segment != number


def _packed(values: list[int]) -> bytes:
    """Big-endian, 64 bits each."""
    column = array("q", values)
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()
