"""Files in M3's format that end anywhere, or say anything."""

from __future__ import annotations

import shutil
import tempfile
from itertools import chain
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from forelog import CorruptRecord, Stream
from forelog.commitlog.check import check_entries
from forelog.commitlog.entries import EntryWalk, read_entries
from forelog.formats.m3 import M3, Series
from tests.conftest import VECTORS
from tests.kernel.test_m3_twins import hostile_chunks, hostile_file


def stream_of(data: bytes, folder: str) -> Stream:
    Path(folder, "commitlog-0-0.db").write_bytes(data)
    return Stream(folder, format="m3")


def small_file() -> bytes:
    """Entries of some series, one of them over many chunks, in chunks of a hundred bytes."""
    m3 = M3(chunk_bytes=100)
    encoder = m3.encoder(0)
    data = b""
    for number, note in enumerate((None, b"n" * 450, b"", b"m" * 130, None)):
        items = [m3.item(Series(b"s%d" % i), (i, float(number)), annotation=note) for i in range(2)]
        data += encoder.encode_many(items, number)[0]
        encoder.accept()
    return data


def test_whatever_length_a_crash_left_is_a_prefix_and_is_cut_between_messages(tmp_path):
    data = small_file()
    whole = [entry for _, entry in read_entries(stream_of(data, str(tmp_path)))]
    seen = set()
    for length in range(len(data) + 1):
        stream = stream_of(data[:length], str(tmp_path))
        walk = EntryWalk(stream)
        count = sum(block.last - block.first for block in walk)
        seen.add(count)
        assert [entry for _, entry in read_entries(stream)] == whole[:count]
        checker = M3().checker()
        scan = M3().scan(data, 0, length, 0, 1000) if length else None
        if scan is not None:
            checker.feed(data, scan)
        assert checker.end <= length
        assert (walk.torn is None) == (checker.end == length)
        cut = stream_of(data[: checker.end], str(tmp_path))
        assert len(list(read_entries(cut))) == count
        assert check_entries(cut).torn is None
    assert max(seen) == len(whole) == 10


def test_opening_to_append_cuts_a_message_that_a_crash_left_in_half(tmp_path):
    shutil.copy(VECTORS / "m3/damaged/truncated_inside_spanning_entry.db", tmp_path / "commitlog-0-0.db")
    stream = Stream.open(tmp_path)
    with stream.appender() as log:
        log.append_many([stream.format.item(Series(b"new"), (1, 1.0))])
    assert len(list(read_entries(stream))) == 122
    assert (tmp_path / "commitlog-0-0.db").stat().st_size == 5956


@settings(max_examples=150, deadline=None)
@given(hostile_file() | hostile_chunks() | st.binary(max_size=300))
def test_any_file_is_read_as_far_as_it_goes(data):
    with tempfile.TemporaryDirectory() as folder:
        stream = stream_of(data, folder)
        skipped = EntryWalk(stream, on_corruption="skip")
        found = [block.entries.created.tolist()[block.first : block.last] for block in skipped]
        strict: list[list[int]] = []
        damage = None
        try:
            strict += (block.entries.created.tolist()[block.first : block.last] for block in EntryWalk(stream))
        except CorruptRecord as error:
            damage = error.position
        if damage is None:
            assert not skipped.defects
        else:
            assert damage in [defect.position for defect in skipped.defects]
        flat, prefix = list(chain(*found)), list(chain(*strict))
        assert flat[: len(prefix)] == prefix
        assert check_entries(stream).entries == len(flat)
