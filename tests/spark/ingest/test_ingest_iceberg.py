"""Logs to Iceberg tables."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from forelog import Stream
from forelog.errors import BadOption, CatalogFailed
from forelog.formats.commands.commands import Add, Delete, encode
from forelog.spark.codecs import codec_of
from forelog.spark.pipeline.ingest import Ingest
from forelog.spark.pipeline.ingest_plan import Plan
from forelog.spark.pipeline.ingest_run import run_here
from forelog.spark.tables import iceberg
from forelog.spark.tables.commits import load_state
from forelog.spark.tables.formats import format_of
from forelog.spark.tables.iceberg import place_of
from forelog.spark.tables.storage import storage_of
from forelog.spark.tables.table import settled
from forelog.spark.types import arrow_schema
from tests.commitlog.test_entries import CPU, INFO, chunked, entry
from tests.spark.ingest.test_ingest import Clock, append, ingest, visible
from tests.spark.ingest.test_ingest_kill import killed


def opened(tmp_path, name: str = "default.t", catalog: str = "iceberg.db"):
    """The table, as whoever knows nothing of forelog opens it."""
    with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/{catalog}") as found:
        return found.load_table(name)


def rows(tmp_path) -> list[int]:
    found = opened(tmp_path).scan().to_arrow()
    return sorted(int(payload.split(b":")[0]) for payload in found["payload"].to_pylist())


def test_an_iceberg_table_has_the_rows_of_its_log(tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock())
    append(log, 0, 50)
    ingest(log.path, tmp_path / "t", table="iceberg", partition_by="date")
    append(log, 50, 80)
    assert ingest(log.path, tmp_path / "t", table="iceberg", partition_by="date").rows == 30
    with log.cursor() as cursor:
        expected = [(r.position.segment, r.position.offset, r.time, r.payload) for r in cursor]
    table = opened(tmp_path)
    found = table.scan().to_arrow()
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected
    assert found.schema.names == list(codec_of("records").default)
    assert [str(field.transform) for field in table.spec().fields] == ["day"]


def test_a_table_by_day_is_read_by_time_without_opening_other_days(tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock())
    append(log, 0, 80)
    ingest(log.path, tmp_path / "t", table="iceberg", partition_by="date")
    table = opened(tmp_path)
    files = list(table.scan().plan_files())
    scan = table.scan(row_filter="time >= '2026-01-10T00:00:00+00:00' and time < '2026-01-11T00:00:00+00:00'")
    assert {task.file.file_path.split("/")[-2] for task in scan.plan_files()} == {"date=2026-01-10"}
    assert 0 < len(list(scan.plan_files())) < len(files)
    with log.cursor() as cursor:
        expected = [r.payload for r in cursor if (r.time.month, r.time.day) == (1, 10)]
    assert sorted(scan.to_arrow()["payload"].to_pylist()) == sorted(expected)


def test_the_schema_is_the_codecs(tmp_path):
    log = Stream(str(tmp_path / "log"))
    with log.appender() as appender:
        appender.append(encode(Add(b"a" * 16, "mail", ttr_ms=1, ttl_ms=1, created_ns=0)))
    ingest(log.path, tmp_path / "t", table="iceberg", codec="commands")
    codec = codec_of("commands")
    expected = arrow_schema(codec.columns, codec.default)
    found = opened(tmp_path).scan().to_arrow()
    assert found.schema.names == expected.names
    for field in expected:
        kind = str(found.schema.field(field.name).type).removeprefix("large_")
        assert kind == ("int32" if pa.types.is_int16(field.type) else str(field.type)), field.name


def test_datapoints_with_their_tags(tmp_path):
    (tmp_path / "log").mkdir()
    messages = [entry(0, CPU if n == 0 else None, n, b"n") for n in range(6)]
    (tmp_path / "log" / "commitlog-0-0.db").write_bytes(chunked(INFO, *messages))
    assert ingest(tmp_path / "log", tmp_path / "t", table="iceberg", codec="datapoints").rows == 6
    found = opened(tmp_path).scan().to_arrow().to_pylist()
    assert sorted(row["value"] for row in found) == list(range(6))
    assert all(row["tags"] for row in found)


def test_partitions_with_strange_names_and_with_none(tmp_path):
    log, names = Stream(str(tmp_path / "log")), ["eu/west", "50%", "a b=c", "größe", "#?&", "x" * 150]
    with log.appender() as appender:
        for n, name in enumerate(names):
            appender.append(encode(Add(bytes([n]) * 16, name, ttr_ms=1, ttl_ms=1, created_ns=0)))
        appender.append(encode(Delete(bytes(16))))
    ingest(log.path, tmp_path / "t", table="iceberg", codec="commands", partition_by="name")
    table = opened(tmp_path)
    found = table.scan().to_arrow()["name"].to_pylist()
    assert sorted(name or "" for name in found) == sorted(["", *names])
    for name in names:
        scan = table.scan(row_filter=f"name = '{name}'")
        assert len(list(scan.plan_files())) == 1
        assert scan.to_arrow()["name"].to_pylist() == [name]


def test_small_files_are_merged_in_a_snapshot_that_changes_no_row(tmp_path):
    log = Stream(str(tmp_path / "log"))
    for n in range(9):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, tmp_path / "t", table="iceberg", compact_below=1 << 20)
    table = opened(tmp_path)
    assert len(list(table.scan().plan_files())) == 2
    assert rows(tmp_path) == list(range(90))
    before = table.metadata.snapshots[0]
    assert table.scan(snapshot_id=before.snapshot_id).count() == 10, "what was merged is there for earlier ones"
    assert sum(one.summary.operation.value == "overwrite" for one in table.metadata.snapshots) == 1


def test_snapshots_say_how_far_they_go(tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 50)
    ingest(log.path, tmp_path / "t", table="iceberg")
    snapshot = opened(tmp_path).current_snapshot()
    assert snapshot.summary["forelog.commit"] == "1"
    assert json.loads(snapshot.summary["forelog.positions"]) == {"log": str(log.end())}


@pytest.mark.parametrize("step", ["committed", "moved", "announced", "merged"])
def test_a_kill_between_our_commit_and_icebergs_loses_nothing_and_doubles_nothing(step, tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock(minutes=4))
    append(log, 0, 450, segment_bytes=1500)
    assert killed(log.path, tmp_path / "t", "--table", "iceberg", "--die-at", step)
    assert not killed(log.path, tmp_path / "t", "--table", "iceberg")
    assert rows(tmp_path) == list(range(450))
    assert load_state(storage_of(str(tmp_path / "t"))).positions == {"log": log.end()}


def test_what_a_killed_run_had_decided_is_told_to_iceberg_before_the_table_is_read(tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 50)
    assert killed(log.path, tmp_path / "t", "--table", "iceberg", "--die-at", "moved")
    state = settled(str(tmp_path / "t"))
    assert sum(file.rows for file in state.files.values()) == len(rows(tmp_path)) > 0
    assert sorted(state.files) == sorted(format_of("iceberg").current(storage_of(str(tmp_path / "t")), state))


def test_a_commit_is_told_once_also_if_its_snapshot_is_gone_and_others_have_written(tmp_path):
    log = Stream(str(tmp_path / "log"))
    for n in range(3):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, tmp_path / "t", table="iceberg", compact_below=0)
    table = opened(tmp_path)
    table.overwrite(table.scan().to_arrow())
    old = [one.snapshot_id for one in table.metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    table.catalog.close()
    state = load_state(storage_of(str(tmp_path / "t")))
    format_of("iceberg").announce(storage_of(str(tmp_path / "t")), state.last)
    assert rows(tmp_path) == list(range(30))
    append(log, 30, 40)
    assert ingest(log.path, tmp_path / "t", table="iceberg", compact_below=1 << 20).rows == 10
    assert rows(tmp_path) == list(range(40))


def test_a_merge_of_files_that_others_have_merged_is_not_told(tmp_path):
    log, target = Stream(str(tmp_path / "log")), str(tmp_path / "t")
    for n in range(8):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, target, table="iceberg", compact_below=0)

    def reached(step: str) -> None:
        if step == "committed":
            raise KeyboardInterrupt

    # It ends after it has decided its merge, and before it tells Iceberg.
    with pytest.raises(KeyboardInterrupt):
        Ingest(log.path, target, run_here, Plan(table="iceberg"), reached=reached).once()
    assert load_state(storage_of(str(target))).last.kind == "compact"
    table = opened(tmp_path)
    table.overwrite(table.scan().to_arrow())
    table.catalog.close()
    assert ingest(log.path, target, table="iceberg").rows == 0
    assert rows(tmp_path) == list(range(80))


def test_old_snapshots_are_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(iceberg, "SNAPSHOTS_MAX", 6)
    monkeypatch.setattr(iceberg, "_SNAPSHOTS_KEPT", 3)
    log = Stream(str(tmp_path / "log"))
    for n in range(9):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, tmp_path / "t", table="iceberg", compact_below=0)
    assert len(opened(tmp_path).metadata.snapshots) <= 6
    assert rows(tmp_path) == list(range(90))


def test_a_catalog_and_a_name_of_ones_own(tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 10)
    named = {"catalog": f"sqlite:///{tmp_path}/mine.db", "table_name": "sales.eu.orders"}
    ingest(log.path, tmp_path / "t", table="iceberg", **named)
    append(log, 10, 20)
    assert ingest(log.path, tmp_path / "t", table="iceberg").rows == 10, "they stay"
    assert opened(tmp_path, "sales.eu.orders", "mine.db").scan().count() == 20
    assert not (tmp_path / "iceberg.db").exists()
    with pytest.raises(BadOption, match=r"not 'sales\.other'"):
        ingest(log.path, tmp_path / "t", table="iceberg", table_name="sales.other")
    with pytest.raises(BadOption, match=r"has a table sales\.eu\.orders already"):
        ingest(log.path, tmp_path / "t2", table="iceberg", **named)
    assert visible(tmp_path / "t2") == []


def test_a_table_that_was_dropped_is_told_and_not_begun_anew(tmp_path):
    log, target = Stream(str(tmp_path / "log")), tmp_path / "t"
    for n in range(2):
        append(log, 10 * n, 10 * n + 10)
        ingest(log.path, target, table="iceberg")
    last = opened(tmp_path).metadata_location
    catalog = SqlCatalog("default", uri=f"sqlite:///{tmp_path}/iceberg.db")
    catalog.drop_table("default.t")
    catalog.close()
    append(log, 20, 30)
    with pytest.raises(CatalogFailed, match="is gone"):
        ingest(log.path, target, table="iceberg")
    with pytest.raises(CatalogFailed, match="is gone"):
        format_of("iceberg").current(storage_of(str(target)), load_state(storage_of(str(target))))
    with catalog:
        catalog.register_table("default.t", last)
    ingest(log.path, target, table="iceberg")
    assert rows(tmp_path) == list(range(30))


def test_what_is_wrong_with_a_catalog_is_told_in_a_line(tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 10)
    for plan, kind, told in [
        ({"catalog": "sqlite:////nowhere/at/all.db"}, CatalogFailed, "unable to open database file"),
        ({"catalog": "postgresql://me:secret@host/db"}, BadOption, "pyiceberg's configuration"),
        ({"table_name": "orders"}, BadOption, "expected NAMESPACE.NAME"),
    ]:
        with pytest.raises(kind, match=told) as caught:
            ingest(log.path, tmp_path / "t", table="iceberg", **plan)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)
        assert visible(tmp_path / "t") == []
    with pytest.raises(BadOption, match="in no catalog"):
        ingest(log.path, tmp_path / "t", table="parquet", table_name="sales.orders")


def test_where_a_table_is_unless_it_is_named():
    catalog = "sqlite:////data/iceberg.db"
    assert place_of("/data/my orders.table", None, None) == (catalog, "default.my_orders_table")
    assert place_of("/data/t", "prod", "a.b") == ("prod", "a.b")


def test_a_table_of_others_is_left_alone(tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 10)
    with SqlCatalog(
        "default", uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=f"file://{tmp_path}/w"
    ) as catalog:
        catalog.create_namespace("default")
        catalog.create_table("default.t", pa.schema([("a", pa.int32())]))
    with pytest.raises(BadOption, match=r"has a table default\.t already"):
        ingest(log.path, tmp_path / "t", table="iceberg")
