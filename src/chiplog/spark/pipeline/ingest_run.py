"""Where the tasks of an ingest run: here, one after the other, or on Spark.

A runner takes tasks and a function, and returns what the function made of each, in any order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from chiplog.errors import ChiplogError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Run = Callable[[Sequence[Any], Callable[[Any], Any]], list[Any]]


class TaskFailed(ChiplogError):
    """A task failed on Spark as often as it was tried."""


def run_here(tasks: Sequence[T], function: Callable[[T], R]) -> list[R]:
    """In this process."""
    return [function(task) for task in tasks]


def run_on(spark: SparkSession) -> Run:
    """On Spark, a task of its own for each. Only tasks and what they return pass through it, as bytes."""

    def run(tasks: Sequence[T], function: Callable[[T], R]) -> list[R]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        packed = [pickle.dumps(task) for task in tasks]

        def work(task: bytes) -> bytes:
            return pickle.dumps(function(pickle.loads(task)))

        try:
            return [pickle.loads(result) for result in _collect(spark, packed, work)]
        except (Py4JJavaError, PySparkException) as error:
            raise TaskFailed(f"a task failed: {_cause(str(error))}") from error

    return run


def _collect(spark: SparkSession, packed: list[bytes], work: Callable[[bytes], bytes]) -> list[bytes]:
    if not _is_remote(spark):
        found: list[bytes] = spark.sparkContext.parallelize(packed, len(packed)).map(work).collect()
        return found

    # Spark Connect has data frames alone, and this needs pandas there for no good reason.
    def work_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            results = [work(packed[n]) for n in batch.column(0).to_pylist()]
            yield pyarrow.RecordBatch.from_pydict({"result": pyarrow.array(results, pyarrow.binary())})

    frame = spark.range(0, len(packed), 1, len(packed)).mapInArrow(work_on, "result binary")
    return [bytes(row[0]) for row in frame.collect()]


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once."""
    return 1 if _is_remote(spark) else int(spark.sparkContext.defaultParallelism)


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _cause(text: str) -> str:
    """The line of a Python traceback in Spark's message that says what was wrong."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            return next((after for after in lines[place + 1 :] if after and not after.startswith(" ")), text)
    return lines[0] if lines else "Spark doesn't say why"
