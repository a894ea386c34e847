"""The kernel and the oracle decode commands alike, on good, random and hostile bytes."""

from __future__ import annotations

from array import array
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from forelog.errors import BadCommand
from forelog.formats.commands.commands import Add, Complete, Fail, Schedule
from forelog.formats.commands.fields import ERROR_WORDS
from tests.jobs.log.vectors import all_payloads
from tests.jobs.strategies import PAYLOADS, laid_out, outcome
from tests.kernel.test_twins import same

INT64_MAX = 2**63 - 1


def bit(bitmap: bytes, row: int) -> int:
    return bitmap[row >> 3] >> (row & 7) & 1


@given(st.lists(PAYLOADS, max_size=20), st.binary(max_size=3), st.sampled_from([10**9, 10**6, 1]), st.data())
def test_both_decode_the_same(payloads, gap, ticks, data):
    first = data.draw(st.integers(0, len(payloads)))
    last = data.draw(st.integers(first, len(payloads)))
    same("commands_decode", *laid_out(payloads, gap), first, last, ticks)


@given(st.lists(PAYLOADS, max_size=12), st.binary(max_size=3))
@example(all_payloads(), b"")
def test_columns_say_what_commands_one_by_one_say(payloads, gap):
    buffer, starts, ends = laid_out(payloads, gap)
    columns = same("commands_decode", buffer, starts, ends, 0, len(payloads))
    for row, payload in enumerate(payloads):
        command = outcome(payload)
        if isinstance(command, BadCommand):
            assert columns.types[row] == bit(columns.known, row) == 0
            assert ERROR_WORDS[columns.errors[row]] == command.reason
            continue
        assert (columns.types[row], columns.errors[row], bit(columns.known, row)) == (command.type, 0, 1)
        assert columns.ids[16 * row : 16 * row + 16] == command.id
        assert bit(columns.jobs, row) == isinstance(command, Add | Schedule)
        if isinstance(command, Complete | Fail):
            assert buffer[columns.result_starts[row] : columns.result_ends[row]] == command.result
            assert bit(columns.resulted, row) == (len(payload) > 17)
        if isinstance(command, Add | Schedule):
            name = buffer[columns.name_starts[row] : columns.name_ends[row]]
            assert name == command.name.encode("utf-8", "surrogateescape")
            assert buffer[columns.payload_starts[row] : columns.payload_ends[row]] == command.payload
            assert (columns.ttr_ms[row], columns.ttl_ms[row]) == (command.ttr_ms, command.ttl_ms)
            assert columns.priorities[row] == command.priority
            assert (columns.max_attempts[row], columns.max_fails[row]) == (command.max_attempts, command.max_fails)
            for time_ns, column, bitmap in (
                (command.time_ns, columns.times, columns.timed),
                (command.created_ns, columns.created, columns.dated),
            ):
                there = time_ns is not None and abs(time_ns) < INT64_MAX - 2 * 10**9
                if there:
                    assert (column[row], bit(bitmap, row)) == (time_ns, 1)
                elif time_ns is None or abs(time_ns) > INT64_MAX:
                    assert (column[row], bit(bitmap, row)) == (0, 0)


@given(
    st.binary(max_size=40),
    st.lists(st.integers(-5, 50) | st.integers(-(2**63), INT64_MAX), max_size=4),
    st.lists(st.integers(-5, 50) | st.integers(-(2**63), INT64_MAX), max_size=4),
    st.integers(-2, 5),
    st.integers(-2, 5),
    st.sampled_from([10**9, 7, 0, -1]),
)
def test_both_refuse_ranges_that_the_buffer_has_not(buffer, starts, ends, first, last, ticks):
    same("commands_decode", buffer, array("q", starts), array("q", ends), first, last, ticks)
    same("commands_decode", buffer, array("i"), array("q", ends), 0, 0)


@given(st.binary(max_size=100))
@example(bytes(range(64)))
def test_ids_become_the_texts_that_everybody_knows(ids):
    result = same("uuid_texts", ids)
    if len(ids) % 16 == 0:
        offsets, texts = result
        known = [str(UUID(bytes=ids[at : at + 16])) for at in range(0, len(ids), 16)]
        assert texts.decode() == "".join(known)
        assert list(offsets) == list(range(0, 36 * len(known) + 1, 36))


TIMES = st.none() | st.integers(-(2**63), INT64_MAX)


@given(st.binary(min_size=15, max_size=17), st.binary(max_size=40), st.binary(max_size=300), TIMES, TIMES)
@example(bytes(16), b"", bytes(127), None, 0)
@example(bytes(16), b"", bytes(128), -1, 0)
@example(bytes(16), b"head", bytes(20_000), INT64_MAX, -(2**63))
def test_both_encode_a_job_the_same(job_id, head, payload, scheduled_ns, created_ns):
    same("job_encode", job_id, head, payload, scheduled_ns, created_ns or 0)


@given(st.binary(max_size=17))
def test_both_write_an_id_the_same(job_id):
    text = same("uuid_text", job_id)
    if len(job_id) == 16:
        assert same("uuid_parse", text) == same("uuid_parse", text.upper()) == job_id


@given(st.binary(max_size=40) | st.text("0123456789abcdefABCDEFg- ", min_size=34, max_size=38).map(str.encode))
def test_both_read_an_id_the_same(text):
    same("uuid_parse", text)


@given(
    st.lists(st.sampled_from(["a", "bc", " ", "  ", "=", "\0", "\r\n", "\r", "\n"]), max_size=20),
    st.integers(-1, 31),
    st.integers(-1, 31),
)
def test_both_split_a_line_the_same(parts, at, limit):
    data = "".join(parts).encode()
    same("next_line", data, at, limit)
    stop, words, flagged = same("next_line", data, 0, len(data))
    assert stop == data.find(b"\n")
    if words is not None:
        first, *others = data[: stop - 1].split(b" ")
        assert words == [first, *(word for word in others if word)]
        assert flagged == (b"=" in data[:stop])
