"""Who commits, the writer without company, and counts: the kernel and the oracle take the same steps."""

from __future__ import annotations

import os
import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import kernel as compiled
from tests.kernel import oracle

BOTH = pytest.mark.parametrize("kernel", [oracle, compiled], ids=["oracle", "kernel"])


@dataclass(eq=False)
class Entry:
    number: int
    items: list[int] = field(default_factory=lambda: [0])
    byte_count: int = 1
    gate: Any = None
    is_main: bool = False


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(["thread", "main", "task"])),
        st.tuples(st.sampled_from(["pass_on", "take", "rest", "crowd", "alone"]), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 60))
def test_both_have_the_same_leader_after_every_step(steps: list[tuple[str, Any]], refused_after: int) -> None:
    wakes: list[list[int]] = [[], []]
    queues = [
        module.BoundedQueue(4, 100, lambda mine=mine: mine.append(1))
        for module, mine in zip((oracle, compiled), wakes, strict=True)
    ]
    entered: list[list[Entry]] = [[], []]
    for step, (word, argument) in enumerate(steps):
        results = []
        for module, queue, mine in zip((oracle, compiled), queues, entered, strict=True):
            if step == refused_after:
                queue.refuse()
            if word == "enter":
                entry = Entry(len(mine), is_main=argument == "main")
                entry.gate = None if argument == "task" else module.Gate()
                mine.append(entry)
                results.append(queue.enter(entry, module.Gate()))
            elif word == "pass_on":
                results.append(queue.pass_on())
            elif word == "take":
                results.append(len(queue.take(1 + argument, 100)))
            elif word == "rest":
                results.append(queue.rest(module.Gate()))
            elif word == "crowd":
                queue.crowd = argument
                results.append(None)
            elif word == "alone":
                results.append(lead_alone(module, queue))
            elif mine:
                results.append(queue.leave(mine[argument % len(mine)]) is None)
        assert len(set(results)) <= 1, (word, results)
        assert told(queues[0]) == told(queues[1])
    assert wakes[0] == wakes[1]


def told(queue: Any) -> Any:
    leader = queue.leader
    who = "own" if leader is queue else leader.number if isinstance(leader, Entry) else leader
    return who, queue.writes, len(queue), queue.committing


def lead_alone(module: Any, queue: Any) -> bool:
    """Whether a lone writer may append. It passes the lead on."""
    led: list[int] = []
    core = core_of(module, lambda data: led.append(1) or len(data))
    module.LoneWriter(core, queue, lambda _: None, module.Distribution([1.0])).append(b"x")
    return bool(led)


def core_of(module: Any, write: Any, fail: Any = None) -> Any:
    core = module.AppendCore(module.captain_encode, None, lambda _: "rest", tuple, lambda: 7)
    core.begin(3, 8, array("q"), 0)
    core.write, core.sync, core.fail = write, lambda: None, fail
    core.rest_at, core.mark_bytes, core.alone = 10_000, 100, True
    return core


@BOTH
def test_it_writes_syncs_counts_and_passes_the_lead_on(kernel: Any) -> None:
    steps: list[Any] = []
    core = core_of(kernel, lambda data: steps.append(len(data)) or len(data))
    queue, timing, sizes = kernel.BoundedQueue(9, 99), kernel.Distribution([1.0]), kernel.Distribution([1, 10])
    core.sync = lambda: steps.append((queue.is_committing, core.held, core.synced))
    core.note = lambda *place: steps.append(place)
    writer = kernel.LoneWriter(core, queue, lambda payload: ("among", payload), timing, sizes)
    assert writer.append(b"a") == (3, 8)
    assert steps == [21, (True, True, 8), (3, 29)]
    segment, offset, starts = writer.append_many([b"b", b"cd"])
    assert (segment, offset, list(starts)) == (3, 29, [0, 21])
    assert (core.offset, core.synced, core.settled, core.syncs, core.journal_syncs) == (72, 72, 72, 2, 0)
    assert (queue.leader, queue.is_committing, core.locked, core.held) == (None, False, False, False)
    assert (timing.count, timing.buckets, sizes.buckets, sizes.most) == (2, [2, 0], [1, 1, 0], 2)


@BOTH
def test_it_leaves_to_others_what_it_may_not_do(kernel: Any) -> None:
    core = core_of(kernel, len)
    queue = kernel.BoundedQueue(9, 99)
    writer = kernel.LoneWriter(core, queue, lambda payload: ("among", payload), kernel.Distribution([]))
    for forbid, allow in (
        (lambda: setattr(core, "alone", False), lambda: setattr(core, "alone", True)),
        (lambda: setattr(core, "rest_at", 8), lambda: setattr(core, "rest_at", 10_000)),
        (lambda: setattr(core, "frame_bytes_max", 20), lambda: setattr(core, "frame_bytes_max", 99)),
        (lambda: setattr(queue, "crowd", 2), lambda: setattr(queue, "crowd", 0)),
    ):
        forbid()
        assert writer.append(b"a") == ("among", b"a")
        assert writer.append_many([b"a"]) is None
        allow()
    assert core.offset == 8
    assert writer.append(b"a") == (3, 8)
    queue.refuse()
    assert writer.append(b"a") == ("among", b"a")


@BOTH
def test_an_error_is_told_while_it_still_leads_and_a_failed_sync_ends_it(kernel: Any) -> None:
    seen: list[Any] = []
    queue = kernel.BoundedQueue(9, 99)

    def raising(error: OSError) -> None:
        raise ValueError("told") from error

    def broken() -> None:
        raise OSError(5, "broken")

    core = core_of(kernel, len, raising)
    core.sync = broken
    writer = kernel.LoneWriter(
        core, queue, lambda _: "among", kernel.Distribution([]), failed=lambda e: seen.append((e, queue.leader))
    )
    with pytest.raises(ValueError, match="told"):
        writer.append(b"a")
    assert len(seen) == 1
    assert isinstance(seen[0][0], ValueError)
    assert seen[0][1] is not None
    assert (core.sync_error.errno, core.rest_at, core.alone, core.synced) == (5, -1, False, 8)
    assert (writer.append(b"a"), queue.leader, core.locked) == ("among", None, False)


@BOTH
def test_the_journal_covers_until_it_is_full_and_then_begins_again(kernel: Any) -> None:
    steps: list[Any] = []
    core = core_of(kernel, len)
    core.cover = lambda *place: steps.append(place) or len(steps) < 3
    core.restart = lambda segment: steps.append(segment)
    writer = kernel.LoneWriter(core, kernel.BoundedQueue(9, 99), None, kernel.Distribution([]))
    for _ in range(3):
        writer.append(b"a")
    assert steps == [(3, 8, 29), (3, 29, 50), (3, 50, 71), 3]
    assert (core.synced, core.settled, core.syncs, core.journal_syncs) == (71, 71, 3, 2)


@BOTH
def test_notes_have_the_place_and_a_checksum_and_never_go_back(kernel: Any, tmp_path: Path) -> None:
    mark = bytes(range(56))
    descriptor = os.open(tmp_path / "mark", os.O_RDWR | os.O_CREAT)
    core = core_of(kernel, len)
    core.share_mark(descriptor, mark, 100)
    core.note_synced(5, 900)
    for earlier in ((5, 899), (4, 10**6)):
        core.note_synced(*earlier)
    found = os.pread(descriptor, 999, 100)
    os.close(descriptor)
    expected = mark[:16] + (5).to_bytes(8, "big") + (900).to_bytes(8, "big") + mark[32:52]
    assert found == expected + kernel.crc32c(expected).to_bytes(4, "big")
    with pytest.raises(ValueError, match="55 bytes"):
        core.share_mark(1, mark[1:], 0)


@BOTH
def test_marks_of_the_index_are_of_the_first_record_in_each_stretch(kernel: Any) -> None:
    core = core_of(kernel, len)
    marks = array("q")
    core.begin(3, 8, marks, 0)
    for _ in range(12):
        core.append(b"a")  # 21 bytes
    core.append_many([b"a"] * 12)
    assert list(marks) == [8, 7, 113, 7, 218, 7, 302, 7, 407, 7]


@BOTH
def test_a_disowned_core_locks_nothing(kernel: Any) -> None:
    core = core_of(kernel, len)
    with core:
        core.disown()
        with core:
            assert core.append(b"a") == "rest"


@BOTH
def test_its_thread_can_take_the_lock_again_and_others_wait(kernel: Any) -> None:
    lock: Any = kernel.OwnedLock()
    inside: list[bool] = []

    def wait() -> None:
        with lock:
            inside.append(lock.held)

    thread = threading.Thread(target=wait)
    with lock:
        with lock:
            thread.start()
        assert lock.held
        assert inside == []
    thread.join(20)
    assert inside == [True]
    assert not lock.held


@BOTH
def test_a_distribution_counts(kernel: Any) -> None:
    figures = kernel.Distribution((1, 4))
    for value in (0.5, 1, 1.5, 4, 5, 9):
        figures.add(value)
    assert (figures.buckets, figures.count, figures.total, figures.most) == ([2, 2, 2], 6, 21, 9)
    assert figures.bounds == (1, 4)
    with pytest.raises(ValueError, match="16 bounds"):
        kernel.Distribution(range(16))


@BOTH
def test_a_gate_can_be_waited_at_for_a_while(kernel: Any) -> None:
    gate = kernel.Gate()
    assert not gate.wait_for(0)
    assert not gate.wait_for(0.001)
    gate.open()
    assert gate.wait_for(1)


@given(
    st.lists(
        st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"x" * 100, b"y" * 100, b"z" * 3000])), max_size=20
    ),
    st.one_of(st.integers(-(2**62), 2**62), st.just(253_370_764_800 * 10**9)),
)
def test_records_of_any_lengths_are_encoded_alike_alone_and_three_at_a_time(
    payloads: list[bytes], time_ns: int
) -> None:
    data, starts = compiled.captain_encode_many(payloads, time_ns)
    assert (data, starts) == oracle.captain_encode_many(payloads, time_ns)
    assert data == b"".join(compiled.captain_encode(payload, time_ns) for payload in payloads)


def test_a_batch_of_an_appender_is_what_is_encoded_also_after_a_larger_one() -> None:
    written: list[bytes] = []
    core = core_of(compiled, lambda data: written.append(data) or len(data))
    core.rest_at = 10**8
    for batch in ([b"a" * 9] * 7, [b"b" * 700_000] * 3, [b"c"], [bytearray(b"d"), b"e" * 2049] * 3):
        _, offset, starts = core.append_many(batch)
        assert (written[-1], starts) == oracle.captain_encode_many(batch, 7)
        assert core.offset == offset + len(written[-1])
