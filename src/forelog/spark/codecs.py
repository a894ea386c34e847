"""The columns of a table: those that every record has, and those of its payload.

A codec names its columns with their Spark types, and makes Arrow arrays of them from a slice of a log, block by
block, without a Python object per row. `register_codec` adds one.

    records      segment, offset, time, payload; on request time_ns and length
    commands     the job server's command log: what each command did to which job
    datapoints   M3's commit log: a row for each datapoint
    messages     a broker's log: a row for each message
    state        a state log: a row for each event
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from forelog import kernel
from forelog.errors import BadOption
from forelog.formats import Block
from forelog.formats.columns import load_pyarrow
from forelog.log.scan import column_of
from forelog.log.walk import Defect, OnCorruption, Walk
from forelog.spark.planning import Slice
from forelog.times import in_column

RECORD_COLUMNS = {
    "segment": "int",
    "offset": "bigint",
    "time": "timestamp",
    "payload": "binary",
    "time_ns": "bigint",
    "length": "bigint",
}
_POSITIONED = ("segment", "offset", "time")


class Codec(ABC):
    """How the records of a log become rows."""

    name: ClassVar[str]
    columns: ClassVar[dict[str, str]]
    """All columns, with their Spark types."""
    default: ClassVar[Sequence[str]]
    """The columns of a table by default."""
    splits: ClassVar[bool] = True
    """Whether reading can start at any record of a segment."""
    row_each: ClassVar[bool] = False
    """Whether each record is a row: then the indexes of a log tell how many rows there are."""
    positioned: ClassVar[Sequence[str]] = ()
    """Which of `segment`, `offset` and `time` are those of the record: filters by them leave segments unread."""

    @abstractmethod
    def batches(
        self, piece: Slice, columns: Sequence[str], rows: int, on_corruption: OnCorruption, defects: list[Defect]
    ) -> Iterator[dict[str, Any]]:
        """The columns of a slice as Arrow arrays, some rows at a time. Skipped damage is added to `defects`."""


_codecs: dict[str, Codec] = {}


def register_codec(codec: Codec) -> None:
    """Register a codec by its name."""
    _codecs[codec.name] = codec


def codec_names() -> list[str]:
    """The names of all codecs, in order."""
    return sorted(_codecs)


def codec_of(name: str) -> Codec:
    if name not in _codecs:
        raise BadOption(f"there is no codec {name!r}: expected one of {', '.join(codec_names())}")
    return _codecs[name]


def blocks_of(piece: Slice, rows: int, on_corruption: OnCorruption, defects: list[Defect]) -> Iterator[Block]:
    """The records of a slice, read with the read lock held, so that nothing is cleaned away."""
    directory = piece.log.stream().directory
    with directory.read_lock():
        walk = Walk(
            directory,
            start=piece.start,
            stop=piece.stop,
            since_ns=piece.since_ns,
            until_ns=piece.until_ns,
            on_corruption=on_corruption,
            block_rows=rows,
            at_record=piece.at_record,
        )
        try:
            yield from walk
        finally:
            defects += walk.defects
            walk.close()


def as_timestamps(pa: Any, times: Any) -> Any:
    """Nanoseconds as Spark's timestamps, which have microseconds."""
    return times.cast(pa.timestamp("us", tz="UTC"), safe=False)


def _timestamps_of(pa: Any, block: Block) -> Any:
    """The times of a block's records: in one pass, unless some are out of the range of a timestamp."""
    rows = block.last - block.first
    times = pa.allocate_buffer(8 * rows)
    if kernel.microseconds(block.scan.times, block.first, block.last, times):
        return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, [None, times])
    return as_timestamps(pa, column_of(pa, "time", block))


def record_column(pa: Any, name: str, block: Block) -> Any:
    """A column that every record has."""
    if name == "time":
        return _timestamps_of(pa, block)
    if name == "time_ns":
        return column_of(pa, "time", block).view(pa.int64())
    return column_of(pa, name, block)


class Records(Codec):
    """Records as they are."""

    name = "records"
    columns = RECORD_COLUMNS
    default = ("segment", "offset", "time", "payload")
    positioned = _POSITIONED
    row_each = True

    def batches(
        self, piece: Slice, columns: Sequence[str], rows: int, on_corruption: OnCorruption, defects: list[Defect]
    ) -> Iterator[dict[str, Any]]:
        pa = load_pyarrow()
        for block in blocks_of(piece, rows, on_corruption, defects):
            yield {name: record_column(pa, name, block) for name in columns}


class Datapoints(Codec):
    """M3's datapoints. A file is read from its start, where its series are named."""

    name = "datapoints"
    columns = {  # noqa: RUF012 - declared by the base
        "namespace": "binary",
        "id": "binary",
        "shard": "bigint",
        "tags": "map<binary,binary>",
        "timestamp": "timestamp",
        "value": "double",
        "unit": "smallint",
        "annotation": "binary",
        "created": "timestamp",
        "segment": "int",
        "offset": "bigint",
        "timestamp_ns": "bigint",
        "created_ns": "bigint",
        "id_text": "string",
        "tags_json": "string",
        "unit_name": "string",
    }
    default = tuple(columns)[:11]
    splits = False
    positioned = ("segment",)

    def batches(
        self,
        piece: Slice,
        columns: Sequence[str],
        rows: int,  # noqa: ARG002 - a block of chunks has as many entries as it has
        on_corruption: OnCorruption,
        defects: list[Defect],
    ) -> Iterator[dict[str, Any]]:
        from forelog.commitlog.entries import scan_datapoints

        pa = load_pyarrow()
        asked = list(dict.fromkeys([*(_TEXTS.get(name, name.removesuffix("_ns")) for name in columns), "created"]))
        for batch in scan_datapoints(
            piece.log.stream(),
            asked,
            start=piece.start,
            until=piece.stop,
            on_corruption=on_corruption,
            defects=defects,
        ):
            yield {name: self._column(pa, name, _within(pa, batch, piece)) for name in columns}

    def _column(self, pa: Any, name: str, batch: Any) -> Any:
        if name in _TEXTS:
            from forelog.spark.texts import as_text

            return as_text(pa, name, batch[_TEXTS[name]])
        if name.endswith("_ns"):
            return batch[name.removesuffix("_ns")].view(pa.int64())
        return as_timestamps(pa, batch[name]) if self.columns[name] == "timestamp" else batch[name]


_TEXTS = {"id_text": "id", "tags_json": "tags", "unit_name": "unit"}


def _within(pa: Any, batch: Any, piece: Slice) -> Any:
    """The entries that were created within the times of a slice."""
    import pyarrow.compute as pc

    created = batch["created"].view(pa.int64())
    if piece.since_ns is not None:
        batch = batch.filter(pc.greater_equal(created, in_column(piece.since_ns)))
        created = batch["created"].view(pa.int64())
    return batch if piece.until_ns is None else batch.filter(pc.less(created, in_column(piece.until_ns)))


class Commands(Codec):
    """The command log of a job server: what happened to which job."""

    name = "commands"
    columns = {  # noqa: RUF012 - declared by the base
        **RECORD_COLUMNS,
        "command": "string",
        "id": "string",
        "name": "string",
        "ttr_ms": "bigint",
        "ttl_ms": "bigint",
        "priority": "int",
        "max_attempts": "int",
        "max_fails": "int",
        "job_payload": "binary",
        "result": "binary",
        "scheduled": "timestamp",
        "created": "timestamp",
        "error": "string",
    }
    default = ("segment", "offset", "time", *(name for name in columns if name not in RECORD_COLUMNS))
    positioned = _POSITIONED
    row_each = True

    def batches(
        self, piece: Slice, columns: Sequence[str], rows: int, on_corruption: OnCorruption, defects: list[Defect]
    ) -> Iterator[dict[str, Any]]:
        from forelog.formats.commands.columns import decode_block

        pa = load_pyarrow()
        told = [name for name in columns if name not in RECORD_COLUMNS]
        for block in blocks_of(piece, rows, on_corruption, defects):
            arrays = {name: record_column(pa, name, block) for name in columns if name in RECORD_COLUMNS}
            yield arrays | decode_block(block, told)


class Messages(Codec):
    """A broker's messages. Properties are JSON; their bytes are in base64."""

    name = "messages"
    columns = {  # noqa: RUF012 - declared by the base
        "segment": "bigint",
        "offset": "bigint",
        "time": "timestamp",
        "topic": "string",
        "payload": "binary",
        "properties": "string",
        "time_ns": "bigint",
        "length": "bigint",
    }
    default = tuple(columns)[:6]
    positioned = _POSITIONED
    row_each = True

    def batches(
        self, piece: Slice, columns: Sequence[str], rows: int, on_corruption: OnCorruption, defects: list[Defect]
    ) -> Iterator[dict[str, Any]]:
        pa = load_pyarrow()
        for block in blocks_of(piece, rows, on_corruption, defects):
            topic, properties = _message_columns(pa, block) if _TOLD & set(columns) else (None, None)
            told = {"topic": topic, "properties": properties}
            yield {name: told[name] if name in told else self._column(pa, name, block) for name in columns}

    def _column(self, pa: Any, name: str, block: Block) -> Any:
        return column_of(pa, name, block, wide=True) if name == "segment" else record_column(pa, name, block)


class State(Codec):
    """The events of a state log. Keys and values are JSON; their bytes are in base64."""

    name = "state"
    columns = {  # noqa: RUF012 - declared by the base
        "segment": "int",
        "offset": "bigint",
        "time": "timestamp",
        "action": "string",
        "type": "string",
        "key": "string",
        "value": "string",
        "event": "binary",
        "time_ns": "bigint",
    }
    default = tuple(columns)[:7]
    positioned = _POSITIONED

    def batches(
        self, piece: Slice, columns: Sequence[str], rows: int, on_corruption: OnCorruption, defects: list[Defect]
    ) -> Iterator[dict[str, Any]]:
        from forelog.spark.events import event_columns

        pa = load_pyarrow()
        for block in blocks_of(piece, rows, on_corruption, defects):
            places, events, data = event_columns(block)
            if not places:
                continue
            told = dict(zip(("action", "type", "key", "value"), zip(*events, strict=True), strict=True))
            arrays = {name: pa.array(values, pa.string()) for name, values in told.items()}
            arrays["event"] = pa.array(data, pa.binary())
            taken = pa.array(places, pa.int64())
            yield {
                name: arrays[name] if name in arrays else record_column(pa, name, block).take(taken)
                for name in columns
            }


_TOLD = {"topic", "properties"}


def _message_columns(pa: Any, block: Block) -> tuple[Any, Any]:
    """Topics and properties of a block's wanted rows."""
    count = block.last - block.first
    topic_starts, topic_ends, _, _, starts, ends = kernel.message_columns(
        block.buffer, block.scan.offsets, block.base, block.first, block.last
    )
    places = pa.allocate_buffer(4 * (count + 1))
    data = pa.allocate_buffer(topic_ends[-1] - topic_starts[0])
    size = kernel.gather(block.buffer, topic_starts, topic_ends, 0, count, places, data)
    topics = pa.Array.from_buffers(pa.string(), count, [None, places, data.slice(0, size)])
    json_places, json = kernel.messages_json(block.buffer, starts, ends)
    buffers = [None, pa.py_buffer(json_places), pa.py_buffer(json)]
    return topics, pa.Array.from_buffers(pa.string(), count, buffers)


register_codec(Records())
register_codec(Commands())
register_codec(Datapoints())
register_codec(Messages())
register_codec(State())
