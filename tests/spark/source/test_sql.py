"""Logs in SQL: as tables with a name, by their paths, several at once; and errors in one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from forelog import Stream
from forelog.broker import MessageLogWriter
from forelog.errors import BadOption, LogNotFound
from forelog.log.directory.tenants import JOBS_MAGIC
from forelog.spark.options import read_options
from forelog.spark.pipeline.failures import find_failure
from forelog.spark.planning import codec_for, logs_of, plan
from forelog.spark.source import ForelogDataSource

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def logs(tmp_path):
    """Three logs of 101 records in two segments each, beside a folder that is none."""
    for name in ("a", "b", "eu/c"):
        with Stream(tmp_path / name).appender() as log:
            log.append_many([b"%s %d" % (name.encode(), number) for number in range(100)])
            log.roll()
            log.append(b"last")
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def sql(spark):
    made = []

    def run(text: str) -> list:
        if text.startswith("CREATE TABLE"):
            made.append(text.split()[2])
        return [tuple(row) for row in spark.sql(text).collect()]

    yield run
    for name in made:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.parametrize(
    "how", ["OPTIONS (path '{}')", "LOCATION '{}'", "OPTIONS (codec 'records') LOCATION '{}'"]
)
def test_a_log_is_a_table_with_a_name(sql, logs, how):
    sql(f"CREATE TABLE orders USING forelog {how.format(logs / 'a')} COMMENT 'all orders'")
    assert sql("SELECT count(*), max(segment) FROM orders") == [(101, 2)]
    assert sql("SELECT count(*) FROM orders WHERE segment = 2") == [(1,)]
    described = dict(row[:2] for row in sql("DESCRIBE EXTENDED orders"))
    assert described["time"] == "timestamp"
    with Stream(logs / "a").appender() as log:
        log.append(b"one more")
    assert sql("SELECT count(*) FROM orders") == [(102,)]
    assert sql("DROP TABLE orders") == []
    assert len(Stream(logs / "a").numbers()) == 2


def test_a_query_can_be_kept_as_logs(sql, logs):
    sql(f"CREATE TABLE kept USING forelog OPTIONS (path '{logs / 'kept'}') AS SELECT cast('x' AS binary) payload")
    sql("INSERT INTO kept SELECT cast('y' AS binary)")
    found = sql(f"SELECT cast(payload AS string) FROM forelog.`{logs / 'kept/batch-*/part-*'}`")
    assert sorted(found) == [("x",), ("y",)]


def test_a_log_is_read_by_its_path(sql, logs):
    assert sql(f"SELECT count(*), min(segment) FROM forelog.`{logs / 'a'}`") == [(101, 1)]
    joined = f"SELECT count(*) FROM forelog.`{logs / 'a'}` a JOIN forelog.`{logs / 'b'}` b USING (segment, offset)"
    assert sql(joined)[0][0] > 0
    assert sql(f"SELECT log, count(*) FROM forelog.`{logs}/[ab]` GROUP BY log ORDER BY log") == [
        (str(logs / "a"), 101),
        (str(logs / "b"), 101),
    ]
    with pytest.raises(Exception, match="To give one a name: CREATE TABLE"):
        sql(f"DROP TABLE forelog.`{logs / 'a'}`")


def test_by_its_path_a_log_is_read_with_the_codec_that_fits(sql, logs):
    with MessageLogWriter(logs / "bus") as bus:
        bus.write("plant/1", b"x")
    Stream(logs / "jobs", magic=JOBS_MAGIC).appender().close()
    assert sql(f"SELECT topic FROM forelog.`{logs / 'bus'}`") == [("plant/1",)]
    assert sql(f"SELECT command, id FROM forelog.`{logs / 'jobs'}`") == []


def test_a_codec_is_chosen_for_logs_of_one_kind(logs):
    with MessageLogWriter(logs / "bus") as bus:
        bus.write("plant/1", b"x")

    def codec(*names: str) -> str:
        return codec_for([log for name in names for log in logs_of(read_options({"path": str(logs / name)}))])

    assert (codec("a", "b"), codec("bus")) == ("records", "messages")
    with pytest.raises(BadOption, match="codecs messages, records: read each kind by itself"):
        codec("a", "bus")


def test_several_logs_are_read_together(read, spark, logs):
    paths = [str(logs / name) for name in ("b", "a")]
    frame = spark.read.format("forelog").load(paths)
    assert frame.columns[0] == "log"
    assert sorted(frame.groupBy("log").count().collect()) == [(paths[1], 101), (paths[0], 101)]
    assert frame.where(f"log = '{paths[0]}'").count() == 101
    deep = read(f"{logs}/e*", recursive=True)
    assert {row.log for row in deep.collect()} == {str(logs / "eu/c")}


def test_a_pattern_needs_a_log(logs):
    assert [log.name for log in logs_of(read_options({"path": f"{logs}/*"}))] == [
        str(logs / "a"),
        str(logs / "b"),
    ]
    with pytest.raises(LogNotFound, match="there is no log at"):
        logs_of(read_options({"path": f"{logs}/x*"}))
    with pytest.raises(LogNotFound):
        logs_of(read_options({"paths": json.dumps([str(logs / "a"), str(logs / "none")])}))
    with pytest.raises(BadOption, match="a list of paths as JSON"):
        read_options({"paths": "a,b"})


def test_a_folder_with_the_signs_of_a_pattern_is_one(logs):
    Stream(logs / "odd[1]*").appender().close()
    options = read_options({"path": str(logs / "odd[1]*")})
    assert options.paths == ()
    assert [log.name for log in logs_of(options)] == ["odd[1]*"]


def test_patterns_of_other_filesystems(logs):
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    fsspec.filesystem("memory").put(str(logs / "a"), "/patterned/a", recursive=True)
    assert [log.name for log in logs_of(read_options({"path": "memory://patterned/*"}))] == [
        "memory:///patterned/a"
    ]


def test_a_stream_of_several_logs(spark, logs, tmp_path):
    frame = spark.readStream.format("forelog").load(f"{logs}/[ab]")
    query = frame.writeStream.format("memory").queryName("several").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(spark.sql("SELECT log, count(*) FROM several GROUP BY log").collect()) == [
        (str(logs / "a"), 101),
        (str(logs / "b"), 101),
    ]


def test_at_least_so_many_tasks(tmp_path):
    with Stream(tmp_path / "log").appender(segment_bytes=5 << 20) as log:
        for _ in range(12):
            log.append_many([b"x" * 1000] * 1000)

    def tasks(**options: str) -> int:
        checked = read_options({"path": str(tmp_path / "log"), **options})
        return len(plan(checked, logs_of(checked), splits=True))

    assert tasks() == 1
    assert [tasks(minPartitions=str(count)) >= count for count in (2, 3, 4, 6)] == [True] * 4
    assert 8 <= tasks(minPartitions="100000") <= 12


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"path": "nowhere"}, "forelog.errors.LogNotFound: there is no log at /"),
        ({"codecs": "x"}, "forelog.errors.BadOption: forelog has no option 'codecs': did you mean codec?"),
        ({"since": "soon"}, "forelog.errors.BadOption: since: "),
    ],
)
def test_an_error_is_one_line(spark, logs, options, error):
    with pytest.raises(Exception, match=r"^forelog\.errors\.") as caught:
        spark.read.format("forelog").options(**{"path": str(logs / "a"), **options}).load().collect()
    text = str(caught.value)
    assert text.startswith(error)
    assert "\n" not in text.strip()
    assert type(find_failure(caught.value)).__name__ in error


def test_an_error_of_a_task_is_one_line(spark, logs):
    segment = logs / "a/000000001.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(Exception, match=r"^forelog\.errors\.") as caught:
        spark.read.format("forelog").load(str(logs / "a")).selectExpr("sum(length(payload))").collect()
    assert str(caught.value).startswith("forelog.errors.CorruptRecord: damaged record")
    assert "\n" not in str(caught.value).strip()


def test_a_stream_does_not_stop_at_damage(logs):
    source = ForelogDataSource({"path": str(logs / "a"), "onCorruption": "stop"})
    with pytest.raises(BadOption, match="a stream doesn't end at damage"):
        source.streamReader(None)


_SESSION = """
import sys
from forelog import spark
session = spark.session("local[1]", spark_sql_catalogImplementation="hive", spark_sql_warehouse_dir=sys.argv[2],
    spark_hadoop_javax_jdo_option_ConnectionURL=f"jdbc:derby:;databaseName={sys.argv[2]}/metastore;create=true")
if sys.argv[3] == "make":
    session.sql(f"CREATE TABLE orders USING forelog LOCATION '{sys.argv[1]}'")
print(session.sql("SELECT count(*) FROM orders").first()[0])
"""


@pytest.mark.slow
def test_a_table_survives_in_a_metastore(logs, tmp_path):
    (tmp_path / "store").mkdir()
    for word in ("make", "find"):
        words = [sys.executable, "-c", _SESSION, str(logs / "a"), str(tmp_path / "store"), word]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.stdout.strip() == "101", done.stderr
