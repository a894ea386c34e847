"""Logs to Delta tables."""

from __future__ import annotations

import pytest

from forelog import Stream
from forelog.errors import BadOption, TableDamaged
from forelog.formats.commands.commands import Add, encode
from forelog.spark.tables.commits import load_state
from forelog.spark.tables.formats import format_of
from forelog.spark.tables.storage import storage_of
from forelog.spark.tables.table import settled
from tests.spark.ingest.test_ingest import Clock, append, ingest
from tests.spark.ingest.test_ingest_kill import killed

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")


def rows(target) -> list[int]:
    table = deltalake.DeltaTable(str(target)).to_pyarrow_table()
    return sorted(int(payload.split(b":")[0]) for payload in table["payload"].to_pylist())


def test_a_delta_table_has_the_rows_of_its_log(tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock())
    append(log, 0, 50)
    ingest(log.path, tmp_path / "t", table="delta", partition_by="date")
    append(log, 50, 80)
    assert ingest(log.path, tmp_path / "t", table="delta", partition_by="date").rows == 30
    assert rows(tmp_path / "t") == list(range(80))
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert table.metadata().partition_columns == ["date"]
    dated = table.to_pyarrow_table()
    assert [time.date() for time in dated["time"].to_pylist()] == dated["date"].to_pylist()


def test_small_files_are_merged_in_a_version_that_changes_no_row(tmp_path):
    log = Stream(str(tmp_path / "log"))
    for n in range(9):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, tmp_path / "t", table="delta", compact_below=1 << 20)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    assert len(table.file_uris()) == 2
    assert rows(tmp_path / "t") == list(range(90))
    assert len(table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)) == 8
    assert rows(tmp_path / "t") == list(range(90))
    append(log, 90, 100)
    assert ingest(log.path, tmp_path / "t", table="delta").rows == 10


def test_partitions_with_strange_names(tmp_path):
    log, names = Stream(str(tmp_path / "log")), ["eu/west", "50%", "a b=c", "größe"]
    with log.appender() as appender:
        for n, name in enumerate(names):
            appender.append(encode(Add(bytes([n]) * 16, name, ttr_ms=1, ttl_ms=1, created_ns=0)))
    ingest(log.path, tmp_path / "t", table="delta", codec="commands", partition_by="name")
    table = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert sorted(table["name"].to_pylist()) == sorted(names)


@pytest.mark.parametrize("step", ["committed", "moved", "announced", "merged"])
def test_a_kill_between_our_commit_and_deltas_loses_nothing_and_doubles_nothing(step, tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock(minutes=4))
    append(log, 0, 450, segment_bytes=1500)
    assert killed(log.path, tmp_path / "t", "--table", "delta", "--die-at", step)
    assert not killed(log.path, tmp_path / "t", "--table", "delta")
    assert rows(tmp_path / "t") == list(range(450))


def test_what_a_killed_run_had_decided_is_told_to_delta_before_the_table_is_read(tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 50)
    assert killed(log.path, tmp_path / "t", "--table", "delta", "--die-at", "moved")
    state = settled(str(tmp_path / "t"))
    assert sum(file.rows for file in state.files.values()) == len(rows(tmp_path / "t")) > 0
    assert sorted(state.files) == sorted(format_of("delta").current(storage_of(str(tmp_path / "t")), state))


def test_files_that_delta_has_merged_and_vacuumed_by_itself_are_not_missed(tmp_path):
    log = Stream(str(tmp_path / "log"))
    for n in range(10):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, tmp_path / "t", table="delta", compact_below=1 << 20)
        table = deltalake.DeltaTable(str(tmp_path / "t"))
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert rows(tmp_path / "t") == list(range(100))


def test_a_table_whose_log_is_gone_is_told_and_not_begun_anew(tmp_path):
    log, target = Stream(str(tmp_path / "log")), tmp_path / "t"
    for n in range(2):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, target, table="delta")
    (target / "_delta_log").rename(tmp_path / "away")
    append(log, 20, 30)
    with pytest.raises(TableDamaged, match="_delta_log is gone"):
        ingest(log.path, target, table="delta")
    with pytest.raises(TableDamaged, match="_delta_log is gone"):
        format_of("delta").current(storage_of(str(target)), load_state(storage_of(str(target))))
    assert not (target / "_delta_log").exists()
    (tmp_path / "away").rename(target / "_delta_log")
    ingest(log.path, target, table="delta")
    assert rows(target) == list(range(30))


def test_a_table_of_others_is_left_alone(tmp_path):
    import pyarrow as pa

    log = Stream(str(tmp_path / "log"))
    append(log, 0, 10)
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    with pytest.raises(BadOption, match="no ingest made"):
        ingest(log.path, tmp_path / "t", table="delta")
