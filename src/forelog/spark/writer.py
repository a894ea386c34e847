"""Data frames to logs.

Every task appends its rows to a separate log, or to one for each key, in a hidden folder. When all tasks have
ended, one rename puts the whole batch in place::

    TARGET/_forelog-5f0c…/part-00003/000000001.log     while tasks write
    TARGET/batch-5f0c…/part-00003/000000001.log        committed
    TARGET/batch-1c9e…-00000007/key=eu/part-00003/…    of a stream: a retried batch has the same name

`spark.read.format("forelog").option("recursive", "true")` reads them all.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from forelog.errors import BadOption
from forelog.files import OSFiles
from forelog.files.modes import mode_like
from forelog.formats.captain import MAGIC, VERSION
from forelog.log.directory.tenants import refuse_others
from forelog.log.stream import Stream
from forelog.spark.options import WriteOptions
from forelog.spark.remote import is_remote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_STAGING = "_forelog-"
_APPEND_BYTES = 16 << 20  # per append, because a batch may be larger than a log takes at once


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    task: int
    attempt: int
    rows: int
    run: str
    """The name of its staging folder, because another instance of the writer may commit it."""
    query: str
    """The streaming query, by its name in the checkpoint."""


class _Staged:
    """What writers of batches and of streams share: logs in a staging folder for each run."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        if is_remote(options.path):
            raise BadOption(f"{options.path}: logs are written to local filesystems only")
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if types.get("payload") not in ("binary", "string"):
            raise BadOption(
                f"a log is written from a column `payload` of binary or string; there are {', '.join(types)}"
            )
        if options.key is not None and options.key not in types:
            raise BadOption(f"key is {options.key!r}; there are the columns {', '.join(types)}")
        refuse_others(OSFiles(), options.path, "a folder of logs from Spark", kind="batches")
        self._options = options
        self._run = uuid.uuid4().hex
        self._mode = mode_like(options.path) if options.mode is None else options.mode

    def _staging(self, name: str) -> str:
        return os.path.join(self._options.path, f"{_STAGING}{name}")

    def _write(self, iterator: Iterator[pa.RecordBatch], staging: str) -> Written:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.taskAttemptId()
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        part = f"part-{task:05d}-{attempt}"
        rows = 0
        logs: dict[str, Any] = {}
        try:
            for batch in iterator:
                for folder, payloads in self._groups(batch):
                    if folder not in logs:
                        logs[folder] = self._open(os.path.join(staging, folder, part))
                    for run in _runs(payloads, min(_APPEND_BYTES, self._options.segment_bytes)):
                        logs[folder].append_many(run.to_pylist())
                rows += batch.num_rows
            return Written(task, attempt, rows, self._run, query)
        finally:
            for log in logs.values():
                log.close()  # syncs

    def _open(self, path: str) -> Any:
        options = self._options
        stream = Stream(
            path,
            magic=MAGIC if options.magic is None else options.magic,
            version=VERSION if options.version is None else options.version,
            mode=self._mode,
        )
        return stream.appender(segment_bytes=options.segment_bytes)

    def _groups(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        payload = batch["payload"]
        if payload.null_count:
            raise BadOption("a payload is null: a record has at least an empty one; filter those rows out")
        payload = payload.cast(pa.binary())
        if self._options.key is None:
            yield "", payload
            return
        keys = batch[self._options.key].cast(pa.string())
        for key in pc.unique(keys).to_pylist():
            chosen = pc.is_null(keys) if key is None else pc.equal(keys, key)
            folder = f"{self._options.key}={'__null__' if key is None else quote(key, safe='')}"
            yield folder, payload.filter(pc.fill_null(chosen, False))

    def _remove(self, staging: str) -> None:
        with contextlib.suppress(OSError):
            OSFiles(self._mode).remove_dir(staging)

    def _publish(self, staging: str, name: str, messages: list[Any]) -> None:
        """Put the logs of the successful task attempts in place, in one step."""
        files = OSFiles(self._mode)
        target = os.path.join(self._options.path, name)
        if os.path.exists(target):
            self._remove(staging)  # it was committed before: this is a retry
            return
        counted = {f"part-{m.task:05d}-{m.attempt}" for m in messages if isinstance(m, Written)}
        files.make_dir(staging)
        for folder, folders, _ in os.walk(staging):
            for part in [name for name in folders if name.startswith("part-") and name not in counted]:
                files.remove_dir(os.path.join(folder, part))  # of an abandoned attempt
            files.sync_dir(folder)
        files.move_dir(staging, target)
        files.sync_dir(self._options.path)


def _runs(payloads: pa.Array, most: int) -> Iterator[pa.Array]:
    """Payloads in parts for one append each, so that the log can roll in between."""
    if len(payloads) < 2 or payloads.nbytes <= most:
        yield payloads
        return
    half = len(payloads) // 2
    yield from _runs(payloads[:half], most)
    yield from _runs(payloads[half:], most)


class ForelogWriter(_Staged, DataSourceArrowWriter):
    """Writes a data frame. `overwrite` replaces what was there, once the new batch is complete."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema)
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._staging(self._run))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        older = self._batches() if self._overwrite else []
        self._publish(self._staging(self._run), f"batch-{self._run}", messages)
        for name in older:  # hidden first, so that no partly removed batch is read
            place = self._staging(f"old-{name}-{self._run}")
            files = OSFiles(self._mode)
            files.move_dir(os.path.join(self._options.path, name), place)
            files.remove_dir(place)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - all goes
        self._remove(self._staging(self._run))

    def _batches(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._options.path) if name.startswith("batch-")]
        except FileNotFoundError:
            return []


class ForelogStreamWriter(_Staged, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each exactly once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._staging(self._run))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for run, query in {(m.run, m.query) for m in messages if isinstance(m, Written)}:
            self._publish(self._staging(run), f"batch-{query}-{batchId:08d}", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        for run in {m.run for m in messages if isinstance(m, Written)}:
            self._remove(self._staging(run))
