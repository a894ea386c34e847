"""Data frames to logs: what needs no Spark to see."""

from __future__ import annotations

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import BinaryType, StructField, StructType  # noqa: E402

from forelog import Stream  # noqa: E402
from forelog.files import OSFiles  # noqa: E402
from forelog.spark.options import write_options  # noqa: E402
from forelog.spark.writer import ForelogWriter  # noqa: E402


class Context:
    """What a task is told of itself."""

    get = classmethod(lambda cls: cls())
    partitionId = taskAttemptId = lambda self: 0  # noqa: N815 - Spark's names
    getLocalProperty = lambda self, name: None  # noqa: N815, E731


def write(tmp_path, monkeypatch, payloads, **options) -> Stream:
    monkeypatch.setattr("forelog.spark.writer.TaskContext", Context)
    schema = StructType([StructField("payload", BinaryType())])
    writer = ForelogWriter(write_options({"path": str(tmp_path), **options}), schema, overwrite=False)
    message = writer.write(iter([pa.record_batch({"payload": pa.array(payloads, pa.binary())})]))
    writer.commit([message])
    [path] = tmp_path.glob("batch-*/part-*")
    return Stream(path)


def test_a_batch_may_be_larger_than_a_log_takes_at_once(tmp_path, monkeypatch):
    stream = write(tmp_path, monkeypatch, [bytes(1 << 20)] * 300)
    with stream.cursor() as cursor:
        assert [len(record.payload) for record in cursor] == [1 << 20] * 300


def test_segments_are_about_as_large_as_asked_for(tmp_path, monkeypatch):
    payloads = [b"%08d" % n for n in range(5000)]
    stream = write(tmp_path, monkeypatch, payloads, segmentBytes="10000")
    assert max(segment.byte_count for segment in stream.segments()) < 40_000
    with stream.cursor() as cursor:
        assert [record.payload for record in cursor] == payloads


def test_an_overwrite_whose_removal_fails_halfway_leaves_nothing_of_the_old_to_read(tmp_path, monkeypatch):
    write(tmp_path, monkeypatch, [b"old"])
    schema = StructType([StructField("payload", BinaryType())])
    writer = ForelogWriter(write_options({"path": str(tmp_path)}), schema, overwrite=True)
    message = writer.write(iter([pa.record_batch({"payload": pa.array([b"new"], pa.binary())})]))

    def interrupted(*_: object, **__: object) -> None:
        raise OSError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(OSFiles, "remove_dir", interrupted)
        with pytest.raises(OSError, match="interrupted"):
            writer.commit([message])
    [path] = tmp_path.glob("batch-*/part-*")
    with Stream(path).cursor() as cursor:
        assert [record.payload for record in cursor] == [b"new"]
