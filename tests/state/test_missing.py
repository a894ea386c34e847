"""A log of which files are gone: what is left of it must not pass for the state."""

from __future__ import annotations

import pytest

from forelog.errors import CorruptRecord
from forelog.state import PersistentDict
from forelog.testing import CrashDisk
from tests.state.test_state_log import App, User, restored


def long_log(path, keys: int = 400) -> list:
    """A dict of several segments in one generation; their files."""
    with PersistentDict(str(path), segment_bytes=2000, rotate_bytes=1 << 30) as data:
        for number in range(keys):
            data[number] = number
    return sorted(path.glob("*.log"))


def test_a_log_whose_middle_is_missing_is_refused_and_stays_as_it_is(tmp_path):
    segments = long_log(tmp_path / "state")
    assert len(segments) > 3
    segments[1].rename(tmp_path / "lost")
    for _ in range(2):
        with pytest.raises(CorruptRecord, match=r"segments before 000000003\.log are missing"):
            PersistentDict(str(tmp_path / "state")).open()
    assert sorted((tmp_path / "state").glob("*.log")) == [segments[0], *segments[2:]]
    (tmp_path / "lost").rename(segments[1])
    assert restored(str(tmp_path / "state")) == {number: number for number in range(400)}


def test_a_log_whose_beginning_is_missing_is_refused_and_stays_as_it_is(tmp_path):
    segments = long_log(tmp_path / "state")
    segments[0].rename(tmp_path / "lost")
    with pytest.raises(CorruptRecord, match="its first segments are missing"):
        PersistentDict(str(tmp_path / "state")).open()
    assert sorted((tmp_path / "state").glob("*.log")) == segments[1:]
    (tmp_path / "lost").rename(segments[0])
    assert restored(str(tmp_path / "state")) == {number: number for number in range(400)}


def test_a_generation_that_isnt_whole_is_refused_without_the_one_before_it(tmp_path):
    app = App(str(tmp_path / "state"))
    with app.log:
        app.put(User(1, "one"))
        app.log._enumerate = lambda log: 1 / 0
        with pytest.raises(ZeroDivisionError):
            app.log.rotate()
        app.put(User(2, "two"))
    (tmp_path / "state" / "000000001.log").rename(tmp_path / "lost")
    with pytest.raises(CorruptRecord, match="its first segments are missing"):
        App(str(tmp_path / "state")).log.open()


def test_a_number_that_recovery_left_out_is_no_hole(tmp_path):
    disk = CrashDisk()
    for opening in range(3):
        with PersistentDict("state", files=disk, rotate_bytes=1 << 30) as data:
            data[opening] = opening
        contents = disk.contents()
        contents["state/append.spare"] = b""  # with it, and after a reboot, a number is left out
        contents.pop("state/append.synced")
        disk = CrashDisk.of(contents, boot=opening + 1)
    with PersistentDict("state", files=disk) as data:
        assert dict(data) == {0: 0, 1: 1, 2: 2}
        numbers = data.log.stream.numbers()
    assert numbers[-1] - numbers[0] >= len(numbers), "numbers were left out"
