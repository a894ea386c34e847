"""A state log read from the disk, without the app that wrote it.

`span_of` finds the part of the log that makes up the state at a time: from the start of the last generation that
was whole then, to that time. `events_of` iterates over its events. `parse_event` returns the name of an event's
type, and its fields.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from forelog.copies.slots import directory_of, whole_slot
from forelog.errors import BadEvent, BadPosition, MissingExtra, TimeOutOfRange, UnknownFormat
from forelog.files import Files, Lock
from forelog.formats import Block
from forelog.formats.state import BEGIN, COMMIT, EVENT, FORMAT, GROUP, MARKER_BYTES, SIZE_BYTES, events_in
from forelog.log.position import Position
from forelog.log.stream import Bound, PathLike, Stream
from forelog.state.items import PARTS_MAX
from forelog.state.replay import is_marker
from forelog.times import format_time

_BEGIN, _COMMIT = BEGIN[0], COMMIT[0]
_NAMED_FIELDS = ("id", "key")
_DEPTH_MAX = 100  # levels of lists and dicts


class Span(NamedTuple):
    """The part of a log that makes up a state."""

    generation: int
    """The number of the newest generation that had begun."""
    complete: bool
    """Whether it was whole. If not, the generation before it is part of the state too."""
    start: Position
    """The position where the last whole generation begins."""
    commit: Position | None
    """The position of its commit; None for a first generation that isn't committed, with nothing before it."""
    whole_ns: int | None
    """The time at which the last whole generation was committed."""
    end: Position
    """The position after the last event."""
    last_ns: int
    """The time of the last event."""


class Event(NamedTuple):
    """An event as bytes."""

    position: Position
    """Where the event's record begins; events of one group share it."""
    time_ns: int
    """When the event was written."""
    data: bytes
    """The bytes that the codec made of the event."""
    frame_bytes: int
    """The size of the whole record; in a group, of its part of it."""


class ParsedEvent(NamedTuple):
    """What the bytes of an event say."""

    type: str
    """The name of its type; empty for a plain value."""
    value: Any
    """The plain value, or the fields as a dict."""


def open_source(source: PathLike, files: Files | None = None) -> Stream:
    """Open the state log in a directory, or the whole copy in a directory of copies."""
    path = os.fspath(source)
    stream = Stream.open(directory_of(path) if files is None else whole_slot(path, files) or path, files=files)
    if (stream.format.signature or (0,))[0] != FORMAT.magic:
        raise UnknownFormat(f"{source} isn't a state log, but a log of another program or face")
    return stream


def reading(stream: Stream, timeout: float | None = None) -> Lock:
    """Keep generations from being dropped while the lock is held. Rotations continue, and drop them later."""
    return stream.directory.read_lock(timeout=timeout)


def span_of(stream: Stream, as_of: Bound | None = None) -> Span:
    """The part of the log that makes up the state: up to and with a time, or up to a position.

    Raises BadPosition or TimeOutOfRange if the log has no generation that was whole then.
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
        yield from stream.blocks(until=time_ns + 1)  # with the records of that time
        return
    if stop > (end := stream.end()):
        raise BadPosition(f"{stream.path} ends at {end}: there is no state as of {stop}")
    # A position given by hand may be inside of a record. A walk that ended there would report damage.
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
    """The error for a time before the oldest whole generation."""
    for block in stream.blocks():
        for row, kind, number in _markers(block):
            if kind == _COMMIT:
                place, time_ns = Position(block.segment, block.offsets[row]), block.scan.times[row]
                known = f"its oldest whole generation is {number}, committed at {place}, {format_time(time_ns)}"
                bounds = stream.bounds(until=as_of)
                if bounds.stop is not None:
                    return BadPosition(f"{stream.path} has no state as of {as_of}: {known}")
                when = "now" if as_of is None else format_time(bounds.until_ns or 0)
                return TimeOutOfRange(f"{stream.path} has no state as of {when}: {known}")
    return BadPosition(f"{stream.path} has no whole generation: there is no state in it")


def events_of(stream: Stream, span: Span) -> Iterator[Event]:
    """The events of a span, in order."""
    for block in stream.blocks(start=span.start, until=span.end):
        starts, ends, times = block.scan.starts, block.scan.ends, block.scan.times
        for row in range(block.first, block.last):
            payload = bytes(block.buffer[starts[row] : ends[row]])
            position = Position(block.segment, block.offsets[row])
            if payload[:1] in (EVENT, GROUP):
                yield from _events_at(position, times[row], payload, block.frame_bytes(row))
            elif not is_marker(payload):
                raise BadEvent(
                    f"the record at {position} of {stream.path} begins with {payload[:9]!r}, expected an event or "
                    "a marker",
                    position=position,
                )


def _events_at(position: Position, time_ns: int, payload: bytes, frame_bytes: int) -> Iterator[Event]:
    """The events of one record. The first has the bytes that belong to none of them."""
    try:
        parts = events_in(payload)
    except BadEvent as error:
        raise BadEvent(f"the record at {position} can't be read: {error}", position=position) from None
    rest = sum(len(part) + SIZE_BYTES for part in parts[1:])
    for number, data in enumerate(parts):
        yield Event(position, time_ns, data, len(data) + SIZE_BYTES if number else frame_bytes - rest)


def parse_event(data: bytes) -> ParsedEvent | None:
    """Parse an event. None if EventCodec didn't write these bytes, or if they are nested too deep."""
    try:
        from msgspec import MsgspecError, msgpack
    except ImportError:
        raise MissingExtra.needed("msgspec", by="reading events", extra="state") from None
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
    return ParsedEvent(name, value) if _depth_is_fine(value) else None


def _depth_is_fine(value: Any) -> bool:
    """Whether recursive functions can handle a value."""
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
    """The last event of each thing, by type and key; and whether the log is that of a PersistentDict.

    The events of a PersistentDict are lists: a key, its value, and when it expires; a removed key; nothing, if it
    was cleared. The key of any other event is its field `id`, else `key`, else its first field. A plain value, and
    bytes of another codec, are their own key.
    """
    found: dict[tuple[str, Any], Any] = {}
    is_dict = True
    for event in events:
        said = parse_event(event.data)
        if said is None:
            said = ParsedEvent("?", event.data)
        value = said.value
        is_dict = is_dict and not said.type and isinstance(value, list) and len(value) <= PARTS_MAX
        if is_dict and not value:
            found.clear()
            continue
        found[said.type, _hashable(key_of(value))] = value
    return found, is_dict


def key_of(value: Any) -> Any:
    """The key of an event's value: its field `id`, else `key`, else its first field; a plain value is its own."""
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
