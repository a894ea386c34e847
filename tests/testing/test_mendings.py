"""The explorer finds each defect that was mended, when its mending is taken out.

`Mending.take_out` puts back what the engine did before. With the mending in, the same exploration finds no
violation of that kind: it is the mending that makes the difference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from forelog import Position
from forelog.copies import shipping
from forelog.files import write_all
from forelog.log import active, appender, recovery
from forelog.log.active import ActiveSegment
from forelog.log.directory import detection, foreign, segment, tail
from forelog.log.directory.directory import Directory
from forelog.log.directory.end import read_end
from forelog.log.directory.index import IndexBuilder
from forelog.log.walk import Walk
from forelog.testing import Explorer, Writer, all_histories
from forelog.testing.registry import Reader
from forelog.testing.writer import History
from tests.testing import faulty_readers

Patch = pytest.MonkeyPatch


# -- histories of other programs, which store no end mark


def _append_by_hand(writer: Writer, file: Any) -> Callable[[Sequence[bytes]], Iterable[Position]]:
    """What appends to segment 1 as another program would: a write that fails is cut off."""
    encode = writer.format.encode

    def append(payloads: Sequence[bytes]) -> Iterable[Position]:
        begin, positions = file.size(), []
        frames = [encode(payload, writer.clock()) for payload in payloads]
        try:
            write_all(file, b"".join(frames))
        except OSError:
            file.truncate(begin)
            raise
        for frame in frames:
            positions.append(Position(1, begin))
            begin += len(frame)
        return positions

    return append


def cut_by_hand(writer: Writer) -> None:
    """Another program writes the log: what is refused is cut off, and its positions are given again."""
    writer.stream()
    writer.disk.make_dir("log")
    file = writer.disk.open_append("log/000000001.log")
    file.write(writer.format.header())
    append = _append_by_hand(writer, file)
    writer.attempt(writer.payloads(1), append)
    with writer.full_after(58):
        writer.attempt(writer.payloads(4), append)
    writer.attempt(writer.payloads(4), append)


def shared_with_another(writer: Writer) -> None:
    """Another program appends while the log is closed, and then it is opened to append."""
    stream = writer.stream()
    with writer.appender(stream) as log:
        writer.append(log)
    file = writer.disk.open_append("log/000000001.log")
    writer.attempt(writer.payloads(1, 20), _append_by_hand(writer, file))
    with writer.appender(stream) as log:
        log.sync()
        writer.append(log)


# -- what the engine did before


def one_listing(patch: Patch) -> None:
    patch.setattr(Directory, "_list", lambda self, known: sorted(self._list_once()))


def following_by_a_listing(patch: Patch) -> None:
    def following(self: Directory, number: int) -> int | None:
        numbers = sorted(self._list_once())
        place = bisect_right(numbers, number)
        return numbers[place] if place < len(numbers) else None

    patch.setattr(Directory, "following", following)


def size_of_the_file(patch: Patch) -> None:
    patch.setattr(segment, "visible_bytes", lambda directory, number, file: file.size())


def visible_when_written(patch: Patch) -> None:
    make = ActiveSegment.__init__
    patch.setattr(ActiveSegment, "__init__", lambda *args, **options: make(*args, **{**options, "waits": False}))


def recovery_without_the_mark(patch: Patch) -> None:
    patch.setattr(appender, "recover", lambda *args: recovery.recover(*args[:-1]))


def on_after_a_cut(patch: Patch) -> None:
    never = property(lambda self: False, lambda self, value: None)
    patch.setattr(ActiveSegment, "was_cut", never, raising=False)


def trusting_sizes(patch: Patch) -> None:
    fill = Walk._fill
    patch.setattr(Walk, "_fill", lambda *args: fill(*args) or True)


def trusting_what_was_read(patch: Patch) -> None:
    patch.setattr(Walk, "_check_known", lambda self, reader: None)


def one_look_at_a_defect(patch: Patch) -> None:
    patch.setattr(Walk, "_is_still_there", lambda *_: True)


def mark_before_the_size(patch: Patch) -> None:
    def visible_bytes(directory: Any, number: int, file: Any) -> int:
        mark, size = read_end(directory), file.size()
        return min(size, mark.committed) if mark.segment == number and size <= mark.intended else size

    patch.setattr(segment, "visible_bytes", visible_bytes)


def stale_size_of_a_foreign_segment(patch: Patch) -> None:
    class NeverGrown:
        def size(self) -> int:
            return 0

    index, file = foreign.foreign_index, NeverGrown()
    patch.setattr(segment, "foreign_index", lambda *args: index(*(*args[:3], file)))


def listing_once_when_all_is_gone(patch: Patch) -> None:
    def list_numbers(self: Directory, known: list[int]) -> list[int]:
        first = self._list_once()
        again = self._list_once()
        last, sure = max(first, default=0), first & again
        unsure = {number for number in (first ^ again).union(known) - sure if number <= last}
        return sorted(number for number in sure | unsure if number in sure or self.has(number))

    patch.setattr(Directory, "_list", list_numbers)


def opening_at_one_look(patch: Patch) -> None:
    known = detection._formats

    def formats(probe: Directory, numbers: list[int]) -> Any:
        vars(probe)["has"] = lambda _: True  # so that it is content with what it listed first
        return known(probe, numbers)

    patch.setattr(detection, "_formats", formats)


def segments_made_in_place(patch: Patch) -> None:
    def create_segment(directory: Directory, number: int, time_ns: int) -> Any:
        tail.check_number(directory, number)
        file = directory.files.open_append(directory.segment_path(number))
        write_all(file, directory.format.header())
        file.sync()
        directory.sync()
        return tail.Tail(number, file, directory.format.header_bytes, IndexBuilder(number), 0, time_ns)

    for module in (active, recovery):
        patch.setattr(module, "create_segment", create_segment)


def shipping_on(patch: Patch) -> None:
    patch.setattr(shipping, "holds", lambda stream, end: True)


# -- where each of them shows


class Mending(NamedTuple):
    """Something that was mended, and where it shows when that is taken out."""

    take_out: Callable[[Patch], None]
    history: str
    readers: list[str | Reader]
    kind: str
    """Of the violation that each of the readers then has, and none of them with the mending in."""
    limit: int = 120
    words: str = ""
    """What the violation says."""


ALL_KINDS: list[str | Reader] = ["cursor", "follower", "scan", "planner", "ingest"]
HISTORIES: dict[str, History] = {
    **all_histories(),
    "cut by hand": cut_by_hand,
    "shared with another": shared_with_another,
}
MENDINGS = {
    "segments are listed twice": Mending(one_listing, "rolls", ["follower", "segments", "backup"], "gap"),
    "files by time are listed twice": Mending(one_listing, "messages", ["follower"], "gap", limit=600),
    "the next segment is looked for by its name": Mending(
        following_by_a_listing, "rolls", ["follower"], "gap", limit=1800
    ),
    "the next file by time is the one after all that are listed": Mending(
        following_by_a_listing, "messages", ["follower"], "gap", limit=900
    ),
    "readers end at the mark: no refused record": Mending(size_of_the_file, "refused batch", ALL_KINDS, "phantom"),
    "readers end at the mark: no part of a batch": Mending(size_of_the_file, "batches", ALL_KINDS, "part"),
    "copies end at the mark": Mending(size_of_the_file, "refused updates", ["shipper", "copy"], "phantom"),
    "what waits for a sync is not visible before it": Mending(
        visible_when_written, "failed sync", ["cursor", "follower"], "vanished"
    ),
    "recovery cuts off what a killed writer had not committed": Mending(
        recovery_without_the_mark, "killed in a batch", ["cursor", "follower"], "part"
    ),
    # Readers of ours end at the mark. So it shows only to one that reads the files as another program does.
    "a new segment begins after a cut": Mending(
        on_after_a_cut, "refused batch", [faulty_readers.trusts_files], "twice"
    ),
    "a file that is shorter than it was is looked at again": Mending(
        trusting_sizes, "cut by hand", ["cursor", "follower"], "spins"
    ),
    # Without a switch inside of a look: a log without a mark can be cut right after it was compared.
    "a follower compares what it has read": Mending(
        trusting_what_was_read, "cut by hand", ["follower"], "gap", limit=0
    ),
    "a shipper compares what it has sent": Mending(
        shipping_on, "cut by hand", ["shipper", "shipper that reconnects"], "gap", limit=0
    ),
    "a defect is looked at twice": Mending(
        one_look_at_a_defect, "shared with another", ["follower"], "raised", limit=6000, words="damaged record"
    ),
    "the mark is read before and after the size": Mending(
        mark_before_the_size, "refused batch", ["follower"], "phantom", limit=9000
    ),
    "a segment that has grown was not rewritten": Mending(
        stale_size_of_a_foreign_segment, "rolls", ["cursor", "follower"], "gap", limit=300
    ),
    "a listing begins again when all that it had is gone": Mending(
        listing_once_when_all_is_gone, "state", ["planner"], "raised", limit=300
    ),
    "opening looks again when all that was listed is gone": Mending(
        opening_at_one_look, "state", ["planner", "ingest"], "raised", limit=900
    ),
    "a segment gets its name when it is whole": Mending(
        segments_made_in_place, "rolls", ["cursor"], "raised", limit=3000
    ),
}


def readers_with_it(mending: Mending) -> set[str]:
    """The kinds of readers that have the violation."""
    explorer = Explorer(
        HISTORIES[mending.history], name=mending.history, readers=mending.readers, limit=mending.limit, seed=1
    )
    found = explorer.explore().violations
    return {one.reader for one in found if one.kind == mending.kind and mending.words in one.text}


@pytest.mark.parametrize("name", MENDINGS)
def test_the_explorer_finds_a_defect_when_its_mending_is_taken_out(name, monkeypatch):
    mending = MENDINGS[name]
    assert readers_with_it(mending) == set()
    mending.take_out(monkeypatch)
    wanted = {one if isinstance(one, str) else one.__name__.replace("_", " ") for one in mending.readers}
    assert readers_with_it(mending) == wanted
