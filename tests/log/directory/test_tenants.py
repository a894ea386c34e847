"""Nothing starts a log inside of something else: what is there is told, with what to use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from forelog import ForelogError, HeaderMismatch, Stream, UnknownFormat
from forelog.broker import Broker, MessageLogWriter
from forelog.commitlog import CommitLog
from forelog.files import OSFiles
from forelog.formats import FormatName
from forelog.formats.commands.commands import MAGIC
from forelog.formats.m3 import Datapoint, Series
from forelog.formats.state import FORMAT
from forelog.formats.state import MAGIC as STATE_MAGIC
from forelog.jobs import LocalServer
from forelog.log.directory import tenants
from forelog.log.directory.tenants import tenant_of
from forelog.state import PersistentDict, ReplicaServer

pytest.importorskip("msgspec", reason="msgspec is not installed")


def log(path: Path, **options: object) -> None:
    with Stream(path, **options).appender() as appender:  # type: ignore[arg-type]
        appender.append(b"payload")


def messages(path: Path) -> None:
    with MessageLogWriter(path) as writer:
        writer.write("topic", b"payload")


def state(path: Path) -> None:
    with PersistentDict(str(path)) as kept:
        kept["key"] = "value"


def jobs(path: Path) -> None:
    with LocalServer(path):
        pass


def broker(path: Path) -> None:
    async def serve() -> None:
        async with Broker(path):
            pass

    asyncio.run(serve())


def commit_log(path: Path) -> None:
    with CommitLog(path) as writer:
        writer.write(b"payload")


def m3(path: Path) -> None:
    with CommitLog(path, format="m3") as writer:
        writer.write(Series(b"series"), Datapoint(1, 2.0))


def copies(path: Path) -> None:
    with PersistentDict(f"{path}.source") as kept:
        kept["key"] = "value"
        kept.log.add_destination(str(path), ack="synced")
        kept["key"] = "other"


def replica(path: Path) -> None:
    with ReplicaServer(str(path)) as server, PersistentDict(f"{path}.source") as kept:
        host, port = server.address
        kept["key"] = "value"
        kept.log.add_destination(f"replica://{host}:{port}/name", ack="synced")
        kept["key"] = "other"


def table(path: Path) -> None:
    from forelog.spark.tables.formats import format_of
    from forelog.spark.tables.table import Table

    path.parent.mkdir(exist_ok=True)
    with Table(str(path), format_of("parquet")).writing():
        pass


def batches(path: Path) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from forelog.spark.options import write_options
    from forelog.spark.writer import ForelogWriter, Written

    schema = StructType([StructField("payload", BinaryType())])
    writer = ForelogWriter(write_options({"path": str(path)}), schema, overwrite=False)
    with Stream(f"{writer._staging(writer._run)}/part-00000-0").appender() as appender:
        appender.append(b"payload")
    writer.commit([Written(0, 0, 1, writer._run, "")])


def objects(path: Path) -> None:
    (path / "segments").mkdir(parents=True)
    (path / "manifest-000000000012-1.3-9f86d081884c7d65.json").write_text("{}")


FACES: dict[str, Callable[[Path], None]] = {
    "a log of records": log,
    "a log of messages": messages,
    "a state log": state,
    "the command log of a job server": jobs,
    "a broker's directory": broker,
    "a commit log in M3's format": m3,
    "a folder of copies of a state log": copies,
    "a replica server's folder": replica,
    "a table that was ingested from logs": table,
    "a folder of logs that Spark has written": batches,
}
PLACES: dict[str, Callable[[Path], None]] = {
    **FACES,
    "a log with magic 0x01020304 and version 7": lambda path: log(path, magic=0x01020304, version=7),
    "a copy of a state log as objects": objects,
}
FITTING = {
    ("a folder of copies of a state log", "a state log"),  # the whole one is opened
}


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.startswith(("append.", "read."))
    }


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("place", PLACES)
def test_no_face_begins_in_a_place_of_another(tmp_path: Path, place: str, face: str) -> None:
    here = tmp_path / "here"
    PLACES[place](here)
    found = tenant_of(OSFiles(), str(here))
    assert found is not None
    assert found.what == place
    before = contents(here)
    if face == place or (place, face) in FITTING:
        return
    with pytest.raises(ForelogError) as error:
        FACES[face](here)
    assert contents(here) == before
    assert str(here) in str(error.value)
    assert any(text in str(error.value) for text in (place, "is a log itself", "is a log of the format"))


@pytest.mark.parametrize("face", FACES)
def test_every_face_begins_where_nothing_is_or_something_else_is(tmp_path: Path, face: str) -> None:
    here = tmp_path / "here"
    (here / "photos").mkdir(parents=True)
    (here / "photos" / "identity").touch()
    if face != "a table that was ingested from logs":
        (here / "notes.txt").write_text("not ours")
        (here / "a").mkdir()
        (here / "messages").mkdir()
    else:
        (here / "photos" / "identity").unlink()
        (here / "photos").rmdir()
    FACES[face](here)
    assert tenant_of(OSFiles(), str(here)) is not None
    FACES[face](here)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (state, "It is a state log: open it with StateLog or PersistentDict"),
        (jobs, "It is the command log of a job server: serve it with `forelog jobs serve`"),
        (log, "It is a log of records: open it with Stream"),
    ],
)
def test_an_appender_of_another_log_is_told_whose_it_is(tmp_path: Path, make: Callable, told: str) -> None:
    make(tmp_path)
    with pytest.raises(HeaderMismatch, match=told):
        Stream(tmp_path, magic=1).appender()


def test_a_damaged_header_is_not_taken_for_another_logs(tmp_path: Path) -> None:
    log(tmp_path)
    with Stream(tmp_path).appender() as appender:
        appender.roll()
        appender.append(b"payload")
    file = tmp_path / "000000002.log"
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    with pytest.raises(HeaderMismatch) as error:
        Stream(tmp_path).appender()
    assert "It is" not in str(error.value)


@pytest.mark.parametrize("fmt", ["captain", "messages"])
def test_another_format_is_refused_also_beside_a_lock(tmp_path: Path, fmt: FormatName) -> None:
    """A log that was ever appended to has one, which once was enough to pass for a log of any format."""
    (log if fmt == "messages" else messages)(tmp_path)
    assert (tmp_path / "append.lock").exists()
    with pytest.raises(UnknownFormat, match="is a log of the format"):
        Stream(tmp_path, format=fmt).appender()


def test_a_new_log_in_a_slot_of_copies_is_refused(tmp_path: Path) -> None:
    copies(tmp_path / "copy")
    free = next(slot for slot in ("a", "b") if not list((tmp_path / "copy" / slot).glob("*.log")))
    for face in (log, messages, state, jobs):
        with pytest.raises(ForelogError, match="a place for one of the copies"):
            face(tmp_path / "copy" / free)
    assert not list((tmp_path / "copy" / free).glob("*.log"))


def test_copies_of_which_none_is_whole_are_no_place_for_a_new_state(tmp_path: Path) -> None:
    copies(tmp_path / "copy")
    for slot in ("a", "b"):
        for file in (tmp_path / "copy" / slot).iterdir():
            file.unlink()
    with pytest.raises(UnknownFormat, match="a folder of copies of a state log"):
        state(tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("*.log"))


def test_the_magic_numbers_are_those_of_the_faces() -> None:
    assert (FORMAT.magic, MAGIC) == (STATE_MAGIC, tenants.JOBS_MAGIC)
