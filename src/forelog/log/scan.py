"""Read a log as Arrow record batches: no Python object per record, and one block in memory at a time.

========  =============================  ==============================================================
column    type                           what
========  =============================  ==============================================================
position  struct<segment, offset>        where the record is
segment   int32                          its segment; int64 in a log whose segments are numbered by time
offset    int64                          its logical offset there
time      timestamp[ns, UTC]             null for a time outside of 1677 to 2262, which only a foreign
                                         writer makes: a cursor's `time_ns` has those
payload   binary                         its payload
length    int64                          the payload's length in bytes, without copying it
========  =============================  ==============================================================
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from forelog import kernel
from forelog.formats import Block
from forelog.formats.columns import load_pyarrow, segment_column
from forelog.kernel.types import TIME_MAX, TIME_MIN
from forelog.log.walk import Walk

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("position", "segment", "offset", "time", "payload", "length")
DEFAULT_COLUMNS = ("position", "time", "payload")


def schema(columns: Sequence[str], *, wide: bool = False) -> pa.Schema:
    """The schema of the batches with these columns; `wide` if numbers of segments need 64 bits."""
    pa = load_pyarrow()
    number = pa.int64() if wide else pa.int32()
    types = {
        "position": pa.struct([("segment", number), ("offset", pa.int64())]),
        "segment": number,
        "offset": pa.int64(),
        "time": pa.timestamp("ns", tz="UTC"),
        "payload": pa.binary(),
        "length": pa.int64(),
    }
    return pa.schema([(name, types[name]) for name in columns])


def batches(walk: Walk, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A record batch for each block of the walk."""
    pa = load_pyarrow()
    wide = walk.directory.format.numbered_by_time
    wanted = schema(columns, wide=wide)
    for block in walk:
        arrays = [column_of(pa, name, block, wide=wide) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def column_of(pa: Any, name: str, block: Block, *, wide: bool = False) -> Any:
    """One column of a block's wanted rows, as an Arrow array; `wide` as in schema()."""
    if name in ("segment", "position"):
        segment = segment_column(pa, block.segment, block.last - block.first, wide=wide)
        if name == "segment":
            return segment
        return pa.StructArray.from_arrays([segment, _offset(pa, block)], ["segment", "offset"])
    return _BUILDERS[name](pa, block)


def _int64(pa: Any, column: array[int], block: Block) -> Any:
    whole = block.first == 0 and block.last == len(column)
    rows = column if whole else column[block.first : block.last]
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def _offset(pa: Any, block: Block) -> Any:
    return _int64(pa, block.offsets, block)


def _time(pa: Any, block: Block) -> Any:
    import pyarrow.compute as pc

    times = _int64(pa, block.scan.times, block)
    bounds = pc.min_max(times)
    if bounds["min"].as_py() == TIME_MIN or bounds["max"].as_py() == TIME_MAX:
        outside = pc.or_(pc.equal(times, TIME_MIN), pc.equal(times, TIME_MAX))
        times = pc.if_else(outside, pa.scalar(None, pa.int64()), times)
    return times.view(pa.timestamp("ns", tz="UTC"))


def _length(pa: Any, block: Block) -> Any:
    import pyarrow.compute as pc

    return pc.subtract(_int64(pa, block.scan.ends, block), _int64(pa, block.scan.starts, block))


def _payload(pa: Any, block: Block) -> Any:
    scan, first, last = block.scan, block.first, block.last
    places = pa.allocate_buffer(4 * (last - first + 1))
    data = pa.allocate_buffer(scan.ends[last - 1] - scan.starts[first])
    size = kernel.gather(block.buffer, scan.starts, scan.ends, first, last, places, data)
    return pa.Array.from_buffers(pa.binary(), last - first, [None, places, data.slice(0, size)])


_BUILDERS: dict[str, Callable[[Any, Block], Any]] = {
    "offset": _offset,
    "time": _time,
    "payload": _payload,
    "length": _length,
}
