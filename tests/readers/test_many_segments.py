"""A follower of a log with 50,000 segments: what it costs is counted in listings of the folder, not in seconds."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from forelog import Stream
from forelog.files import OSFiles
from forelog.formats import Captain

SEGMENTS = 50_000
RECORDS = 60
LISTINGS_MAX = 2
WAIT_SECONDS = 30


class CountingFiles(OSFiles):
    """The operating system's files, with a count of listings."""

    def __init__(self) -> None:
        self.listings = 0

    def list_dir(self, path: str) -> list[str]:
        self.listings += 1
        return super().list_dir(path)


@pytest.fixture(scope="module")
def log():
    """Written file by file, in memory where that can be: an appender would sync each of them."""
    fmt = Captain()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="forelog-many-", dir=memory) as folder:
        for number in range(1, SEGMENTS + 1):
            fd = os.open(Path(folder, fmt.segment_name(number)), os.O_WRONLY | os.O_CREAT, 0o644)
            os.write(fd, fmt.header() + fmt.encode(b"old", number))
            os.close(fd)
        yield folder


@pytest.mark.parametrize("segment_bytes", [1 << 20, 200], ids=["one segment", "many segments"])
def test_a_follower_does_not_list_the_folder_at_each_wake(log, segment_bytes):
    files = CountingFiles()
    with (
        Stream(log).appender(segment_bytes=segment_bytes) as appender,
        Stream(log, files=files).cursor(start=appender.position, follow=True) as cursor,
    ):
        first = appender.append(b"first").segment
        assert cursor.read(timeout=WAIT_SECONDS).payload == b"first"
        files.listings = 0
        for number in range(RECORDS):
            last = appender.append(b"%d" % number).segment
            assert cursor.read(timeout=WAIT_SECONDS).payload == b"%d" % number
        assert files.listings <= LISTINGS_MAX
        assert (last > first + 5) == (segment_bytes == 200)


def test_a_follower_with_nothing_to_read_does_not_list_the_folder(log):
    files = CountingFiles()
    with (
        Stream(log).appender() as appender,
        Stream(log, files=files).cursor(start=appender.position, follow=True) as cursor,
    ):
        assert cursor.read(timeout=0) is None
        files.listings = 0
        for _ in range(RECORDS):
            assert cursor.read(timeout=0.001) is None
        assert files.listings <= LISTINGS_MAX
