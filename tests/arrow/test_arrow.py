"""Polars, DuckDB and pyarrow have the rows of Spark's source, and read no more than a query needs."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest

from forelog import Position, Stream, arrow
from forelog.arrow import source
from forelog.broker import MessageLogWriter
from forelog.errors import BadOption, CorruptRecord, LogNotFound
from forelog.spark.options import read_options
from forelog.spark.planning import find_logs, plan
from forelog.spark.slices import read_slice, table_columns
from tests.conftest import VECTORS
from tests.project.test_docs import FENCE, ROOT
from tests.spark.source.test_filters import make
from tests.spark.source.test_planning import write_log

LOGS = ["m3", *sorted({str(file.parent.relative_to(VECTORS)) for file in VECTORS.rglob("*.log")})]
KINDS = ["whole", "cleaned", "damaged", "out of order", "continued"]
START = 1_700_000_000_000_000_000


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, logger="forelog")


@pytest.fixture
def pl():
    return pytest.importorskip("polars", reason="polars is not installed")


@pytest.fixture
def sql():
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        yield connection


def spark_rows(path: Path, **options: str) -> list[dict]:
    """The rows that Spark's source reads, without Spark."""
    checked = read_options({"path": str(path), "onCorruption": "skip", **options})
    columns, names = table_columns(checked)
    logs = find_logs(checked.path, recursive=checked.recursive)
    pieces = plan(checked, logs, splits=checked.codec != "datapoints")
    return [
        row
        for piece in pieces
        for batch in read_slice(piece, checked, columns, names)
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize("name", LOGS)
def test_every_vector_has_the_rows_of_spark(name, pl, sql, vector):
    path = vector(name)
    codec = "datapoints" if name.startswith("m3") else "commands" if name.startswith("workq") else "records"
    expected = str(spark_rows(path, codec=codec))  # as texts: a NaN isn't equal to itself
    rows = arrow.dataset(path, codec=codec, on_corruption="skip")
    assert str(rows.to_table().to_pylist()) == expected
    assert str(sql.sql("select * from rows").to_arrow_table().cast(rows.schema).to_pylist()) == expected
    frame = arrow.scan_polars(path, codec=codec, on_corruption="skip").collect()
    assert str(frame.to_arrow().cast(rows.schema).to_pylist()) == expected


def test_messages_have_the_rows_of_spark(tmp_path, pl, sql):
    with MessageLogWriter(tmp_path / "log", file_bytes=4000, buffer_bytes=500, flush_interval_ms=None) as writer:
        for i in range(300):
            writer.write(f"plant/{i % 3}", b"%d" % i, {"n": i} if i % 2 else None)
    messages = arrow.dataset(tmp_path / "log", codec="messages")
    assert messages.to_table().to_pylist() == spark_rows(tmp_path / "log", codec="messages")
    found = sql.sql("select count(*), min(properties) from messages where topic = 'plant/1'").fetchall()
    assert found == [(100, '{"n":103}')]
    topics = arrow.scan_polars(tmp_path / "log", codec="messages").select(pl.col("topic").n_unique())
    assert topics.collect().item() == 3


def conditions(rows: list[dict], rng: random.Random) -> list[tuple[str, object]]:
    """Filters by values that are there, that are beside those, and that no row has: for SQL, and for Polars."""
    pl = pytest.importorskip("polars")

    def one():
        column = rng.choice(["segment", "offset", "time"])
        known = [row[column] for row in rows if row[column] is not None]
        values = [rng.choice(known) for _ in range(3)]
        if column == "time":
            values = [datetime.fromisoformat(str(value)) for value in values]
            if rng.random() < 0.3:
                far = [
                    datetime(1, 1, 1, tzinfo=UTC),
                    datetime(1969, 12, 31, tzinfo=UTC),
                    datetime(9999, 1, 1, tzinfo=UTC),
                ]
                values[0] = rng.choice(far)
        else:
            values = [rng.choice([value - 1, value, value, 0, -1, 2**31 - 1]) for value in values]
        texts = [f"timestamptz '{value}'" if column == "time" else str(value) for value in values]
        field, literals = pl.col(column), [pl.lit(value) for value in values]
        return rng.choice(
            [
                (f'"{column}" = {texts[0]}', field == literals[0]),
                (f'"{column}" < {texts[0]}', field < literals[0]),
                (f'"{column}" <= {texts[0]}', field <= literals[0]),
                (f'"{column}" > {texts[0]}', field > literals[0]),
                (f'{texts[0]} <= "{column}"', literals[0] <= field),
                (f'"{column}" <> {texts[0]}', field != literals[0]),
                (f'"{column}" in ({", ".join(texts)})', field.is_in(values)),
                (f'"{column}" between {texts[0]} and {texts[1]}', field.is_between(*literals[:2])),
                (f'"{column}" is null', field.is_null()),
                (f'"{column}" is not null', field.is_not_null()),
                (f'"{column}" is not distinct from {texts[0]}', field.eq_missing(literals[0])),
                ("octet_length(payload) > 12", pl.col("payload").bin.size() > 12),
            ]
        )

    def some(depth: int):
        kind = rng.randrange(6) if depth else 0
        if kind < 3:
            return one()
        if kind == 3:
            text, expression = some(depth - 1)
            return f"not ({text})", ~expression
        (left, a), (right, b) = some(depth - 1), some(depth - 1)
        return f"({left}) {'and' if kind == 4 else 'or'} ({right})", (a & b) if kind == 4 else (a | b)

    return [some(2) for _ in range(60)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_filter_is_the_same_before_and_after(tmp_path, kind, pl, sql):
    rng = random.Random(kind)
    make(kind, tmp_path / "log", 0)
    log = arrow.dataset(tmp_path / "log", on_corruption="skip")
    rows, frame = log.to_table(), arrow.scan_polars(tmp_path / "log", on_corruption="skip")
    whole = frame.collect()
    assert rows.num_rows == whole.height > 100
    for text, expression in conditions(rows.to_pylist(), rng):
        found = sql.sql(f"select * from log where {text}").to_arrow_table()
        assert found == sql.sql(f"select * from rows where {text}").to_arrow_table(), text
        few = sql.sql(f'select max("offset"), count(*) from log where {text}').fetchall()
        assert few == sql.sql(f'select max("offset"), count(*) from rows where {text}').fetchall(), text
        assert frame.filter(expression).collect().equals(whole.filter(expression)), text
        assert (
            frame.filter(expression)
            .select("payload")
            .head(5)
            .collect()
            .equals(whole.filter(expression).select("payload").head(5))
        ), text


@pytest.fixture
def taken(monkeypatch):
    """The segments that were read."""
    numbers: set[int] = set()
    real = read_slice

    def noting(piece, *rest):
        for batch in real(piece, *rest):
            last = piece.stop.segment if piece.stop.offset else piece.stop.segment - 1
            numbers.update(range(piece.start.segment, last + 1))
            yield batch

    monkeypatch.setattr(source, "read_slice", noting)
    return numbers


@pytest.fixture
def log(tmp_path):
    """Ten segments of ten records each, a second apart."""
    times = iter(range(START, START + 10**12, 10**9))
    with Stream(tmp_path / "log", clock=lambda: next(times)).appender() as log:
        for number in range(100):
            if number and number % 10 == 0:
                log.roll()
            log.append(b"%d" % number)
    return tmp_path / "log"


def test_a_query_reads_the_segments_that_it_needs(log, taken, pl, sql):
    rows, frame = arrow.dataset(log), arrow.scan_polars(log)
    assert rows.count_rows(filter=pc.field("segment") == 3) == 10
    assert sql.sql("select count(*) from rows where segment = 3").fetchall() == [(10,)]
    assert frame.filter(pl.col("segment") == 3).select(pl.len()).collect().item() == 10
    assert taken == {3}
    taken.clear()
    condition = (pl.col("segment") < 3) & (pl.col("payload") == b"15") | pl.col("segment").is_in([4])
    assert frame.filter(condition).collect().height == 11
    assert taken == {1, 2, 3, 4}
    taken.clear()
    late = datetime.fromtimestamp(START // 10**9 + 95, UTC)
    assert sql.execute("select count(*) from rows where time >= ?", [late]).fetchall() == [(5,)]
    assert frame.filter(pl.col("time") >= late).collect().height == 5
    assert taken == {10}
    taken.clear()
    assert frame.filter(pl.col("segment") > 99).collect().height == 0
    assert rows.to_table(filter=(pc.field("segment") < 0)).num_rows == 0
    assert frame.filter(pl.col("time") < late - timedelta(days=9)).collect().height == 0
    assert not taken


def test_the_first_rows_come_without_the_rest(log, monkeypatch, pl):
    frame = arrow.scan_polars(log)
    read: list[int] = []
    real = read_slice

    def noting(*of):
        for batch in real(*of):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(source, "read_slice", noting)
    assert frame.head(3).collect()["payload"].to_list() == [b"0", b"1", b"2"]
    assert read == [10]
    # The first row, if it passes the filter: not the first one that passes it.
    assert frame.head(1).filter(pl.col("segment") == 2).collect().height == 0
    assert frame.filter(pl.col("segment") == 2).head(1).collect()["payload"].to_list() == [b"10"]
    assert frame.slice(95, 10).collect().height == frame.tail(5).collect().height == 5


def test_only_the_columns_are_read_that_are_asked_for(log, monkeypatch, pl, sql):
    asked: list[list[str]] = []
    real = source.LogSource.batches
    monkeypatch.setattr(
        source.LogSource,
        "batches",
        lambda self, names, *rest: asked.append(sorted(names)) or real(self, names, *rest),
    )
    rows = arrow.dataset(log, columns=["payload", "offset", "length", "time"])
    sql.sql('select sum("offset") from rows where length = 2').fetchall()
    rows.to_table(columns={"twice": pc.field("offset") * 2})
    rows.to_table(columns=["time"])
    arrow.scan_polars(log).select("offset").collect()
    assert asked[0] in (["length", "offset"], ["length", "offset", "time"])
    assert asked[1:] == [["length", "offset", "payload", "time"], ["time"], ["offset"]]


def test_a_folder_of_logs_has_a_column_for_their_names(tmp_path, pl, sql):
    for name in ("a", "b", "deep/c"):
        write_log(tmp_path / name, 1)
    logs = arrow.dataset(tmp_path, recursive=True)  # noqa: F841 - DuckDB finds it
    frame = arrow.scan_polars(tmp_path, recursive=True)
    assert sql.sql("select log, count(*) from logs group by log order by log").fetchall() == [
        ("a", 400), ("b", 400), ("deep/c", 400),
    ]  # fmt: skip
    (tmp_path / "b" / "000000001.log").write_bytes(b"no log at all")  # and nobody opens it
    assert frame.filter(pl.col("log").is_in(["a", "none"])).select(pl.len()).collect().item() == 400
    assert sql.sql("select distinct log from logs where log = 'deep/c'").fetchall() == [("deep/c",)]


def test_a_query_reads_what_is_there_when_it_runs(log, pl, sql):
    rows, frame = arrow.dataset(log), arrow.scan_polars(log)
    with Stream(log).appender() as appender:
        appender.append(b"more")
    assert rows.count_rows() == frame.select(pl.len()).collect().item() == 101
    assert rows.to_table(columns=["payload"]).to_pandas()["payload"][100] == b"more"


def test_bounds_and_defects_are_options(log, pl):
    since = START + 50 * 10**9
    assert arrow.dataset(log, since=since, until=since + 10**10).count_rows() == 10
    assert arrow.scan_polars(log, start=Position(10, 0)).collect().height == 10
    data = bytearray((log / "000000003.log").read_bytes())
    data[60] ^= 1
    (log / "000000003.log").write_bytes(data)
    (defect,) = arrow.dataset(log, defects=True).to_table().to_pylist()
    assert (defect["segment"], defect["reason"]) == (3, "crc")
    with pytest.raises(CorruptRecord):
        arrow.dataset(log).to_table()
    with pytest.raises(Exception, match="damaged"):
        arrow.scan_polars(log).collect()
    assert arrow.scan_polars(log, on_corruption="skip").collect().height == 99


def test_errors_come_before_any_query(tmp_path, log):
    with pytest.raises(LogNotFound):
        arrow.dataset(tmp_path / "none")
    with pytest.raises(BadOption, match="read it with the codec records"):
        arrow.dataset(log, codec="messages")
    with pytest.raises(BadOption, match="there is no codec"):
        arrow.dataset(log, codec="record")
    with pytest.raises(ValueError, match="choose from segment"):
        arrow.dataset(log, columns=["payloads"])


def test_what_a_dataset_of_files_can_do_and_a_log_cannot_is_refused(log):
    """In a process of its own: without a refusal it would end there."""
    code = f"""
import pyarrow.compute as pc
from forelog import arrow
log = arrow.dataset({str(log)!r})
calls = [log.get_fragments, lambda: log.replace_schema(log.schema), lambda: log.sort_by("offset"),
         lambda: log.join(log, "offset"), lambda: log.join_asof(log, "offset", "segment", 1),
         lambda: log.partition_expression]
for call in calls:
    try:
        call()
    except NotImplementedError:
        print("refused")
print(log.filter(pc.field("segment") == 2).filter(pc.field("payload") == b"15").to_table().num_rows)
print(log.head(3).num_rows, log.take([1, 5]).num_rows, sum(batch.num_rows for batch in log.to_batches()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["refused"] * 6 + ["1", "3", "2", "100"]


def test_the_page_prints_what_it_shows(tmp_path, monkeypatch, pl, sql):
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall((ROOT / "docs/arrow.md").read_text())
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown = 0
    for (language, code), (kind, text) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "py":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(code, "arrow.md", "exec"), namespace)
            if kind == "text":
                assert out.getvalue() == text
                shown += 1
    assert shown > 2
