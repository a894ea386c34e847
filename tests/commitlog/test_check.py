"""Messages of M3's files, checked file by file."""

from __future__ import annotations

import shutil

import pytest

from forelog import Stream
from forelog.commitlog.check import check_entries, check_file
from tests.commitlog.test_entries import CPU, INFO, chunked, entry, file_of, raw_chunk
from tests.conftest import VECTORS

pytestmark = pytest.mark.filterwarnings("ignore")

DAMAGED = sorted(path.stem for path in (VECTORS / "m3/damaged").glob("*.db"))


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("followed", [False, True])
def test_file_by_file_the_same_is_found_as_in_the_whole_log(tmp_path, name, followed):
    shutil.copy(VECTORS / "m3/damaged" / f"{name}.db", tmp_path / "commitlog-0-0.db")
    if followed:
        file_of(tmp_path, chunked(INFO, entry(0, CPU, 7)), raw_chunk(b"\x05hello"), number=1)
    stream = Stream.open(tmp_path)
    whole = check_entries(stream)
    numbers = [segment.number for segment in stream.segments()]
    parts = [check_file(stream, number, last=number == numbers[-1]) for number in numbers]
    assert [defect for defects, _ in parts for defect in defects] == whole.defects
    assert parts[-1][1] == whole.torn
    assert followed <= bool(whole.defects)
