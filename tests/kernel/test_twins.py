"""The kernel and the oracle give the same results, on good, random and hostile bytes."""

from __future__ import annotations

from array import array
from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forelog import kernel
from forelog.kernel import types
from tests.kernel import oracle
from tests.notes import noted

TIMES = st.integers(-(2**62), 2**62) | st.integers(-(10**20), 10**20)
PAYLOADS = st.binary(max_size=300) | st.sampled_from([b"", b"\x01" * 40, bytes(200), b"x" * 127, b"y" * 128])


def records(payloads: list[bytes], time_ns: int = 5) -> bytes:
    return oracle.captain_encode_many(payloads, time_ns)[0]


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Records with bytes changed, cut out, put in, and heads of absurd length."""
    data = bytearray(records(draw(st.lists(PAYLOADS, max_size=6)), draw(st.integers(-(2**62), 2**62))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(["flip", "cut", "insert", "head"]))
        if action == "flip" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del data[place : place + draw(st.integers(1, 20))]
        elif action == "insert":
            data[place:place] = draw(st.binary(max_size=20))
        else:
            data[place:place] = b"\x01" + bytes(14) + draw(st.binary(min_size=1, max_size=12))
    return bytes(data)


def same(name: str, *args, mutable: tuple[int, ...] = ()):
    """Call both; results, changed arguments and errors must be equal."""
    outcomes = []
    for module in (oracle, kernel):
        copies = [bytearray(a) if i in mutable and isinstance(a, bytearray) else a for i, a in enumerate(args)]
        copies = [array("q", a) if i in mutable and isinstance(a, array) else a for i, a in enumerate(copies)]
        try:
            result = getattr(module, name)(*copies)
        except (ValueError, TypeError) as error:
            result = type(error)
        outcomes.append((result, [copies[i] for i in mutable]))
    assert outcomes[0] == outcomes[1]
    return outcomes[0][0]


@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1))
@example(b"123456789", 0)
def test_checksums_are_equal_with_and_without_the_instruction(data, start):
    assert kernel.crc32c(data, start) == kernel.crc32c_portable(data, start) == oracle.crc32c(data, start)


def test_the_checksum_is_castagnolis():
    assert oracle.crc32c(b"123456789") == kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert kernel.crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [0, 1, 7, 8, 3071, 3072, 3073, 6144, 100_000])
def test_long_checksums_by_three_lanes_are_equal_to_those_by_one(size):
    data = bytes(i * 7 % 251 for i in range(size))
    assert kernel.crc32c(data) == kernel.crc32c_portable(data)


@given(PAYLOADS, TIMES)
def test_a_record_is_encoded_equally(payload, time_ns):
    same("captain_encode", payload, time_ns)
    assert kernel.captain_encode(bytearray(payload), time_ns) == kernel.captain_encode(payload, time_ns)


@given(st.lists(PAYLOADS, max_size=10), st.integers(-(2**62), 2**62))
def test_many_records_are_encoded_as_one_by_one(payloads, time_ns):
    data, starts = same("captain_encode_many", payloads, time_ns)
    assert data == b"".join(oracle.captain_encode(payload, time_ns) for payload in payloads)
    assert [data[start : start + 1] for start in starts] == [b"\x01"] * len(payloads)


@settings(max_examples=400)
@given(hostile() | st.binary(max_size=200), st.integers(0, 30), st.integers(0, 5), st.integers(0, 7))
def test_a_scan_finds_the_same_and_stops_at_the_same_place_for_the_same_reason(data, start, cut, limit):
    scan = same(
        "captain_scan", data, min(start, len(data)), max(len(data) - cut, min(start, len(data))), 1000, limit
    )
    if isinstance(scan, types.Scan):
        assert len(scan.offsets) <= limit
        assert all(0 <= s <= e <= len(data) for s, e in zip(scan.starts, scan.ends, strict=True))


@given(st.lists(PAYLOADS, max_size=8), st.integers(-(2**62), 2**62))
def test_a_scan_gives_back_what_was_encoded(payloads, time_ns):
    data, starts = kernel.captain_encode_many(payloads, time_ns)
    scan = kernel.captain_scan(data, 0, len(data), 0, 100)
    assert scan.offsets == starts
    assert [data[s:e] for s, e in zip(scan.starts, scan.ends, strict=True)] == payloads
    assert set(scan.times) <= {time_ns}
    assert (scan.end, scan.reason) == (len(data), types.END)


@settings(max_examples=300)
@given(hostile(), st.integers(0, 300), st.integers(-(2**63), 2**63 - 1))
def test_hops_go_the_same_way(data, offset_min, time_min):
    end, reason, _ = same("captain_hop", data, 0, len(data), offset_min, time_min)
    assert end >= 0
    assert reason in (types.END, types.FOUND, types.TRUNCATED, types.BAD_TIME, types.BAD_LENGTH)


@settings(max_examples=300)
@given(hostile(), st.integers(0, 60), st.booleans())
def test_the_next_record_after_damage_is_found_at_the_same_place(data, start, final):
    found = same("captain_find", data, min(start, len(data)), len(data), final)
    assert found == -1 or oracle.captain_scan(data, found, len(data), 0, 1).offsets


def test_a_search_through_bytes_made_to_be_slow_ends():
    claim = b"\x01" + bytes(14) + b"\xff\xff\x03"  # 65,535 bytes, at every place
    data = claim * 20_000
    assert kernel.captain_find(data, 0, len(data), True) == -1


@given(st.lists(PAYLOADS, min_size=1, max_size=8), st.data())
def test_rows_are_gathered_equally(payloads, data):
    buffer = records(payloads)
    scan = oracle.captain_scan(buffer, 0, len(buffer), 0, 100)
    first = data.draw(st.integers(0, len(payloads)))
    last = data.draw(st.integers(first, len(payloads)))
    room = bytearray(4 * (last - first + 1)), bytearray(data.draw(st.sampled_from([len(buffer), 3])))
    size = same("gather", buffer, scan.starts, scan.ends, first, last, *room, mutable=(5, 6))
    if isinstance(size, int):
        places, out = bytearray(room[0]), bytearray(room[1])
        kernel.gather(buffer, scan.starts, scan.ends, first, last, places, out)
        offsets = memoryview(places).cast("i")
        assert [bytes(out[offsets[i] : offsets[i + 1]]) for i in range(last - first)] == payloads[first:last]


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30), st.integers(-(2**63), 2**63 - 1), st.integers(0, 35)
)
def test_time_columns_are_searched_and_masked_equally(times, bound, start):
    column = array("q", times)
    assert list(same("keep_since", column, bound)) == [time >= bound for time in times]
    same("first_since", column, start, bound)
    same("time_run", column, start, bound, min(bound + 3, 2**63 - 1))
    assert same("ascends", column, bound) == (times == sorted(times) and all(time >= bound for time in times))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30), st.integers(0, 35), st.integers(0, 35))
def test_times_become_microseconds_equally(times, first, last):
    column, room = array("q", times), bytearray(8 * 30)
    good = same("microseconds", column, first, last, room, mutable=(3,))
    if 0 <= first <= last <= len(times):
        wanted = times[first:last]
        assert good == all(-(2**63) < time < 2**63 - 1 for time in wanted)
        kernel.microseconds(column, first, last, room)
        assert memoryview(room).cast("q")[: len(wanted)].tolist() == [int(Decimal(time) / 1000) for time in wanted]


@given(st.lists(PAYLOADS, max_size=8), st.data())
def test_compaction_and_its_map_are_equal_and_lead_back(payloads, data):
    buffer = records(payloads)
    scan = oracle.captain_scan(buffer, 0, len(buffer), 8, 100)
    keep = bytearray(data.draw(st.lists(st.booleans(), min_size=len(payloads), max_size=len(payloads))))
    out = bytearray(len(buffer))
    size = same("compact", buffer, scan.offsets, 8, len(buffer), keep, out, mutable=(5,))
    kernel.compact(buffer, scan.offsets, 8, len(buffer), keep, out)
    kept = [payload for payload, k in zip(payloads, keep, strict=True) if k]
    assert bytes(out[:size]) == records(kept)
    place, _ = same("kept_runs", scan.offsets, scan.offsets, 8 + len(buffer), keep, 8, 8, array("q"), mutable=(6,))
    assert place == 8 + size
    runs = array("q")
    kernel.kept_runs(scan.offsets, scan.offsets, 8 + len(buffer), keep, 8, 8, runs)
    after = oracle.captain_scan(bytes(out[:size]), 0, size, 8, 100)
    logical = same("relocate", after.offsets, runs)
    assert logical == same("select", scan.offsets, keep)


@given(
    st.lists(st.lists(st.binary(max_size=6), max_size=12), max_size=4),
    st.integers(0, 4),
    st.integers(0, 8),
    st.sampled_from([-1, 0, 61, 97]),
)
def test_the_latest_of_each_key_is_chosen_equally(blocks, start, stop, delimiter):
    sets = oracle.KeySet(), kernel.KeySet()
    for payloads in blocks:
        buffer = records(payloads)
        scan = oracle.captain_scan(buffer, 0, len(buffer), 0, 100)
        masks = [keys.keep_latest(buffer, scan.starts, scan.ends, start, stop, delimiter) for keys in sets]
        assert masks[0] == masks[1]
    assert len(sets[0]) == len(sets[1])


def test_a_key_set_holds_many_keys():
    keys = kernel.KeySet()
    payloads = [b"%d" % (i % 5000) for i in range(20_000)]
    buffer = records(payloads)
    scan = kernel.captain_scan(buffer, 0, len(buffer), 0, 10**6)
    mask = keys.keep_latest(buffer, scan.starts, scan.ends, 0, 100, -1)
    assert sum(mask) == len(keys) == 5000
    assert all(mask[15_000:])


@pytest.mark.parametrize("kernel", [oracle, kernel], ids=["oracle", "kernel"])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("captain_scan", (b"abc", 0, 4, 0, 1)),
        ("captain_scan", (b"abc", -1, 2, 0, 1)),
        ("captain_hop", (b"abc", 2, 1, 0, 0)),
        ("captain_find", (b"abc", 0, 9, True)),
        ("gather", (b"abc", array("q", [0]), array("q", [9]), 0, 1, bytearray(8), bytearray(9))),
        ("gather", (b"abc", array("q", [0]), array("q", [1]), 0, 2, bytearray(8), bytearray(9))),
        ("gather", (b"abc", array("q", [0]), array("q", [1]), 0, 1, bytearray(4), bytearray(9))),
        ("compact", (b"abc", array("q", [0]), 0, 9, bytearray(1), bytearray(9))),
        ("compact", (b"abc", array("q", [0]), 0, 3, bytearray(b"\1"), bytearray(1))),
        ("compact", (b"abc", array("q", [0]), 0, 3, bytearray(2), bytearray(9))),
        ("select", (array("q", [0]), bytearray(2))),
        ("first_since", (array("q", [0]), 2, 0)),
        ("time_run", (array("q", [0]), 2, 0, 1)),
        ("microseconds", (array("q", [0]), 0, 2, bytearray(16))),
        ("microseconds", (array("q", [0, 0]), 0, 2, bytearray(8))),
    ],
)
def test_a_range_outside_of_its_buffer_is_refused(kernel, name, args):
    with pytest.raises(ValueError, match=r"buffer|room|rows|row|length"):
        getattr(kernel, name)(*args)


@pytest.mark.parametrize("kernel", [oracle, kernel], ids=["oracle", "kernel"])
def test_columns_of_another_type_are_refused_or_harmless(kernel):
    with pytest.raises((TypeError, ValueError)):
        kernel.gather(b"abc", array("b", [0]), array("b", [9]), 0, 1, bytearray(8), bytearray(9))


@pytest.mark.parametrize("kernel", [oracle, kernel], ids=["oracle", "kernel"])
class TestAppendCore:
    def make(self, kernel, write, undo=None, clock=None):
        core = kernel.AppendCore(kernel.captain_encode, undo, lambda payload: ("rested", payload), tuple, clock)
        core.segment, core.offset, core.rest_at, core.write = 3, 8, 1000, write
        return core

    def test_it_counts_and_gives_positions(self, kernel):
        written: list[bytes] = []
        core = self.make(kernel, lambda data: noted(written, data) or len(data), clock=lambda: 7)
        assert [core.append(b"a"), core.append(b"bc")] == [(3, 8), (3, 29)]
        assert (core.offset, core.records, core.time_ns) == (51, 2, 7)
        assert b"".join(written) == kernel.captain_encode(b"a", 7) + kernel.captain_encode(b"bc", 7)

    def test_it_leaves_appends_past_the_rest_to_others(self, kernel):
        core = self.make(kernel, len)
        core.rest_at = 8
        assert core.append(b"a") == ("rested", b"a")
        assert core.offset == 8

    def test_time_never_goes_back(self, kernel):
        times = iter([5, 3, 9])
        core = self.make(kernel, len, clock=lambda: next(times))
        stamps = []
        for _ in range(3):
            core.append(b"")
            stamps.append(core.time_ns)
        assert stamps == [5, 5, 9]

    def test_a_failed_or_short_write_is_handed_on_once_and_counts_only_if_completed(self, kernel):
        calls = []

        def fail(data):
            raise OSError(28, "full")

        def undo(frame, written, error):
            calls.append((len(frame), written, error and error.errno))
            if error:
                raise error

        core = self.make(kernel, fail, undo)
        with pytest.raises(OSError, match="full"):
            core.append(b"a")
        assert (core.offset, core.records, core.locked, core.torn) == (8, 0, False, True)
        assert core.append(b"a") == ("rested", b"a"), "nothing is appended behind what is torn"
        core.torn, core.rest_at = False, 1000
        core.write = lambda _: 3
        assert core.append(b"a") == (3, 8)
        assert calls == [(21, 0, 28), (21, 3, None)]
        assert core.offset == 29

    def test_it_appends_many_with_one_write_or_does_nothing_at_all(self, kernel):
        written: list[bytes] = []
        core = self.make(kernel, lambda data: noted(written, data) or len(data), clock=lambda: 7)
        batch = [b"a", b"bc", b""]
        segment, offset, starts = core.append_many(batch)
        assert (segment, offset, list(starts)) == (3, 8, [0, 21, 43])
        assert written == [b"".join(kernel.captain_encode(payload, 7) for payload in batch)]
        assert (core.offset, core.records, core.time_ns) == (71, 3, 7)
        for rest_at, size_max in ((71, 1000), (133, 1000), (1000, 62)):
            core.rest_at, core.frame_bytes_max = rest_at, size_max
            assert core.append_many(batch) is None
        core.rest_at, core.frame_bytes_max = 134, 63
        assert core.append_many([]) is None
        assert core.append_many((b"a", bytearray(b"bc"), memoryview(b"")))[1] == 71
        assert (len(written), core.offset, core.locked) == (2, 134, False)

    def test_a_batch_that_cannot_be_written_is_handed_on_once(self, kernel):
        calls = []

        def undo(frame, written, error):
            calls.append((len(frame), written, error))

        core = self.make(kernel, lambda _: 5, undo)
        assert core.append_many([b"a", b"b"])[1] == 8
        assert calls == [(42, 5, None)]
        assert (core.offset, core.torn, core.rest_at) == (50, False, 1000)

    def test_what_an_interrupted_write_has_left_is_cut_before_anything_follows_it(self, kernel):
        def interrupt(_):
            raise KeyboardInterrupt

        core = self.make(kernel, interrupt)
        for append, rested in ((core.append, ("rested", b"a")), (lambda one: core.append_many([one]), None)):
            core.torn, core.rest_at = False, 1000
            with pytest.raises(KeyboardInterrupt):
                append(b"a")
            assert (core.place(), core.torn, core.locked) == ((3, 8), True, False)
            assert append(b"a") == rested

    def test_once_it_has_ended_nobody_can_have_it_go_on(self, kernel):
        core = self.make(kernel, len)
        core.end()
        core.rest_at = 1000  # of a thread that didn't know
        assert core.append(b"a") == ("rested", b"a")
        assert (core.rest_at, core.alone, core.offset) == (-1, False, 8)

    def test_a_payload_that_is_no_bytes_changes_nothing(self, kernel):
        core = self.make(kernel, len)
        with pytest.raises(TypeError):
            core.append("text")
        with pytest.raises(TypeError):
            core.append_many([b"fine", "text"])
        assert core.offset == 8
        assert core.append(b"x") == (3, 8)


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(-2, 42), st.integers(-2, 42)), max_size=8),
    st.integers(-1, 9),
    st.integers(-1, 9),
    st.integers(0, 3),
)
def test_both_cut_a_buffer_into_the_same_pieces(buffer, ranges, size, last, head_bytes):
    starts, ends = (array("q", column) for column in ([r[0] for r in ranges], [r[1] for r in ranges]))
    same("pieces", buffer, starts, ends)
    same("pieces", buffer, starts, ends[1:])
    same("even_pieces", buffer, size)
    same("pieces_after", buffer, starts, ends, size, last, b"")
    for start, end in ranges:
        head = buffer[max(start, 0) : max(end, 0)][:head_bytes]  # one that at least this range may begin with
        same("pieces_after", buffer, starts, ends, 0, len(ranges), head)
        same("pieces_after", buffer, starts, ends[1:], 0, len(ranges), head)
