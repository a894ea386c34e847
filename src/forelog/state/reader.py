"""A state log as it is on the disk, read without the app that wrote it.

`span_of` finds the part of the log that makes up the state at a time: from the beginning of the last generation
that was whole then, to that time. `events_of` goes through its events, and `told` says what is in one as far as
its bytes do: the name of its type, and its fields.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from forelog.copies.mirror import FORMAT
from forelog.copies.sources import directory_of
from forelog.errors import BadEvent, BadPosition, MissingExtra, TimeOutOfRange, UnknownFormat
from forelog.files import Lock
from forelog.formats import Block
from forelog.log.position import Position
from forelog.log.stream import Bound, Stream
from forelog.state.replay import BEGIN, COMMIT, EVENT, MARKER_BYTES, is_marker
from forelog.times import format_time

__all__ = ["Event", "Span", "Told", "events_of", "last_events", "open_source", "reading", "span_of", "told"]

_BEGIN, _COMMIT = BEGIN[0], COMMIT[0]
_NAMED_FIELDS = ("id", "key")
_DEPTH_MAX = 100  # of lists and dicts in each other


class Span(NamedTuple):
    """The part of a log that makes up a state."""

    generation: int
    """The newest one that had begun."""
    complete: bool
    """Whether it was whole. If not, the one before it is part of the state as well."""
    start: Position
    """Where the last whole generation begins."""
    commit: Position | None
    """Where it was committed; None for the first of all, which has nothing before it and counts from the start."""
    whole_ns: int | None
    """When that was."""
    end: Position
    """The place after the last event."""
    last_ns: int
    """When that was written."""


class Event(NamedTuple):
    """An event, not decoded."""

    position: Position
    time_ns: int
    data: bytes
    frame_bytes: int


class Told(NamedTuple):
    """What an event's bytes say: its type's name, empty for plain values, and what is in it."""

    type: str
    value: Any


def open_source(source: str) -> Stream:
    """The state log in a directory, or the whole copy of one among the copies there."""
    stream = Stream.open(directory_of(source))
    if (stream.format.signature or (0,))[0] != FORMAT.magic:
        raise UnknownFormat(f"{source} is no state log: its format is {stream.format}")
    return stream


def reading(stream: Stream, timeout: float | None = None) -> Lock:
    """While it is held no generation is dropped. Rotations go on; what they would drop goes with the next one."""
    return stream.directory.read_lock(timeout=timeout)


def span_of(stream: Stream, as_of: Bound | None = None) -> Span:
    """What makes up the state as of a time, with what was written at it, or a position, with what is before it.

    Raises BadPosition or TimeOutOfRange if no generation was whole then, or none that the log still has.
    """
    begun: tuple[int, Position] | None = None
    whole: tuple[Position, Position | None, int | None] | None = None
    end, last_ns = Position(0, 0), 0
    complete = False
    for block in _blocks_before(stream, as_of):
        for row, kind, number in _markers(block):
            position = Position(block.segment, block.offsets[row])
            if kind == _BEGIN:
                begun, complete = (number, position), False
                if number == 1:
                    whole = position, None, None
            elif begun is not None:
                whole, complete = (begun[1], position, block.scan.times[row]), True
        end, last_ns = Position(block.segment, block.logical_end), block.scan.times[block.last - 1]
    if begun is None or whole is None:
        raise _too_early(stream, as_of)
    return Span(begun[0], complete, *whole, end, last_ns)


def _blocks_before(stream: Stream, as_of: Bound | None) -> Iterator[Block]:
    if as_of is None:
        yield from stream.blocks()
        return
    _, stop, _, time_ns = stream.bounds(until=as_of)
    if stop is None:
        assert time_ns is not None
        yield from stream.blocks(until=time_ns + 1)  # with what was written at that time
        return
    if stop > (end := stream.end()):
        raise BadPosition(f"{stream.path} ends at {end}: it can't tell its state as of {stop}")
    # A position that somebody typed may be inside of a record, which a walk would take for a damaged one.
    for block in stream.blocks(until=Position(stop.segment + 1, 0)):
        if block.segment < stop.segment or block.logical_end <= stop.offset:
            yield block
            continue
        last = bisect_left(block.offsets, stop.offset, block.first, block.last)
        if last > block.first:
            yield block._replace(
                last=last, logical_end=block.offsets[last] if last < block.last else block.logical_end
            )
        return


def _markers(block: Block) -> Iterator[tuple[int, int, int]]:
    """The rows of a block that begin or commit a generation, and its number."""
    starts, ends, buffer = block.scan.starts, block.scan.ends, block.buffer
    for row in range(block.first, block.last):
        start = starts[row]
        if ends[row] - start == MARKER_BYTES and buffer[start] in (_BEGIN, _COMMIT):
            yield row, buffer[start], int.from_bytes(buffer[start + 1 : ends[row]], "big")


def _too_early(stream: Stream, as_of: Bound | None) -> BadPosition | TimeOutOfRange:
    """What to say if there was no state that is still known."""
    for block in stream.blocks():
        for row, kind, number in _markers(block):
            if kind == _COMMIT:
                place, time_ns = Position(block.segment, block.offsets[row]), block.scan.times[row]
                known = f"what it has begins with generation {number}, whole since {place}, {format_time(time_ns)}"
                bounds = stream.bounds(until=as_of)
                if bounds.stop is not None:
                    return BadPosition(f"{stream.path} can't tell its state as of {as_of}: {known}")
                when = "now" if as_of is None else format_time(bounds.until_ns or 0)
                return TimeOutOfRange(f"{stream.path} can't tell its state as of {when}: {known}")
    return BadPosition(f"{stream.path} has no generation that is whole: there is no state in it")


def events_of(stream: Stream, span: Span) -> Iterator[Event]:
    """The events that a restore would replay, in order."""
    for block in stream.blocks(start=span.start, until=span.end):
        starts, ends, times = block.scan.starts, block.scan.ends, block.scan.times
        for row in range(block.first, block.last):
            payload = bytes(block.buffer[starts[row] : ends[row]])
            position = Position(block.segment, block.offsets[row])
            if payload[:1] == EVENT:
                yield Event(position, times[row], payload[1:], block.frame_bytes(row))
            elif not is_marker(payload):
                raise BadEvent(
                    f"the record at {position} of {stream.path} begins with {payload[:9]!r}, expected an event or "
                    "a marker",
                    position=position,
                )


def told(data: bytes) -> Told | None:
    """What is in an event, or None if it was written by another codec than EventCodec, or is nested too deep."""
    try:
        from msgspec import MsgspecError, msgpack
    except ImportError:
        raise MissingExtra(
            "msgspec is not installed, which turns bytes into events: pip install '.[state]' in forelog's folder"
        ) from None
    end = 1 + data[0] if data else 0
    if not 0 < end < len(data):
        return None
    try:
        name = data[1:end].decode()
        if name and not name.isidentifier():
            return None
        value = msgpack.decode(data[end:])
    except (MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
        return None
    return Told(name, value) if _depth_is_fine(value) else None


def _depth_is_fine(value: Any) -> bool:
    """Whether a value can be gone through by functions that call themselves."""
    level = [value]
    for _ in range(_DEPTH_MAX):
        level = [
            item
            for one in level
            if isinstance(one, list | tuple | dict)
            for item in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return True
    return False


def last_events(events: Iterable[Event]) -> tuple[dict[tuple[str, Any], Any], bool]:
    """The last event of each thing, by type and key; and whether these are the events of a PersistentDict.

    Those are lists: of a key and a value, or of a key that is gone. Of any other event the key is its field `id`,
    or else `key`, or else its first one; of a plain value it is the value; of bytes by another codec, these.
    """
    found: dict[tuple[str, Any], Any] = {}
    is_dict = True
    for event in events:
        said = told(event.data)
        if said is None:
            said = Told("?", event.data)
        value = said.value
        is_dict = is_dict and not said.type and isinstance(value, list) and len(value) in (1, 2)
        found[said.type, _hashable(_key(value))] = value
    return found, is_dict


def _key(value: Any) -> Any:
    if isinstance(value, dict):
        for name in _NAMED_FIELDS:
            if name in value:
                return value[name]
        return next(iter(value.values()), None)
    return value[0] if isinstance(value, list) and value else value


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return value if isinstance(value, Hashable) else repr(value)
