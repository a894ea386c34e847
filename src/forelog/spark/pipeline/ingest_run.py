"""Runs tasks of the pipeline: in this process, one after the other, or on Spark.

A runner takes tasks and a function, and returns the function's results in any order. Meanwhile it reports how many
tasks are done.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from forelog.errors import TaskFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Finished = Callable[[int], None]
Run = Callable[[Sequence[Any], Callable[[Any], Any], Finished], list[Any]]
POLL_SECONDS = 0.2


def ignored(_: int) -> None:
    """Ignores the number of finished tasks."""


def bundled(items: Sequence[T], sizes: Sequence[int], limit: int) -> Iterator[tuple[T, ...]]:
    """Groups of items in their order, up to a total size. A larger item is a group by itself."""
    group: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if group and total + size > limit:
            yield tuple(group)
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield tuple(group)


def run_here(tasks: Sequence[T], function: Callable[[T], R], finished: Finished = ignored) -> list[R]:
    """Run the tasks in this process, one after the other."""
    results = []
    for task in tasks:
        results.append(function(task))
        finished(len(results))
    return results


def run_on(spark: SparkSession) -> Run:
    """Run each task as a task of Spark. Only tasks and results pass through Spark, as bytes."""

    def run(tasks: Sequence[T], function: Callable[[T], R], finished: Finished = ignored) -> list[R]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        packed = [pickle.dumps(task) for task in tasks]

        def work(task: bytes) -> bytes:
            return pickle.dumps(function(pickle.loads(task)))

        try:
            return [pickle.loads(result) for result in _collect(spark, packed, work, finished)]
        except (Py4JJavaError, PySparkException) as error:
            raise TaskFailed(f"a task failed: {_cause(str(error))}") from error

    return run


def _collect(
    spark: SparkSession, packed: list[bytes], work: Callable[[bytes], bytes], finished: Finished
) -> list[bytes]:
    if not _is_remote(spark):
        count = spark.sparkContext.accumulator(0)

        def counted(task: bytes) -> bytes:
            result = work(task)
            count.add(1)
            return result

        with watched(lambda: finished(min(count.value, len(packed)))):  # tasks that are retried count again
            found: list[bytes] = spark.sparkContext.parallelize(packed, len(packed)).map(counted).collect()
        return found

    # Spark Connect has data frames alone, and this needs pandas there for no good reason.
    def work_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        for batch in batches:
            results = [work(packed[n]) for n in batch.column(0).to_pylist()]
            yield pyarrow.RecordBatch.from_pydict({"result": pyarrow.array(results, pyarrow.binary())})

    frame = spark.range(0, len(packed), 1, len(packed)).mapInArrow(work_on, "result binary")
    return [bytes(row[0]) for row in frame.collect()]


@contextmanager
def watched(tell: Callable[[], None]) -> Iterator[None]:
    """Report progress now and then until the block ends."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            tell()

    thread = threading.Thread(target=poll, name="forelog-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that run at once."""
    return 1 if _is_remote(spark) else int(spark.sparkContext.defaultParallelism)


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _cause(text: str) -> str:
    """The last line of the Python traceback in a message of Spark."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if "Traceback (most recent call last)" in line:
            return next((after for after in lines[place + 1 :] if after and not after.startswith(" ")), text)
    return lines[0] if lines else "Spark doesn't say why"
