"""Short histories of everything that a writer can do."""

from __future__ import annotations

import errno

from forelog.testing.registry import history
from forelog.testing.writer import Writer, to_segment

JOURNAL_BYTES = 8192


# -- appending


@history
def append(writer: Writer) -> None:
    """Records one by one, and a sync in between."""
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        writer.append(log, 20)
        log.sync()
        writer.append(log)


@history
def append_always(writer: Writer) -> None:
    """Each append is synced before it returns."""
    with writer.appender(writer.stream(), sync="always") as log:
        writer.append(log, 20)
        writer.append(log)
        writer.append_many(log, 2)


@history
def batches(writer: Writer) -> None:
    """Several records in one call."""
    with writer.appender(writer.stream()) as log:
        writer.append_many(log, 3)
        writer.append_many(log, 2, 20)


@history
def rolls(writer: Writer) -> None:
    """A new segment for each record."""
    with writer.appender(writer.stream(), segment_bytes=20) as log:
        for _ in range(5):
            writer.append(log)


@history
def reopened(writer: Writer) -> None:
    """A log that is closed and opened again, by the same program or another."""
    stream = writer.stream()
    for policy in ("os", "always", "os"):
        with writer.appender(stream, sync=policy, segment_bytes=60) as log:
            writer.append(log, 20)
            writer.append(log)


@history
def spare(writer: Writer) -> None:
    """Segments are swapped: what is in the new one can be read when the old one is sealed."""
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
    """Syncs through a journal."""
    with writer.appender(writer.stream(), sync="always", journal_bytes=JOURNAL_BYTES) as log:
        writer.append(log)
        writer.append_many(log, 2)
        writer.append(log, 20)
        log.roll()
        writer.append(log)


# -- what is refused


@history
def refused_append(writer: Writer) -> None:
    """A write that fails, with nothing written."""
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        fault = writer.disk.fail(to_segment("write"), errno.EIO)
        writer.append(log)
        fault.stop()
        writer.append(log)


@history
def refused_halfway(writer: Writer) -> None:
    """A write that fails after half of its record, which is cut off."""
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        with writer.full_after(10):
            writer.append(log, 20)
        writer.append(log, 20)
        writer.append(log)


@history
def refused_batch(writer: Writer) -> None:
    """A batch without room for all of its records, which is cut off; then another of the same size."""
    with writer.appender(writer.stream()) as log:
        writer.append(log)
        with writer.full_after(58):  # two whole records, and the start of a third
            writer.append_many(log, 4)
        writer.append_many(log, 4)
        writer.append(log)


@history
def refused_batch_always(writer: Writer) -> None:
    """A batch without room for all of its records, with each append synced."""
    with writer.appender(writer.stream(), sync="always") as log:
        writer.append(log)
        with writer.full_after(58):
            writer.append_many(log, 4)
        writer.append_many(log, 4)


@history
def full_disk(writer: Writer) -> None:
    """A disk that is full in the middle of a batch, and has room again later."""
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
    """A segment that can't be started."""
    with writer.appender(writer.stream(), segment_bytes=20) as log:
        writer.append(log)
        fault = writer.disk.fail(to_segment("write"), errno.ENOSPC)
        writer.append(log)
        fault.stop()
        writer.append(log)
        writer.append(log)


# -- what is in doubt


@history
def failed_sync(writer: Writer) -> None:
    """A sync that fails, so that the disk's content is unknown, and a log that is opened again."""
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
    """A process that is killed in the middle of a write, and another that recovers."""
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
    """A process that is killed in the middle of a batch with some whole records."""
    stream = writer.stream()
    log = writer.appender(stream, sync="always")
    writer.append(log)
    with writer.killed(to_segment("write"), 58):
        writer.append_many(log, 4)
    with writer.appender(stream) as log:
        writer.append_many(log, 4)


@history
def killed_before_a_sync(writer: Writer) -> None:
    """A process that is killed when it has written and not synced."""
    stream = writer.stream()
    log = writer.appender(stream, sync="always")
    writer.append(log)
    with writer.killed(to_segment("sync")):
        writer.append_many(log, 2)
    with writer.appender(stream) as log:
        writer.append(log)


@history
def killed_in_recovery(writer: Writer) -> None:
    """A process that is killed while it recovers, and another one while it appends."""
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
    """A process that is killed before the segment that it appends to has a name."""
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
