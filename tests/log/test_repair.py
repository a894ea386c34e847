"""What a repair does, what it keeps, and that it can be interrupted anywhere."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forelog import HeaderMismatch, LockTimeout, Position, Stream
from forelog.log.repair import apply_repairs, plan_repair
from forelog.log.verify import verify
from forelog.testing import CrashDisk

from .test_verify import flip, make_log

VECTORS = Path(__file__).parent.parent / "vectors" / "captain"
DAMAGED = json.loads((VECTORS / "damaged" / "expected.json").read_text())
STREAMS = [
    case
    for case in json.loads((VECTORS / "streams" / "expected.json").read_text())["cases"]
    if (VECTORS / "streams" / case["case"]).is_dir()
]


def payloads(stream: Stream) -> list[bytes]:
    with stream.cursor() as cursor:
        return [record.payload for record in cursor]


def readable(stream: Stream) -> list[bytes]:
    with stream.cursor(on_corruption="skip") as cursor:
        return [record.payload for record in cursor]


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith(".lock")}


# -- the cases, one by one


def test_a_sound_log_needs_nothing(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    before = files_of(tmp_path)
    assert plan_repair(stream) == []
    assert apply_repairs(stream) == []
    assert files_of(tmp_path) == before


def test_a_plan_changes_nothing(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    flip(tmp_path / "000000001.log", 30)
    with open(tmp_path / "000000003.log", "ab") as file:
        file.write(b"torn")
    before = files_of(tmp_path)
    assert [repair.kind for repair in plan_repair(stream)] == ["tail", "records"]
    assert files_of(tmp_path) == before


def test_a_torn_tail_is_cut_and_kept(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    whole = payloads(stream)
    with open(tmp_path / "000000003.log", "ab") as file:
        file.write(b"\x01torn")
    done = apply_repairs(stream)
    assert [repair.kind for repair in done] == ["tail", "index"]
    assert done[0].copies == ["000000003.torn"]
    assert (tmp_path / "000000003.torn").read_bytes() == b"\x01torn"
    assert payloads(stream) == whole
    assert verify(stream).tidy


def test_no_position_is_given_out_twice_after_a_cut(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    end = stream.end()
    with open(tmp_path / "000000003.log", "ab") as file:
        file.write(b"\x01torn")
    apply_repairs(stream)
    with stream.appender() as log:
        assert log.append(b"new").segment > end.segment


def test_damaged_records_are_left_out_and_the_segment_is_kept(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    whole = payloads(stream)
    flip(tmp_path / "000000001.log", 30)
    broken = (tmp_path / "000000001.log").read_bytes()
    (repair,) = apply_repairs(stream)
    assert (repair.kind, repair.copies) == ("records", ["000000001.broken"])
    assert (tmp_path / "000000001.broken").read_bytes() == broken
    assert payloads(stream) == whole[1:]
    assert verify(stream).tidy


def test_positions_stay_valid(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.cursor() as cursor:
        records = list(cursor)
    flip(tmp_path / "000000001.log", records[1].position.offset + 20)
    apply_repairs(stream)
    for start, expected in ((records[2], records[2]), (records[1], records[2]), (records[3], records[3])):
        with stream.cursor(start=start.position) as cursor:
            assert next(cursor) == expected


def test_positions_stay_valid_in_a_segment_that_had_been_cleaned_before(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload == b"segment 1 record 1")
    with stream.cursor() as cursor:
        records = list(cursor)
    size = (tmp_path / "000000001.log").stat().st_size
    flip(tmp_path / "000000001.log", size - 1)  # the bytes by which an index knows its segment
    apply_repairs(stream)
    with stream.cursor() as cursor:
        assert list(cursor) == [record for record in records if record.payload != b"segment 1 record 3"]
    assert verify(stream).tidy


def test_damage_in_the_last_segment_seals_it(tmp_path: Path) -> None:
    stream = make_log(tmp_path, segments=1)
    whole = payloads(stream)
    size = (tmp_path / "000000001.log").stat().st_size
    flip(tmp_path / "000000001.log", size - 1)
    apply_repairs(stream)
    assert payloads(stream) == whole[:-1]
    assert verify(stream).tidy
    with stream.appender() as log:
        assert log.append(b"new") == Position(2, 8)
    assert payloads(stream) == [*whole[:-1], b"new"]


def test_a_segment_without_a_whole_record_keeps_its_header_only(tmp_path: Path) -> None:
    stream = make_log(tmp_path, records=1)
    flip(tmp_path / "000000002.log", 30)
    apply_repairs(stream)
    assert (tmp_path / "000000002.log").read_bytes() == stream.format.header()
    assert payloads(stream) == [b"segment 1 record 0", b"segment 3 record 0"]
    assert verify(stream).tidy


@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("number", [2, 3])
def test_an_unfinished_header_is_written(tmp_path: Path, size: int, number: int) -> None:
    stream = make_log(tmp_path)
    expected = [payload for payload in payloads(stream) if b"segment %d" % number not in payload]
    path = tmp_path / f"{number:09d}.log"
    os.truncate(path, size)
    (tmp_path / "append.synced").unlink()
    assert apply_repairs(stream)
    assert path.read_bytes() == stream.format.header()
    assert payloads(stream) == expected
    assert verify(stream).tidy


@pytest.mark.parametrize("number", [1, 3])
def test_records_behind_a_header_of_zeros_are_saved(tmp_path: Path, number: int) -> None:
    stream = make_log(tmp_path)
    whole = payloads(stream)
    path = tmp_path / f"{number:09d}.log"
    path.write_bytes(bytes(8) + path.read_bytes()[8:])
    (repair,) = apply_repairs(stream)
    assert repair.kind == "header"
    assert repair.copies == [f"{number:09d}.broken"]
    assert payloads(stream) == whole
    assert verify(stream).tidy


def test_zeros_behind_a_header_of_zeros_are_not(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    path = tmp_path / "000000002.log"
    path.write_bytes(bytes(8) + path.read_bytes()[8:60] + bytes(500))
    (repair, *_) = apply_repairs(stream)
    assert repair.copies == ["000000002.broken"]
    assert b"segment 2 record 0" in payloads(stream)
    assert verify(stream).tidy


def test_another_logs_segment_is_told_and_not_touched(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    flip(tmp_path / "000000002.log", 0)
    foreign = (tmp_path / "000000002.log").read_bytes()
    (repair,) = apply_repairs(stream)
    assert (repair.kind, repair.possible, repair.copies) == ("foreign", False, [])
    assert (tmp_path / "000000002.log").read_bytes() == foreign
    with pytest.raises(HeaderMismatch):
        payloads(stream)


def test_debris_is_removed_and_evidence_is_not(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    for name in ("000000001.log.rw", "000000001.77.idx", "000000002.torn", "000000002.broken.part"):
        (tmp_path / name).write_bytes(b"x")
    assert {repair.kind for repair in apply_repairs(stream)} == {"debris"}
    assert sorted(file.name for file in tmp_path.iterdir() if not file.name.startswith(("append", "read")))[
        -3:
    ] == [
        "000000002.log",
        "000000002.torn",
        "000000003.log",
    ]


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_an_index_is_built_anew_as_it_was(tmp_path: Path, damage: str) -> None:
    stream = make_log(tmp_path)
    path = next(tmp_path.glob("000000001.*.idx"))
    right = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flip(path, 40)
    (repair,) = apply_repairs(stream)
    assert (repair.kind, repair.damage) == ("index", False)
    assert path.read_bytes() == right


def test_after_synced_bytes_were_lost_the_log_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    stream = make_log(tmp_path, segments=2)
    with stream.cursor() as cursor:
        last = [record.position for record in cursor][-1]
    os.truncate(tmp_path / "000000002.log", last.offset)
    assert apply_repairs(stream)[0].kind == "tail"
    assert verify(stream).tidy
    with stream.appender() as log:
        assert log.append(b"new") == Position(3, 8)


def test_after_a_synced_segment_was_lost_its_number_is_not_used_again(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    (tmp_path / "000000003.log").unlink()
    apply_repairs(stream)
    assert verify(stream).tidy
    with stream.appender() as log:
        assert log.append(b"new").segment == 4


def test_no_copy_replaces_an_older_one(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    copies = []
    for _ in range(3):
        flip(tmp_path / "000000001.log", 30)
        copies += apply_repairs(stream)[0].copies
    assert copies == ["000000001.broken", "000000001.broken.2", "000000001.broken.3"]
    assert len({(tmp_path / name).read_bytes() for name in copies}) == 3


# -- with others about


def test_an_appender_keeps_it_waiting(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.appender(), pytest.raises(LockTimeout, match=r"append\.lock"):
        apply_repairs(stream, timeout=0)


def test_a_cursor_keeps_it_waiting(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.cursor(), pytest.raises(LockTimeout, match=r"read\.lock"):
        apply_repairs(stream, timeout=0)


def test_it_goes_on_when_the_cursor_is_closed(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    flip(tmp_path / "000000001.log", 30)
    done: list[str] = []
    with stream.cursor():
        thread = threading.Thread(
            target=lambda: done.extend(repair.kind for repair in apply_repairs(stream, timeout=30))
        )
        thread.start()
        assert not done
    thread.join(30)
    assert done == ["records"]


def test_a_plan_for_a_live_log_leaves_its_end_alone(tmp_path: Path) -> None:
    stream = make_log(tmp_path)
    with stream.appender():
        with open(tmp_path / "000000003.log", "ab") as file:
            file.write(b"\x01\x00\x00")
        assert plan_repair(stream) == []


# -- logs of the original program


@pytest.mark.parametrize("case", DAMAGED["cases"], ids=lambda case: case["case"])
def test_a_damaged_log_of_the_original_program_is_mended(case: dict[str, object], tmp_path: Path) -> None:
    import base64

    original = (VECTORS / "damaged" / str(case["file"])).read_bytes()
    path = tmp_path / "log"
    path.mkdir()
    (path / "000000001.log").write_bytes(original)
    stream = Stream(path, magic=int(DAMAGED["magic"], 16), version=DAMAGED["version"])
    written = [base64.b64decode(record["payload_base64"]) for record in DAMAGED["undamaged_records"]]
    before = readable(stream) if case["case"] not in ("bad_magic", "wrong_version") else []
    done = apply_repairs(stream)
    if case["case"] in ("bad_magic", "wrong_version"):
        assert [repair.kind for repair in done] == ["foreign"]
        assert (path / "000000001.log").read_bytes() == original
        return
    assert verify(stream).tidy
    assert payloads(stream) == before
    if not str(case["case"]).endswith("_valid_crc"):
        good = case["good_records_before_error"]
        assert isinstance(good, int)
        assert before[:good] == written[:good]
    damage = [repair for repair in done if repair.damage]
    assert bool(damage) == ((path / "000000001.log").read_bytes() != original)
    if damage and original:
        kept = b"".join((path / name).read_bytes() for name in damage[0].copies)
        assert kept == original or (path / "000000001.log").read_bytes() + kept == original


@pytest.mark.parametrize("case", STREAMS, ids=lambda case: case["case"])
def test_a_stream_of_the_original_program_is_mended(
    case: dict[str, list[dict[str, str]]], vector: Callable[[str], Path]
) -> None:
    stream = Stream.open(vector(f"captain/streams/{case['case']}"))
    expected = [
        event["record"].encode()
        for event in case["cursor_events_when_caller_keeps_calling_next"]
        if "record" in event
    ]
    apply_repairs(stream)
    report = verify(stream)
    assert report.tidy, report.problems() + report.notes()
    assert payloads(stream) == expected


# -- interrupted


def damaged_disk() -> tuple[CrashDisk, list[bytes]]:
    """A disk with a bit of everything wrong on it, and what can be read of the log."""
    disk = CrashDisk(sector_bytes=64)
    stream = Stream("log", files=disk)
    with stream.appender(sync="always") as log:
        for number in range(1, 5):
            for record in range(3):
                log.append(b"segment %d record %d" % (number, record))
            if number < 4:
                log.roll()
    contents = disk.contents()
    first = bytearray(contents["log/000000001.log"])
    first[70] ^= 0xFF
    contents["log/000000001.log"] = bytes(first)
    contents["log/000000002.log"] = bytes(8) + contents["log/000000002.log"][8:]
    contents["log/000000003.log.rw"] = b"half"
    contents["log/000000004.log"] += b"\x01torn"
    del contents[next(name for name in contents if name.startswith("log/000000003.") and name.endswith(".idx"))]
    return CrashDisk.of(contents, sector_bytes=64), [
        b"segment %d record %d" % (number, record)
        for number in range(1, 5)
        for record in range(3)
        if (number, record) != (1, 1)
    ]


def test_power_lost_at_any_moment_of_a_repair_loses_nothing_and_it_can_be_done_again() -> None:
    disk, whole = damaged_disk()
    torn, broken = b"\x01torn", disk.contents()["log/000000001.log"]
    apply_repairs(Stream("log", files=disk))
    assert payloads(Stream("log", files=disk)) == whole
    states = 0
    for state in disk.states_everywhere(limit=5):
        states += 1
        stream = Stream("log", files=state.disk)
        found = readable(stream)
        # The second segment can be read only once its header is there.
        assert [p for p in found if b"segment 2" not in p] == [p for p in whole if b"segment 2" not in p]
        apply_repairs(stream)
        assert payloads(stream) == whole
        assert verify(stream).tidy
        contents = state.disk.contents()
        assert any(content == broken for name, content in contents.items() if ".broken" in name)
        assert any(content == torn for name, content in contents.items() if ".torn" in name)
    assert states > 150


def test_a_disk_that_fills_up_leaves_the_log_as_it_was() -> None:
    disk, _ = damaged_disk()
    before = {name: data for name, data in disk.contents().items() if name.endswith(".log")}
    fault = disk.fail(lambda call: call.kind == "write" and "append" not in call.path, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        apply_repairs(Stream("log", files=disk))
    assert fault.hits
    assert {name: data for name, data in disk.contents().items() if name.endswith(".log")} == before
    fault.stop()
    apply_repairs(Stream("log", files=disk), timeout=0)
    assert verify(Stream("log", files=disk)).tidy
