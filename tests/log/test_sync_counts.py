"""How many syncs each step takes: those of the table in docs/durability.md, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from forelog import Stream
from forelog.log.appender import Appender
from forelog.testing import CrashDisk

SEGMENT, NEXT, FOLDER = "000000001.log", "append.new", "log"
MARKS, JOURNAL, SPARE = "append.synced", "append.journal", "append.spare"


class Counted:
    """A log on a disk in memory, and which files each step has synced."""

    def __init__(self, **options: Any) -> None:
        self.disk = CrashDisk()
        self.options = options
        self.seen = 0

    def open(self) -> Appender:
        return Stream("log", files=self.disk).appender(**self.options)

    def synced(self) -> list[str]:
        events, self.seen = self.disk.events[self.seen :], len(self.disk.events)
        return [event.path.rpartition("/")[2] for event in events if event.kind.startswith("sync")]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, []),
        ({"sync": "always"}, []),
        ({"sync": "always", "journal_bytes": 4096}, [JOURNAL, FOLDER]),
        ({"spare": True}, [SPARE, FOLDER]),
    ],
)
def test_a_new_log_takes_three_and_one_that_was_closed_two(options: dict[str, Any], more: list[str]) -> None:
    counted = Counted(**options)
    counted.open().close()
    assert counted.synced() == [MARKS, NEXT, FOLDER, *more]
    counted.open().close()
    assert counted.synced() == [MARKS, MARKS, *more]


def test_closing_takes_one_if_there_is_something_to_sync() -> None:
    counted = Counted()
    log = counted.open()
    log.append(b"one")
    counted.synced()
    log.close()
    assert counted.synced() == [SEGMENT]


@pytest.mark.parametrize(("journal_bytes", "expected"), [(0, SEGMENT), (1 << 16, JOURNAL)])
def test_an_append_takes_one_under_always_however_many_records_it_has(journal_bytes: int, expected: str) -> None:
    counted = Counted(sync="always", journal_bytes=journal_bytes)
    with counted.open() as log:
        counted.synced()
        log.append(b"one")
        assert counted.synced() == [expected]
        log.append_many([b"two"] * 100)
        assert counted.synced() == [expected]


def test_a_roll_takes_three_and_one_less_if_all_is_synced_already() -> None:
    for sync, before in (("os", [SEGMENT]), ("always", [])):
        counted = Counted(sync=sync)
        with counted.open() as log:
            log.append(b"one")
            counted.synced()
            log.roll()
            assert counted.synced() == [*before, NEXT, FOLDER]


def test_a_roll_with_a_spare_leaves_all_of_them_to_its_thread() -> None:
    counted = Counted(spare=True)
    with counted.open() as log:
        log.append(b"one")
        counted.synced()
        log.roll()
        log.wait_ready()
        assert counted.synced() == [SEGMENT, FOLDER, SPARE, FOLDER]


def test_opening_after_a_kill_syncs_what_may_not_be_on_disk() -> None:
    counted = Counted()
    with counted.open() as log:
        log.append(b"one")
        counted.disk = counted.disk.killed()
    counted.seen = 0
    counted.open().close()
    assert counted.synced() == [MARKS, MARKS, SEGMENT]
