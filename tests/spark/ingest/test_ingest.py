"""Logs to tables, without Spark: what is written, committed, resumed, merged and refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

from forelog import CorruptRecord, LockTimeout, LogNotFound, Position, Stream  # noqa: E402
from forelog.errors import BadOption, DataLoss, TableDamaged  # noqa: E402
from forelog.log.directory.tenants import JOBS_MAGIC  # noqa: E402
from forelog.spark.pipeline.ingest import Ingest  # noqa: E402
from forelog.spark.pipeline.ingest_plan import Plan  # noqa: E402
from forelog.spark.pipeline.ingest_run import run_here  # noqa: E402
from forelog.spark.tables.commits import load_state, partition_folder  # noqa: E402
from forelog.spark.tables.storage import storage_of  # noqa: E402
from forelog.spark.tables.table import settled  # noqa: E402
from tests.commitlog.test_entries import CPU, INFO, chunked, entry, raw_chunk  # noqa: E402

DAY_NS = 86_400 * 10**9


class Clock:
    """Some minutes to a record, from the start of 2026 on."""

    def __init__(self, minutes: int = 600) -> None:
        self.now_ns = 20_454 * DAY_NS
        self.step_ns = minutes * 60 * 10**9

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


@pytest.fixture
def log(tmp_path):
    return Stream(str(tmp_path / "log"), clock=Clock())


def append(stream, first: int, last: int, segment_bytes: int = 2000) -> None:
    with stream.appender(segment_bytes=segment_bytes) as appender:
        for n in range(first, last):
            appender.append(b"%d:" % n + b"x" * (n % 50))


def ingest(stream, target, progress=None, **plan):
    plan.setdefault("slice_bytes", 3000)
    return Ingest(str(stream), str(target), run_here, Plan(**plan), progress=progress).once()


def visible(target) -> list[Path]:
    """What whoever reads the folder as plain Parquet sees."""
    files = [path for path in Path(target).rglob("*.parquet") if "_forelog" not in path.parts]
    return sorted(files)


def numbers(files) -> list[int]:
    found = []
    for path in files:
        found += [int(payload.split(b":")[0]) for payload in pq.ParquetFile(path).read()["payload"].to_pylist()]
    return sorted(found)


def committed(target) -> list[Path]:
    return sorted(Path(target) / path for path in load_state(storage_of(str(target))).files)


def test_a_table_has_the_rows_of_its_log(log, tmp_path):
    append(log, 0, 300)
    report = ingest(log.path, tmp_path / "t")
    assert (report.rows, report.batches, report.files) == (300, 1, len(visible(tmp_path / "t")))
    assert report.bytes == sum(path.stat().st_size for path in visible(tmp_path / "t"))
    with log.cursor() as cursor:
        expected = [(r.position, r.time, r.payload) for r in cursor]
    rows = [row for path in visible(tmp_path / "t") for row in pq.ParquetFile(path).read().to_pylist()]
    found = [(Position(row["segment"], row["offset"]), row["time"], row["payload"]) for row in rows]
    assert sorted(found) == expected
    assert report.positions == {"log": log.end()}


def test_the_codec_that_fits_is_found(log, tmp_path):
    append(log, 0, 10)
    assert ingest(log.path, tmp_path / "records", codec="auto").rows == 10
    assert settled(str(tmp_path / "records")).last.about.codec == "records"
    jobs = Stream(tmp_path / "jobs", magic=JOBS_MAGIC)
    jobs.appender().close()
    for _ in range(2):
        assert ingest(jobs.path, tmp_path / "commands", codec="auto").rows == 0
    assert settled(str(tmp_path / "commands")).last.about.codec == "commands"


def test_the_next_run_goes_on_where_the_last_one_ended(log, tmp_path):
    append(log, 0, 100)
    ingest(log.path, tmp_path / "t")
    append(log, 100, 130)
    assert ingest(log.path, tmp_path / "t").rows == 30
    assert ingest(log.path, tmp_path / "t").batches == 0
    assert numbers(visible(tmp_path / "t")) == list(range(130))


def test_a_large_backlog_is_several_commits(log, tmp_path):
    append(log, 0, 500)
    report = ingest(log.path, tmp_path / "t", commit_bytes=6000)
    assert report.batches > 3
    assert numbers(visible(tmp_path / "t")) == list(range(500))


def test_statistics_of_files_are_those_of_their_rows(log, tmp_path):
    append(log, 0, 200)
    ingest(log.path, tmp_path / "t", partition_by="date")
    for path, file in load_state(storage_of(str(tmp_path / "t"))).files.items():
        rows = pq.ParquetFile(tmp_path / "t" / path).read().to_pylist()
        positions = [Position(row["segment"], row["offset"]) for row in rows]
        assert (file.rows, Position.parse(file.first), Position.parse(file.last)) == (
            len(rows), min(positions), max(positions),
        )  # fmt: skip
        assert file.since_us == min(row["time"] for row in rows).timestamp() * 10**6
        assert {row["time"].date().isoformat() for row in rows} == {file.partition}
        assert path.startswith(f"date={file.partition}/")


def test_a_folder_of_logs_is_one_table_and_new_logs_are_found(tmp_path):
    a, b = Stream(str(tmp_path / "logs" / "a")), Stream(str(tmp_path / "logs" / "b"))
    append(a, 0, 50)
    assert ingest(tmp_path / "logs", tmp_path / "t", recursive=True, partition_by="log").rows == 50
    append(b, 50, 90)
    report = ingest(tmp_path / "logs", tmp_path / "t", recursive=True, partition_by="log")
    assert report.rows == 40
    assert set(report.positions) == {"a", "b"}
    assert {path.parent.name for path in visible(tmp_path / "t")} == {"log=a", "log=b"}
    assert numbers(visible(tmp_path / "t")) == list(range(90))


def test_many_logs_with_little_news_are_one_task(tmp_path):
    for n in range(20):
        append(Stream(str(tmp_path / "logs" / f"{n:02}")), 10 * n, 10 * n + 10)
    report = ingest(tmp_path / "logs", tmp_path / "t", recursive=True, slice_bytes=100_000)
    assert (report.rows, report.files) == (200, 1)
    [file] = visible(tmp_path / "t")
    assert len(set(pq.ParquetFile(file).read()["log"].to_pylist())) == 20


def test_an_entry_of_m3_that_waits_for_its_next_chunk_is_not_missed(tmp_path):
    """A live file grows by chunks, which end where the writer's buffer was full: in the middle of an entry."""
    messages = [entry(0, CPU if n == 0 else None, n, b"n" * (n % 90)) for n in range(60)]
    contents = [chunked(INFO)[12:], *(chunked(*messages[n : n + 4])[12:] for n in range(0, 60, 4))]
    chunks = [raw_chunk(content[at : at + 100]) for content in contents for at in range(0, len(content), 100)]
    log = tmp_path / "log"
    log.mkdir()
    for chunk in chunks:
        with open(log / "commitlog-0-0.db", "ab") as file:
            file.write(chunk)
        ingest(log, tmp_path / "t", codec="datapoints", compact_below=0)
    assert len(visible(tmp_path / "t")) > 10
    values = [
        value for path in visible(tmp_path / "t") for value in pq.ParquetFile(path).read()["value"].to_pylist()
    ]
    assert sorted(values) == list(range(60))


def test_a_log_without_records_is_a_table_without_rows(log, tmp_path):
    append(log, 0, 0)
    assert ingest(log.path, tmp_path / "t").rows == 0
    assert settled(str(tmp_path / "t")).files == {}
    append(log, 0, 10)
    assert ingest(log.path, tmp_path / "t").rows == 10


def test_small_files_are_merged_and_rows_stay(log, tmp_path):
    for n in range(12):
        append(log, 10 * n, 10 * n + 10)
        report = ingest(log.path, tmp_path / "t", compact_below=1 << 20)
        assert numbers(visible(tmp_path / "t")) == list(range(10 * n + 10))
    assert len(visible(tmp_path / "t")) < 8
    assert visible(tmp_path / "t") == committed(tmp_path / "t")
    assert report.positions == {"log": log.end()}


def test_merging_can_be_turned_off(log, tmp_path):
    for n in range(10):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, tmp_path / "t", compact_below=0)
    assert len(visible(tmp_path / "t")) == 10


def test_old_commits_are_forgotten(log, tmp_path):
    for n in range(70):
        append(log, n, n + 1, segment_bytes=100_000)
        ingest(log.path, tmp_path / "t", compact_below=0)
    commits = sorted((tmp_path / "t" / "_forelog" / "commits").iterdir())
    assert len(commits) == 6
    assert numbers(committed(tmp_path / "t")) == list(range(70))


def test_what_a_killed_run_left_is_removed(log, tmp_path):
    append(log, 0, 50)
    ingest(log.path, tmp_path / "t")
    staging = tmp_path / "t" / "_forelog" / "staging" / "of-a-killed-run"
    staging.mkdir()
    (staging / "x.parquet").write_bytes(b"half")
    (tmp_path / "t" / "_forelog" / "commits" / ".000000002.part").write_bytes(b"{")
    ingest(log.path, tmp_path / "t")
    assert not staging.exists()
    assert [path.name for path in (tmp_path / "t" / "_forelog" / "commits").iterdir()] == ["000000001.json"]


def test_one_ingest_at_a_time(log, tmp_path):
    append(log, 0, 50)
    inside = Ingest(log.path, str(tmp_path / "t"), run_here)
    with inside._opened(), pytest.raises(LockTimeout, match="another ingest"):
        ingest(log.path, tmp_path / "t")


def test_following_finds_what_comes_until_it_is_stopped(log, tmp_path):
    append(log, 0, 20)
    stop = threading.Event()
    rounds = 0

    def progress(done: int, total: int) -> None:
        nonlocal rounds
        if done == total:
            rounds += 1
            if rounds <= 3:
                append(log, 20 * rounds, 20 * rounds + 20)
            elif not total:
                stop.set()

    work = Ingest(log.path, str(tmp_path / "t"), run_here, Plan(), progress=progress)
    report = work.follow(0.001, stop)
    assert report.rows == 80
    assert numbers(visible(tmp_path / "t")) == list(range(80))


def test_progress_is_told_inside_of_a_commit(log, tmp_path):
    append(log, 0, 300)
    told = []
    report = ingest(log.path, tmp_path / "t", progress=lambda done, total: told.append((done, total)))
    total = told[-1][1]
    assert report.batches == 1
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0] == (0, total)
    assert told[-1] == (total, total)
    assert any(0 < done < total for done, _ in told)
    assert [(one.rows, one.bytes) for one in report.commits] == [(300, total)]


def test_stopping_ends_it_after_the_commit_that_is_under_way(log, tmp_path):
    append(log, 0, 500)
    stop = threading.Event()

    def progress(done: int, total: int) -> None:
        if 0 < done < total:
            stop.set()

    plan = Plan(slice_bytes=3000, commit_bytes=6000)
    report = Ingest(log.path, str(tmp_path / "t"), run_here, plan, progress=progress).follow(60, stop)
    assert report.batches == 1
    assert ingest(log.path, tmp_path / "t").rows == 500 - report.rows
    assert numbers(visible(tmp_path / "t")) == list(range(500))


def test_damage_is_an_error_and_the_table_stays_as_it_was(log, tmp_path):
    append(log, 0, 100)
    segment = Path(log.path) / "000000001.log"
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    with pytest.raises(CorruptRecord, match="000000001"):
        ingest(log.path, tmp_path / "t")
    assert visible(tmp_path / "t") == []
    report = ingest(log.path, tmp_path / "t", on_corruption="skip")
    assert (report.rows, report.defects) == (99, 1)


def test_a_segment_that_went_unread_is_an_error(log, tmp_path):
    append(log, 0, 100)
    ingest(log.path, tmp_path / "t")
    number = load_state(storage_of(str(tmp_path / "t"))).positions["log"].segment
    append(log, 100, 300)
    for path in Path(log.path).glob(f"{number:09d}.*"):
        path.unlink()
    with pytest.raises(DataLoss, match="is gone"):
        ingest(log.path, tmp_path / "t")
    assert ingest(log.path, tmp_path / "t", fail_on_data_loss=False).rows > 100


def test_segments_that_vanish_before_they_are_read_are_planned_anew(log, tmp_path):
    append(log, 0, 300)
    first = Path(log.path) / "000000001.log"

    def run(tasks, function, finished):
        for path in Path(log.path).glob("000000001.*"):
            path.unlink()
        return run_here(tasks, function)

    assert first.exists()
    report = Ingest(log.path, str(tmp_path / "t"), run, Plan(slice_bytes=3000)).once()
    assert numbers(visible(tmp_path / "t")) == list(range(300 - report.rows, 300))


def test_a_table_stays_with_its_log_and_its_shape(log, tmp_path):
    append(log, 0, 10)
    ingest(log.path, tmp_path / "t")
    with pytest.raises(BadOption, match="partition_by None"):
        ingest(log.path, tmp_path / "t", partition_by="date")
    Path(log.path).rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "log2")
    with pytest.raises(BadOption, match="holds what was in"):
        ingest(tmp_path / "log2", tmp_path / "t")


def test_a_folder_with_other_files_is_no_place_for_a_table(log, tmp_path):
    append(log, 0, 10)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.parquet").write_bytes(b"")
    with pytest.raises(BadOption, match=r"mine\.parquet"):
        ingest(log.path, tmp_path / "t")


def test_wrong_options_are_told(log, tmp_path):
    append(log, 0, 10)
    with pytest.raises(LogNotFound):
        ingest(tmp_path / "nowhere", tmp_path / "t")
    assert not (tmp_path / "t").exists()
    for plan, message in [
        ({"partition_by": "colour"}, "colour"),
        ({"partition_by": "payload"}, "payload"),
        ({"codec": "nope"}, "nope"),
        ({"table": "nope"}, "nope"),
        ({"on_corruption": "stop"}, "stop"),
    ]:
        with pytest.raises(BadOption, match=message):
            ingest(log.path, tmp_path / "t", **plan)


def test_a_damaged_commit_is_told(log, tmp_path):
    append(log, 0, 10)
    ingest(log.path, tmp_path / "t")
    commit = tmp_path / "t" / "_forelog" / "commits" / "000000001.json"
    text = commit.read_text()
    commit.write_text(text[:100])
    with pytest.raises(TableDamaged, match=r"000000001\.json"):
        load_state(storage_of(str(tmp_path / "t")))
    commit.write_text(json.dumps({**json.loads(text), "version": 2}))
    with pytest.raises(TableDamaged, match="newer"):
        load_state(storage_of(str(tmp_path / "t")))


def test_partition_folders_are_named_as_spark_names_them():
    assert partition_folder("name", "a/b=c d") == "name=a%2Fb%3Dc d"
    assert partition_folder("name", "größe") == "name=größe"
    assert partition_folder("name", None) == "name=__HIVE_DEFAULT_PARTITION__"
