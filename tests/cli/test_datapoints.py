"""The commands on logs in M3's format, and the way to them and back."""

from __future__ import annotations

import json
import shutil
import struct
import zlib

import pytest

from forelog import KeepLatest, Stream
from forelog.commitlog.entries import read_entries
from forelog.formats import Captain
from tests.conftest import VECTORS

FIRST = (
    "000000000:0\t2025-11-15T09:46:40.001234567Z\tdefault\tcpu.load{host=web01}\t"
    "__name__=cpu_load,host=web01,region=eu\t2025-11-15T09:46:40.000000000Z\t-40.0\ts\t-"
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    (path / "commitlogs").mkdir()
    for name in ("commitlog-0-0.db", "commitlog-0-1.db", "commitlog-0-2.db"):
        shutil.copy(VECTORS / "m3" / name, path / "commitlogs" / name)
    return path


def add_chunk(log, data: bytes) -> None:
    size = struct.pack("<I", len(data))
    with open(log / "commitlogs/commitlog-0-2.db", "ab") as file:
        file.write(size + struct.pack("<II", zlib.adler32(size), zlib.adler32(data)) + data)


def test_dump_shows_datapoints(run, log):
    lines = run("dump", log).out.splitlines()
    assert len(lines) == 221
    assert lines[0] == FIRST
    assert lines[3].endswith("\t-36.25\tns\tnote-3")
    assert lines[3].split("\t")[4] == "-"


def test_dump_takes_bounds_and_a_limit(run, log):
    assert len(run("dump", log, "--from", "000000001:0").out.splitlines()) == 20
    assert len(run("dump", log, "--until", "000000001:0").out.splitlines()) == 201
    assert run("dump", log, "--limit", "1").out == FIRST + "\n"
    assert run("dump", log, "--limit", "0").out == ""
    later = run("dump", log, "--since", "2025-11-15T09:46:40.002Z", "--limit", "1").out
    assert later.split("\t")[1] == "2025-11-15T09:46:40.002469134Z"


def test_dump_as_json_says_everything(run, log):
    found = [json.loads(line) for line in run("dump", log, "--json").out.splitlines()]
    assert len(found) == 221
    assert found[0] == {
        "position": "000000000:0",
        "segment": 0,
        "offset": 0,
        "created": "2025-11-15T09:46:40.001234567Z",
        "created_ns": 1763200000001234567,
        "id": "cpu.load{host=web01}",
        "namespace": "default",
        "shard": 5,
        "tags": [["__name__", "cpu_load"], ["host", "web01"], ["region", "eu"]],
        "timestamp_ns": 1763200000000000000,
        "value": -40.0,
        "unit": 1,
        "annotation": None,
    }
    assert {"bits": "7ff8000000000001"} in [row["value"] for row in found]  # Go's NaN


def test_dump_as_hex(run, log):
    fields = run("dump", log, "--hex", "--limit", "1").out.rstrip("\n").split("\t")
    assert bytes.fromhex(fields[3]) == b"cpu.load{host=web01}"


@pytest.mark.parametrize("option", ["--reverse", "--raw"])
def test_what_makes_no_sense_for_datapoints_is_refused(run, log, option):
    result = run("dump", log, option)
    assert result.code == 2
    assert option in result.err


def test_dump_follows_what_is_written(start, log):
    process = start("dump", log, "--follow", "--from", "000000002:0")
    metadata = bytes.fromhex("01920993c40161c4016200c0")
    entry = b"\x01\x92\x08\x97\x00\x05\xc4\x0c" + metadata + b"\x06\xcb" + struct.pack(">d", 2.5) + b"\x01\xc0"
    add_chunk(log, bytes([len(entry)]) + entry)
    assert process.stdout.readline().split(b"\t")[3:7] == [b"a", b"-", b"1970-01-01T00:00:00.000000006Z", b"2.5"]


def test_verify_reads_every_message(run, log):
    result = run("verify", log)
    assert result.code == 0
    assert "3 segments, 26 chunks, 12.0 KiB: no damage" in result.out
    assert "221 entries of 5 series in 2 namespaces, 31 of them annotated" in result.out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x05hello", "(message)"),
        (b"\x14\x01\x92\x08\x97\x09\x05\xc0\x06\xcb" + bytes(8) + b"\x01\xc0\x00", "(field)"),
        (b"\x13\x01\x92\x08\x97\x09\x05\xc0\x06\xcb" + bytes(8) + b"\x01\xc0", "(1 entry of unknown series)"),
        (b"\x7f\x01\x92\x08\x97\x09\x05", "torn tail (truncated)"),
    ],
)
def test_verify_finds_wrong_messages_in_right_chunks(run, log, data, words):
    add_chunk(log, data)
    result = run("verify", log)
    assert result.code == 1
    assert "1 problem" in result.out
    assert f"000000002:20 {'' if 'torn' in words else 'damage '}{words}" in result.out
    found = json.loads(run("verify", log, "--json").out)
    assert not found["ok"]
    assert len(found["problems"]) == 1
    assert found["datapoints"]["entries"] == 221


def test_stats_count_entries_and_series(run, log):
    result = run("stats", log)
    assert "m3, 3 segments, 26 chunks" in result.out
    assert "chunks: 11.7 KiB, 460.6 bytes on average, 1,028 at most" in result.out
    assert "221 entries of 5 series" in result.out
    found = json.loads(run("stats", log, "--json").out)["datapoints"]
    assert (found["entries"], found["series"], found["annotations"]) == (221, 5, 31)
    assert found["namespaces"] == {"agg_10s:2d": 2, "default": 3}
    assert found["created_min_ns"] == 1763200000001234567
    assert "datapoints" not in json.loads(run("stats", log, "--quick", "--json").out)


def test_convert_there_and_back(run, log, tmp_path):
    result = run("convert", log, tmp_path / "there", "--to", "captain", "--magic", "abcd")
    assert result.code == 0
    assert result.out == f"{tmp_path}/there: 221 records in 1 segment, 51.3 KiB, synced and read back\n"
    assert Stream.open(tmp_path / "there").format == Captain(int.from_bytes(b"abcd", "big"))
    back = json.loads(run("convert", tmp_path / "there", tmp_path / "back", "--to", "m3", "--json").out)
    assert (back["records"], back["segments"], back["skipped"], back["torn"]) == (221, 1, 0, False)
    assert (tmp_path / "back/commitlogs/commitlog-0-0.db").exists()
    one, other = (run("dump", path, "--json").out.splitlines() for path in (log, tmp_path / "back"))
    strip = ("position", "segment", "offset")
    for a, b in zip(one, other, strict=True):
        assert {k: v for k, v in json.loads(a).items() if k not in strip} == {
            k: v for k, v in json.loads(b).items() if k not in strip
        }


def test_convert_plain_records_to_a_series(run, tmp_path):
    run("append", tmp_path / "plain", stdin=b"one\ntwo\n")
    result = run("convert", tmp_path / "plain", tmp_path / "m3", "--to", "m3")
    assert result.code == 6
    assert "000000001:8 isn't a datapoint" in result.err
    words = ("--series", "orders", "--namespace", "shop", "--shard", "7")
    assert run("convert", tmp_path / "plain", tmp_path / "m3", "--to", "m3", *words).code == 0
    found = [entry for _, entry in read_entries(Stream.open(tmp_path / "m3"))]
    assert [(e.series.id, e.series.namespace, e.series.shard, e.annotation) for e in found] == [
        (b"orders", b"shop", 7, b"one"),
        (b"orders", b"shop", 7, b"two"),
    ]


def test_convert_tells_what_it_left_out(run, log, tmp_path):
    add_chunk(log, b"\x05hello")
    assert run("convert", log, tmp_path / "there", "--to", "captain").code == 4
    result = run("convert", log, tmp_path / "there", "--to", "captain", "--on-corruption", "skip")
    assert result.code == 0
    assert f"1 place in {log} that can't be read" in result.err
    add_chunk(log, b"\x7f\x01\x92\x08\x97\x09\x05")
    result = run("convert", log, tmp_path / "more", "--to", "captain", "--on-corruption", "skip")
    assert "ends in a torn tail" in result.err


@pytest.mark.parametrize(
    "words",
    [("--to", "m3", "--magic", "abcd"), ("--to", "m3", "--shard", "7"), ("--to", "m3", "--namespace", "x"), ()],
)
def test_convert_refuses_options_that_do_not_go_together(run, log, tmp_path, words):
    assert run("convert", log, tmp_path / "there", *words).code == 2
    assert not (tmp_path / "there").exists()


def test_convert_writes_into_no_existing_log(run, log, tmp_path):
    run("append", tmp_path / "there", stdin=b"one\n")
    result = run("convert", log, tmp_path / "there", "--to", "captain")
    assert (result.code, "not empty" in result.err) == (2, True)


def test_clean_drops_whole_files_only(run, log):
    (log / "commitlogs/commitlog-0-2.db").unlink()
    times = [entry.created_ns for _, entry in read_entries(Stream.open(log))]
    with Stream.open(log).cleaner() as cleaner:
        report = cleaner.clean(lambda path, record: record.time_ns < times[100])
    assert (report.records_dropped, report.segments_rewritten, report.records_kept) == (0, 0, 23)
    assert len(run("dump", log).out.splitlines()) == 221
    run("clean", log, "--keep-segments", "1")
    assert len(run("dump", log).out.splitlines()) == 20


def test_cleaning_by_key_is_refused(run, log):
    result = run("clean", log, "--latest-key", "0:3")
    assert (result.code, "--latest-key" in result.err) == (2, True)
    with Stream.open(log).cleaner() as cleaner, pytest.raises(ValueError, match="records by themselves"):
        cleaner.clean(KeepLatest(key=slice(0, 3)))


def test_lines_are_not_appended_to_it(run, log):
    result = run("append", log, stdin=b"one\n")
    assert (result.code, "m3" in result.err) == (2, True)
    assert (
        sorted(path.name for path in (log / "commitlogs").iterdir() if path.suffix == ".db")[-1]
        == "commitlog-0-2.db"
    )
