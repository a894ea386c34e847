"""Readers beside every step of a writer: what they see is the log, and those for which it isn't are found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from forelog import Position
from forelog.errors import WriteFailed
from forelog.files import write_all
from forelog.testing import Explorer, Writer, all_histories, all_readers, random_history
from forelog.testing.schedule import Schedule
from forelog.testing.timeline import Killed, Recorder
from forelog.testing.writer import record
from tests.testing import faulty_readers
from tests.testing.defects import DEFECTS, explore_defect

HISTORIES = all_histories()
READERS = all_readers()

# -- forelog's own readers


@pytest.mark.parametrize("name", HISTORIES)
def test_what_a_reader_sees_beside_any_step_of_a_writer_is_the_log(name, request):
    limit = 1000 if request.config.getoption("--long") else 6
    report = Explorer(HISTORIES[name], name=name, limit=limit).explore()
    assert report.interleavings > 300
    assert not report.violations, "\n".join(map(str, report.violations))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_that_was_mended_stays_mended(defect):
    report = explore_defect(defect)
    assert not report.violations, "\n".join(map(str, report.violations))


@pytest.mark.parametrize("seed", range(10))
def test_what_a_reader_sees_beside_a_long_history_is_the_log(seed):
    report = Explorer(random_history(seed)).sample(150, seed=seed)
    assert not report.violations, "\n".join(map(str, report.violations))


# -- the explorer itself


def by_hand(writer: Writer) -> None:
    """A program that writes a log by itself: what is refused is cut off, and its positions are given again."""
    encode, disk = writer.stream().format.encode, writer.disk
    disk.make_dir("log")
    file = disk.open_append("log/000000001.log")
    file.write(writer.format.header())

    def append(payloads: Sequence[bytes]) -> Iterator[Position]:
        before = file.size()
        frames = [encode(payload, writer.clock()) for payload in payloads]
        try:
            write_all(file, b"".join(frames))
        except OSError:
            file.truncate(before)
            raise
        for frame in frames:
            yield Position(1, before)
            before += len(frame)

    writer.attempt(writer.payloads(1), append)
    with writer.full_after(58):
        writer.attempt(writer.payloads(4), append)
    writer.attempt(writer.payloads(4), append)


OWN = {**HISTORIES, "by hand": by_hand}


@pytest.mark.parametrize(
    ("reader", "history", "kinds"),
    [
        (faulty_readers.trusts_files, "refused batch", {"phantom", "part"}),
        (faulty_readers.trusts_files, "by hand", {"phantom", "part", "twice"}),
        (faulty_readers.trusts_files, "rolls", {"gap"}),
        (faulty_readers.trusts_its_place, "by hand", {"phantom", "twice", "gap"}),
        (faulty_readers.forgets_its_place, "append", {"order"}),
        (faulty_readers.ends_too_early, "append", {"late"}),
        (faulty_readers.counts_bytes_wrongly, "append", {"moved"}),
        (faulty_readers.invents, "append", {"phantom"}),
        (faulty_readers.spins, "append", {"spins"}),
        (faulty_readers.keeps_the_lock, "append", {"locked"}),
        (faulty_readers.waits_for_itself, "append", {"waits"}),
        (faulty_readers.leaks, "clean", {"raised"}),
        (faulty_readers.writes, "append", {"raised"}),
        (faulty_readers.trusts_files, "failed sync", {"vanished"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_it_finds_a_reader_that_does_wrong(reader, history, kinds):
    limit = 50 if "spins" in kinds else 1500
    report = Explorer(OWN[history], name=history, readers=[reader], limit=limit).explore()
    assert {violation.kind for violation in report.violations} >= kinds


def test_a_violation_can_be_replayed():
    explorer = Explorer(HISTORIES["rolls"], readers=[faulty_readers.trusts_files], limit=1500)
    gaps = [violation for violation in explorer.explore().violations if violation.kind == "gap"]
    for violation in gaps:
        again = Explorer(HISTORIES["rolls"], readers=[faulty_readers.trusts_files])
        assert f"gap: {violation.text}" in again.replay(violation)
    assert gaps


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_takes_the_same_course_each_time(name):
    first, second = (record(HISTORIES[name]) for _ in range(2))
    assert first.timeline.fingerprint() == second.timeline.fingerprint()
    assert [entry.position for entry in first.ledger.entries] == [
        entry.position for entry in second.ledger.entries
    ]


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_does_what_its_name_says(name):
    """The tests above would prove little of a history in which nothing is refused, forgotten or in doubt."""
    entries = record(HISTORIES[name]).ledger.entries
    outcomes = {entry.outcome for entry in entries}
    assert "acknowledged" in outcomes
    assert ("refused" in outcomes) == (
        name.startswith(("refused", "full disk", "commit log")) and name != "refused messages"
    )
    assert ("in doubt" in outcomes) == (name.startswith(("killed", "failed")) and name != "killed after a swap")
    assert any(entry.forgotten < 1 << 59 for entry in entries) == (name in ("clean", "retention", "state"))


def test_a_history_of_ones_own_is_explored():
    """A program that takes a refusal for an acknowledgement is found out, by forelog's own readers."""

    def careless(writer: Writer) -> None:
        with writer.appender(writer.stream()) as log:
            writer.append(log)
            fault = writer.disk.fail(lambda operation: operation.kind == "write")
            entries = writer.begin(writer.payloads(1))
            with pytest.raises(WriteFailed):
                log.append(entries[0].payload)
            fault.stop()
            writer.acknowledge(entries, [Position(1, 36)])

    report = Explorer(careless, readers=["cursor"]).explore()
    assert "late" in {violation.kind for violation in report.violations}


def test_a_listing_has_what_is_there_all_the_time_and_any_of_what_comes_and_goes():
    seen = set()

    def reader(sight):
        try:
            seen.add(tuple(name for name in sight.disk.list_dir("log") if name.endswith(".log")))
        except FileNotFoundError:
            pass

    Explorer(HISTORIES["rolls"], readers=[reader], limit=10_000).explore()
    assert ("000000002.log",) in seen
    assert ("000000001.log", "000000003.log") in seen
    whole = tuple(f"{number:09d}.log" for number in range(1, 6))
    assert {(), whole} <= seen


def test_a_write_is_there_in_pieces_and_sizes_are_stale():
    pairs = set()

    def reader(sight):
        try:
            file = sight.disk.open_read("log/000000001.log")
        except FileNotFoundError:
            return
        size = file.size()
        pairs.add((size, file.read_into(memoryview(bytearray(1000)), 0)))

    Explorer(by_hand, readers=[reader], limit=10_000).explore()
    sizes = {size for size, _ in pairs}
    assert {36, 64, 92} <= sizes  # between records
    assert sizes - {8, 36, 64, 92, 120, 148, 176}  # inside of them
    assert any(count < size for size, count in pairs)  # cut off
    assert any(count > size for size, count in pairs)


def test_a_writer_that_is_killed_leaves_what_it_wrote_and_no_lock():
    disk = Recorder()
    disk.make_dir("d")
    lock = disk.lock("d/lock", exclusive=True, timeout=0)
    file = disk.open_append("d/f")
    disk.kill(lambda operation: operation.kind == "write", 3)
    assert file.write(b"seven..") == 3
    lock.release()  # too late
    for work in (lambda: file.write(b"..."), file.sync, lambda: disk.remove("d/f")):
        with pytest.raises(Killed):
            work()
    assert disk.timeline().moments[-1].locks == {"d/lock": True}
    disk.bury()
    assert disk.timeline().moments[-1].locks == {}
    assert disk.contents()["d/f"] == b"sev"
    disk.lock("d/lock", exclusive=True, timeout=0)


def test_a_reader_that_is_unknown_is_told_with_those_that_there_are():
    with pytest.raises(ValueError, match="there is no reader 'x': expected a function, or cursor, "):
        Explorer(HISTORIES["append"], readers=["x"])


def test_a_schedule_is_read_as_it_was_written():
    for text in ("0", "12 37>45 61>80/3"):
        assert str(Schedule.parse(text)) == text


def test_a_report_counts(request):
    report = Explorer(HISTORIES["append"], readers=["segments"], limit=20).explore()
    text = str(report)
    assert text.startswith(f"{report.interleavings} interleavings, {report.distinct} of them distinct, over ")
    assert 1 < report.distinct < report.interleavings
    assert 1 < report.disks <= report.moments


@pytest.mark.parametrize("names", [HISTORIES, READERS], ids=["histories", "readers"])
def test_every_history_and_reader_says_what_it_does(names):
    assert len(names) >= 18
    assert all(function.__doc__ for function in names.values())
