"""Commands of a job server as Arrow columns: no Python object for each command, and only the wanted columns.

============  ===================  =====================================================================
column        type                 what
============  ===================  =====================================================================
command       string               add, schedule, complete, fail, delete, expire, start-attempt or
                                   timeout-attempt; null for a record that isn't a command
id            string               the job's UUID
name          string               its queue; bytes that are no UTF-8 are replaced
ttr_ms        int64                how long a lease may take
ttl_ms        int64                how long the job lives
priority      int32                higher first
max_attempts  int32                0 for any number
max_fails     int32                0 for none
job_payload   binary               the job's payload
result        binary               of a complete or fail
scheduled     timestamp[us, UTC]   when the job is due; null for one that is due at once
created       timestamp[us, UTC]   when the job was created
error         string               why a record isn't a command: empty, type, truncated, number, range, time
                                   or trailing; null for one that is
============  ===================  =====================================================================

A value that a command does not have is null. In a row with an error everything else is null. A null payload
gives a row of nulls.

>>> import pyarrow as pa
>>> from forelog.formats.commands.commands import Complete, Delete, encode
>>> payloads = pa.array([encode(Complete(bytes(16), b"done")), encode(Delete(bytes(16))), b"?"])
>>> for name, column in decode_batch(payloads, ["command", "result", "error"]).items():
...     print(name, column.to_pylist())
command ['complete', 'delete', None]
result [b'done', None, None]
error [None, None, 'type']
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forelog import kernel
from forelog.formats.block import Block
from forelog.formats.columns import check_columns, load_pyarrow
from forelog.formats.commands.fields import ERROR_WORDS, TYPE_WORDS
from forelog.kernel.types import Commands

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "command", "id", "name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "job_payload", "result",
    "scheduled", "created", "error",
)  # fmt: skip
_TICKS_PER_SECOND = 1_000_000  # as Spark's timestamps; reaches the year 9999
_BYTES_MAX = 2**31 - 1  # of a column with 32 bit offsets


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The types of the columns."""
    pa = load_pyarrow()
    time = pa.timestamp("us", tz="UTC")
    types = {
        "command": pa.string(),
        "id": pa.string(),
        "name": pa.string(),
        "ttr_ms": pa.int64(),
        "ttl_ms": pa.int64(),
        "priority": pa.int32(),
        "max_attempts": pa.int32(),
        "max_fails": pa.int32(),
        "job_payload": pa.binary(),
        "result": pa.binary(),
        "scheduled": time,
        "created": time,
        "error": pa.string(),
    }
    return pa.schema([(name, types[name]) for name in check_columns(columns, COLUMNS, least=0)])


def decode_batch(payloads: pa.Array, columns: Sequence[str] = COLUMNS) -> dict[str, pa.Array]:
    """The commands in an Arrow array of payloads, which is not copied. It may be a slice."""
    pa = load_pyarrow()
    if not (pa.types.is_binary(payloads.type) or pa.types.is_large_binary(payloads.type)):
        payloads = payloads.cast(pa.binary())
    wide = pa.types.is_large_binary(payloads.type)
    rows = len(payloads)
    places = array("q", [0])
    buffer: Any = b""
    if rows:
        _, offsets, data = payloads.buffers()
        kind = pa.int64() if wide else pa.int32()
        places = _to_array(
            pa.Array.from_buffers(kind, rows + 1, [None, offsets], offset=payloads.offset).cast(pa.int64())
        )
        buffer = b"" if data is None else data
    decoded = _columns(buffer, places[:-1], places[1:], 0, rows, columns)
    if payloads.null_count:
        import pyarrow.compute as pc

        there = payloads.is_valid()
        return {name: pc.if_else(there, column, pa.scalar(None, column.type)) for name, column in decoded.items()}
    return decoded


def decode_block(block: Block, columns: Sequence[str] = COLUMNS) -> dict[str, pa.Array]:
    """The commands in a block of a log. The arrays are copies: they outlive the block."""
    return _columns(block.buffer, block.scan.starts, block.scan.ends, block.first, block.last, columns)


def _to_array(column: Any) -> array[int]:
    copied = array("q")
    start = 8 * column.offset
    copied.frombytes(memoryview(column.buffers()[1])[start : start + 8 * len(column)])
    return copied


def _columns(
    buffer: Any, starts: array[int], ends: array[int], first: int, last: int, columns: Sequence[str]
) -> dict[str, pa.Array]:
    wanted = check_columns(columns, COLUMNS, least=0)
    if not wanted:
        return {}
    commands = kernel.commands_decode(buffer, starts, ends, first, last, _TICKS_PER_SECOND)
    builder = _Builder(buffer, commands)
    return {name: builder.column(name) for name in wanted}


class _Builder:
    """Makes Arrow arrays of what the kernel has decoded."""

    def __init__(self, buffer: Any, commands: Commands) -> None:
        self._pa: Any = load_pyarrow()
        self._buffer = buffer
        self._commands = commands
        self._rows = len(commands.types)
        pa, c = self._pa, commands
        time = pa.timestamp("us", tz="UTC")
        self._makers: dict[str, Callable[[], Any]] = {
            "command": lambda: self._words(TYPE_WORDS, c.types),
            "id": self._id,
            "name": self._name,
            "ttr_ms": lambda: self._fixed(pa.int64(), c.jobs, c.ttr_ms),
            "ttl_ms": lambda: self._fixed(pa.int64(), c.jobs, c.ttl_ms),
            "priority": lambda: self._fixed(pa.int32(), c.jobs, c.priorities),
            "max_attempts": lambda: self._fixed(pa.int32(), c.jobs, c.max_attempts),
            "max_fails": lambda: self._fixed(pa.int32(), c.jobs, c.max_fails),
            "job_payload": lambda: self._gathered(c.jobs, c.payload_starts, c.payload_ends),
            "result": lambda: self._gathered(c.resulted, c.result_starts, c.result_ends),
            "scheduled": lambda: self._fixed(time, c.timed, c.times),
            "created": lambda: self._fixed(time, c.dated, c.created),
            "error": lambda: self._words(ERROR_WORDS, c.errors),
        }

    def column(self, name: str) -> Any:
        return self._makers[name]()

    def _array(self, kind: Any, *buffers: Any) -> Any:
        pa = self._pa
        return pa.Array.from_buffers(kind, self._rows, [None if b is None else pa.py_buffer(b) for b in buffers])

    def _fixed(self, kind: Any, validity: bytes, values: array[int]) -> Any:
        return self._array(kind, validity, values)

    def _words(self, words: Sequence[str | None], codes: bytes) -> Any:
        return self._pa.array(words, self._pa.string()).take(self._array(self._pa.uint8(), None, codes))

    def _id(self) -> Any:
        offsets, texts = kernel.uuid_texts(self._commands.ids)
        return self._array(self._pa.string(), self._commands.known, offsets, texts)

    def _gathered(self, validity: bytes, starts: array[int], ends: array[int]) -> Any:
        import pyarrow.compute as pc

        pa = self._pa
        lengths = pc.subtract(self._array(pa.int64(), None, ends), self._array(pa.int64(), None, starts))
        size = pc.sum(lengths).as_py() or 0
        if size > _BYTES_MAX:
            raise ValueError(f"a column of {size} bytes is more than one array holds: decode fewer rows at once")
        offsets, data = pa.allocate_buffer(4 * (self._rows + 1)), pa.allocate_buffer(size)
        kernel.gather(self._buffer, starts, ends, 0, self._rows, offsets, data)
        return self._array(pa.binary(), validity, offsets, data)

    def _name(self) -> Any:
        pa, c = self._pa, self._commands
        names = self._gathered(c.jobs, c.name_starts, c.name_ends)
        try:
            return names.cast(pa.string())
        except pa.ArrowInvalid:  # not UTF-8: no server writes such a name, so this may take its time
            texts = (None if name is None else name.decode("utf-8", "replace") for name in names.to_pylist())
            return pa.array(texts, pa.string(), size=self._rows)
