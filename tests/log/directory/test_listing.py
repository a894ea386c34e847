"""Which segments there are, on disks whose listings leave out what any real one may leave out."""

from __future__ import annotations

import os
import random
import threading
from contextlib import closing

import pytest

from forelog import Stream
from forelog.files import OSFiles
from forelog.formats import Captain, Format
from forelog.formats.messages import Messages
from forelog.log.directory.directory import Directory
from forelog.log.walk import Walk
from forelog.testing import CrashDisk


class Holey(CrashDisk):
    """A disk on which a listing takes as long as `meanwhile`, and may lack what that changes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.meanwhile = lambda: None
        self.listings = 0

    def list_dir(self, path):
        self.listings += 1
        before = dict(super()._entries(path)) if path in self._model.directories else {}
        during, self.meanwhile = self.meanwhile, lambda: None
        during()
        names = super().list_dir(path)
        after = self._entries(path)
        return [
            name for name in {*names, *before} if before.get(name) == after.get(name) or self.random.random() < 0.5
        ]

    def changed(self, path):
        return None


def test_a_listing_that_lacks_a_segment_is_not_believed():
    for seed in range(200):
        disk = Holey(seed)
        log = Stream("log", files=disk).appender(segment_bytes=20)
        log.append(b"x" * 20)
        acknowledged: list[int] = []

        def roll(log=log, acknowledged=acknowledged):
            for _ in range(6):
                acknowledged.append(log.append(b"x" * 20).segment)

        disk.meanwhile = roll
        numbers = Stream("log", files=disk).numbers()
        assert numbers == list(range(1, numbers[-1] + 1)), f"seed {seed}: a hole"


@pytest.mark.parametrize("fmt", ["captain", "messages"])
def test_a_follower_gets_every_record_whatever_listings_leave_out(fmt):
    for seed in range(60):
        disk = Holey(seed)
        stream = Stream("log", files=disk, format=fmt)
        log = stream.appender(segment_bytes=60)
        written: list[bytes] = []
        got: list[bytes] = []

        def write(log=log, written=written, count=3):
            for _ in range(count):
                payload = b"%06d" % len(written) + b"x" * 40
                log.append(payload if fmt == "captain" else (b"t", payload, b"\x80"))
                written.append(payload)

        write()
        with stream.cursor(follow=True) as cursor:
            for _ in range(30):
                disk.meanwhile = write
                while (record := cursor.read(0)) is not None:
                    got.append(record.payload[-46:] if fmt == "captain" else record.payload)
                disk.meanwhile()
                disk.meanwhile = lambda: None
            while (record := cursor.read(0)) is not None:
                got.append(record.payload[-46:] if fmt == "captain" else record.payload)
        assert got == written, f"seed {seed}"


def test_what_a_rename_hides_from_a_listing_is_looked_for_by_name():
    disk = Holey(1)
    stream = Stream("log", files=disk)
    with stream.appender() as log:
        for number in range(6):
            log.append_many([b"%d" % number, b"again"])
            log.roll()

    def rewrite():
        with stream.cleaner() as cleaner:
            cleaner.clean(lambda _, record: record.payload == b"again")

    for seed in range(50):
        disk.random.seed(seed)
        disk.meanwhile = rewrite
        assert Stream("log", files=disk).numbers() == [1, 2, 3, 4, 5, 6, 7]


def test_while_nothing_changes_a_directory_is_listed_once(tmp_path, monkeypatch):
    listings = []

    class Counting(OSFiles):
        def list_dir(self, path):
            listings.append(path)
            return super().list_dir(path)

    stream = Stream(tmp_path / "log", files=Counting())
    with stream.appender(segment_bytes=20) as log:
        log.append_many([b"x" * 20])
        log.append(b"y" * 20)
    long_ago = 1_600_000_000
    os.utime(tmp_path / "log", (long_ago, long_ago))
    listings.clear()
    for _ in range(10):
        assert stream.numbers() == [1, 2]
    assert len(listings) <= 3
    (tmp_path / "log" / "000000003.log").write_bytes(Captain().header())
    assert stream.numbers() == [1, 2, 3]


def test_a_follower_at_the_end_lists_nothing(tmp_path):
    listings = []

    class Counting(OSFiles):
        def list_dir(self, path):
            listings.append(path)
            return super().list_dir(path)

    stream = Stream(tmp_path, files=Counting())
    with stream.appender(segment_bytes=1000) as log, stream.cursor(follow=True) as cursor:
        log.append(b"first")
        assert cursor.read(0).payload == b"first"
        assert cursor.read(0) is None
        listings.clear()
        for number in range(200):
            log.append(b"%d" % number)
            assert cursor.read(0).payload == b"%d" % number
            assert cursor.read(0) is None
        assert len(stream.numbers()) > 3
        assert listings in ([stream.path] * 2, [stream.path] * 3)  # those of numbers(), just now


def test_listings_of_a_growing_folder_on_a_real_disk_have_no_holes(tmp_path):
    directory = Directory(OSFiles(), str(tmp_path), Captain())
    stop = threading.Event()

    def grow():
        for number in range(1, 6000):
            if stop.is_set():
                return
            os.close(os.open(f"{tmp_path}/{number:09d}.log", os.O_CREAT | os.O_WRONLY))

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        while thread.is_alive():
            numbers = directory.numbers()
            assert numbers == list(range(1, len(numbers) + 1))
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("closed", [False, True])
def test_the_first_segment_comes_after_none(tmp_path, closed):
    stream = Stream(tmp_path)
    log = stream.appender()
    log.append(b"x")
    if closed:
        log.close()
    directory = Directory(OSFiles(), str(tmp_path), Captain())
    assert [directory.following(number) for number in (-1, 0, 1)] == [1, 1, None]
    with closing(Walk(directory)) as walk:
        assert sum(block.last - block.first for block in walk) == 1


def test_the_next_file_of_messages_is_found_by_the_mark_or_by_listing(tmp_path):
    fmt: Format = Messages()
    directory = Directory(OSFiles(), str(tmp_path), fmt)
    stream = Stream(tmp_path, format="messages")
    with stream.appender(segment_bytes=1) as log:
        segments = [log.append(fmt.item("t", b"%d" % number)).segment for number in range(5)]
        assert [directory.following(segment) for segment in segments] == [*segments[1:], None]
    assert [directory.following(segment) for segment in [0, *segments]] == [*segments, None]
