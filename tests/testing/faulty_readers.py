"""Readers that do wrong on purpose, each in one way: the explorer must find every one of them."""

from __future__ import annotations

from forelog import Position, Stream
from forelog.testing import Sight

HEADER_BYTES = 8


def _names(sight: Sight) -> list[str]:
    """The segments that one listing has."""
    try:
        return sorted(name for name in sight.disk.list_dir(sight.path) if name.endswith(".log"))
    except FileNotFoundError:
        return []


def _records(sight: Sight, name: str) -> list[tuple[Position, bytes]]:
    """The whole records that a segment's file has now, whether they count or not."""
    try:
        file = sight.disk.open_read(f"{sight.path}/{name}")
    except FileNotFoundError:
        return []
    buffer = bytearray(file.size())
    data = bytes(buffer[: file.read_into(memoryview(buffer), 0)])
    scan = sight.format.scan(data, HEADER_BYTES, len(data), 0, 1000)
    number = int(name.removesuffix(".log"))
    return [
        (Position(number, offset), data[start:end])
        for offset, start, end in zip(scan.offsets, scan.starts, scan.ends, strict=True)
    ]


def trusts_files(sight: Sight) -> None:
    """Takes for the log what the files have, and one listing for all that there is."""
    for name in _names(sight):
        for record in _records(sight, name):
            sight.see(record)


def trusts_its_place(sight: Sight) -> None:
    """Goes on, after each pause, with what lies behind the last position that it saw."""
    last = Position(0, 0)
    while True:
        for name in _names(sight):
            for position, payload in _records(sight, name):
                if position > last:
                    sight.see((position, payload))
                    last = position
        if not sight.pause():
            return


def forgets_its_place(sight: Sight) -> None:
    """Begins again after each pause, without a word."""
    while True:
        trusts_files(sight)
        if not sight.pause():
            return


def ends_too_early(sight: Sight) -> None:
    """Never sees the last record."""
    records = [record for name in _names(sight) for record in _records(sight, name)]
    for record in records[:-1]:
        sight.see(record)


def counts_bytes_wrongly(sight: Sight) -> None:
    """Gives positions that are one too large."""
    for name in _names(sight):
        for position, payload in _records(sight, name):
            sight.see((Position(position.segment, position.offset + 1), payload))


def invents(sight: Sight) -> None:
    """Sees a record that nobody wrote."""
    trusts_files(sight)
    sight.see((Position(9, HEADER_BYTES), b"made up"))


def spins(sight: Sight) -> None:
    """Looks until there are four records, and doesn't let the writer go on."""
    while len([record for name in _names(sight) for record in _records(sight, name)]) < 4:
        sight.disk.stat(sight.path)


def keeps_the_lock(sight: Sight) -> None:
    """Waits for more with the read lock in its hands."""
    lock = sight.disk.lock("log/read.lock", exclusive=False, timeout=None)
    while sight.pause():
        pass
    lock.release()


def waits_for_itself(sight: Sight) -> None:
    """Takes a lock alone that it has already."""
    sight.disk.lock("log/read.lock", exclusive=False, timeout=None)
    sight.disk.lock("log/read.lock", exclusive=True, timeout=None)


def leaks(sight: Sight) -> None:
    """Opens what it has listed, and doesn't think of what may have happened in between."""
    for name in _names(sight):
        sight.disk.open_read(f"{sight.path}/{name}").close()


def writes(sight: Sight) -> None:
    """Appends."""
    Stream(sight.path, files=sight.disk).appender()
