"""Short histories, in which a writer does each of the things that writers do."""

from __future__ import annotations

import errno
from collections.abc import Callable

from chiplog.testing.disk import Operation
from chiplog.testing.writer import History, Writer

HISTORIES: dict[str, History] = {}
"""All of them, by name."""

JOURNAL_BYTES = 8192


def history(function: History) -> History:
    """Make a history known by its name."""
    HISTORIES[function.__name__.replace("_", " ")] = function
    return function


def to_segment(kind: str, number: int = 0) -> Callable[[Operation], bool]:
    """Whether an operation is of a kind, and on a segment; the `number`th of them."""
    count = -1

    def matches(operation: Operation) -> bool:
        nonlocal count
        if operation.kind != kind or not operation.path.endswith((".log", ".dat", ".spare")):
            return False
        count += 1
        return count >= number

    return matches


# -- appending


@history
def append(writer: Writer) -> None:
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        writer.append(log, 20)
        log.sync()
        writer.append(log)


@history
def append_always(writer: Writer) -> None:
    with writer.appender(writer.stream(), sync="always") as log:
        writer.append(log, 20)
        writer.append(log)
        writer.append_many(log, 2)


@history
def batches(writer: Writer) -> None:
    with writer.appender(writer.stream()) as log:
        writer.append_many(log, 3)
        writer.append_many(log, 2, 20)


@history
def rolls(writer: Writer) -> None:
    with writer.appender(writer.stream(), segment_bytes=20) as log:
        for _ in range(5):
            writer.append(log)


@history
def reopened(writer: Writer) -> None:
    stream = writer.stream()
    for policy in ("os", "always", "os"):
        with writer.appender(stream, sync=policy, segment_bytes=60) as log:
            writer.append(log, 20)
            writer.append(log)


@history
def spare(writer: Writer) -> None:
    with writer.appender(writer.stream(), spare=True) as log:
        writer.append(log)
        log.roll()
        writer.append(log, readable=False)
        writer.append_many(log, 2, readable=False)
        log.wait_ready()
        writer.expose()
        log.roll()
        writer.append(log, readable=False)
        log.sync()
        writer.expose()


@history
def journal(writer: Writer) -> None:
    with writer.appender(writer.stream(), sync="always", journal_bytes=JOURNAL_BYTES) as log:
        writer.append(log)
        writer.append_many(log, 2)
        writer.append(log, 20)
        log.roll()
        writer.append(log)


# -- what is refused


@history
def refused_append(writer: Writer) -> None:
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        fault = writer.disk.fail(to_segment("write"), errno.EIO)
        writer.append(log)
        fault.stop()
        writer.append(log)


@history
def refused_halfway(writer: Writer) -> None:
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        refuse_after(writer, 10)
        writer.append(log, 20)
        fine_again(writer)
        writer.append(log, 20)
        writer.append(log)


@history
def refused_batch(writer: Writer) -> None:
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        refuse_after(writer, 58)  # two whole records, and the start of a third
        writer.append_many(log, 4)
        fine_again(writer)
        writer.append_many(log, 4)
        writer.append(log)


@history
def refused_batch_always(writer: Writer) -> None:
    with writer.appender(writer.stream(), sync="always") as log:
        writer.append(log)
        refuse_after(writer, 58)
        writer.append_many(log, 4)
        fine_again(writer)
        writer.append_many(log, 4)


@history
def full_disk(writer: Writer) -> None:
    disk = writer.disk
    with writer.appender(writer.stream(), segment_bytes=200) as log:
        writer.append(log)
        disk.capacity_bytes = sum(map(len, disk.contents().values())) + 60
        writer.append_many(log, 4)
        writer.append(log)
        disk.capacity_bytes = None
        writer.append_many(log, 4)
        writer.append_many(log, 3, 40)
        writer.append(log)


@history
def refused_roll(writer: Writer) -> None:
    with writer.appender(writer.stream(), segment_bytes=20) as log:
        writer.append(log)
        fault = writer.disk.fail(to_segment("write"), errno.ENOSPC)
        writer.append(log)
        fault.stop()
        writer.append(log)
        writer.append(log)


def refuse_after(writer: Writer, byte_count: int) -> None:
    """The next write to a segment takes so many bytes; the rest of it, and what comes then, finds no room."""
    writer.disk.fail(to_segment("write", 1), errno.ENOSPC)
    writer.disk.write_short(to_segment("write"), byte_count)


def fine_again(writer: Writer) -> None:
    for fault in writer.disk._faults:
        fault.stop()


# -- what is in doubt


@history
def failed_sync(writer: Writer) -> None:
    stream = writer.stream()
    log = writer.appender(stream, sync="always")
    writer.append(log)
    fault = writer.disk.fail(to_segment("sync"), errno.EIO)
    writer.append(log, 20)
    log.close()
    fault.stop()
    with writer.appender(stream, sync="always") as log:
        writer.append(log, 20)
        writer.append(log)


@history
def killed_in_a_record(writer: Writer) -> None:
    stream = writer.stream()
    log = writer.appender(stream)
    writer.append(log)
    with writer.killed(to_segment("write"), 15):
        writer.append(log, 20)
    with writer.appender(stream) as log:
        writer.append(log)
        writer.append(log, 20)


@history
def killed_in_a_batch(writer: Writer) -> None:
    stream = writer.stream()
    log = writer.appender(stream, sync="always")
    writer.append(log)
    with writer.killed(to_segment("write"), 58):
        writer.append_many(log, 4)
    with writer.appender(stream) as log:
        writer.append_many(log, 4)


@history
def killed_before_a_sync(writer: Writer) -> None:
    stream = writer.stream()
    log = writer.appender(stream, sync="always")
    writer.append(log)
    with writer.killed(to_segment("sync")):
        writer.append_many(log, 2)
    with writer.appender(stream) as log:
        writer.append(log)


@history
def killed_in_recovery(writer: Writer) -> None:
    stream = writer.stream()
    log = writer.appender(stream)
    writer.append(log)
    with writer.killed(to_segment("write"), 40):
        writer.append_many(log, 3)
    with writer.killed(to_segment("truncate")):
        writer.appender(stream)
    with writer.killed(to_segment("write"), 4):
        writer.append(writer.appender(stream), 20)
    with writer.appender(stream) as log:
        writer.append(log, 20)


@history
def killed_after_a_swap(writer: Writer) -> None:
    stream = writer.stream()
    log = writer.appender(stream, spare=True)
    writer.append(log)
    log.roll()
    writer.append_many(log, 2, readable=False)
    with writer.killed(lambda operation: operation.kind == "rename"):
        log.wait_ready()
    with writer.appender(stream) as log:
        writer.expose()
        writer.append(log)
