"""Commands from and to bytes, beside those that the original program wrote."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import Stream
from forelog.errors import BadCommand, ForelogError
from forelog.formats.captain import Captain
from forelog.formats.commands.commands import (
    MAGIC,
    VERSION,
    Add,
    Complete,
    Delete,
    Expire,
    Fail,
    Schedule,
    StartAttempt,
    TimeoutAttempt,
    decode,
    encode,
    format_id,
    parse_id,
)
from forelog.formats.commands.fields import ERROR_WORDS
from forelog.times import parse_time
from tests.jobs.log import vectors
from tests.jobs.strategies import COMMANDS, outcome

ID = parse_id("61000000-0001-4000-8000-000000000001")
ADD = Add(ID, "q", 1, 2, 3, b"payload", -4, 5, 6)


@pytest.mark.parametrize("log", vectors.LOGS)
def test_every_record_of_the_original_is_read_right_and_written_the_same(log):
    stream = Stream.open(vectors.FOLDER / log)
    assert stream.format == Captain(MAGIC, VERSION)
    for record in vectors.records(log):
        payload = vectors.payload(record)
        command = decode(payload)
        assert encode(command) == payload
        assert (command.word, command.type, format_id(command.id)) == (record["cmd"], record["type"], record["id"])
        if isinstance(command, Complete | Fail):
            assert command.result == b64decode(record["result_base64"])
        if isinstance(command, Add | Schedule):
            for field in ("name", "priority", "max_attempts", "max_fails"):
                assert getattr(command, field) == record[field]
            assert (command.ttr_ms, command.ttl_ms) == (record["ttr"], record["ttl"])
            assert command.payload == b64decode(record["job_payload_base64"])
            assert command.created_ns == parse_time(record["job_created"])
            assert command.time_ns == (None if record["job_time_is_zero"] else parse_time(record["job_time"]))


@given(COMMANDS)
def test_what_is_written_is_read(command):
    assert decode(encode(command)) == command
    assert decode(bytearray(encode(command))) == decode(memoryview(encode(command))) == command


@given(st.binary(max_size=120) | st.binary(max_size=120).map(lambda rest: b"\x01" + ID + rest))
def test_hostile_bytes_are_a_command_or_a_clear_error(data):
    command = outcome(data)
    if isinstance(command, BadCommand):
        assert isinstance(command, ForelogError)
        assert 0 <= command.offset <= len(data)
        assert command.reason in ERROR_WORDS
    else:
        assert decode(encode(command)) == command


@given(COMMANDS, st.data())
def test_a_command_that_lacks_its_end_is_never_taken_for_a_whole_one(command, data):
    whole = encode(command)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    if isinstance(command, Complete | Fail) and len(cut) == 17:
        assert decode(cut) == type(command)(command.id)  # as the document has it: without a result
        return
    with pytest.raises(BadCommand) as caught:
        decode(cut)
    assert caught.value.reason == ("truncated" if cut else "empty")


@pytest.mark.parametrize(
    ("payload", "reason", "offset"),
    [
        (b"", "empty", 0),
        (b"\x00", "type", 0),
        (b"\x09" + ID, "type", 0),
        (b"\x05" + ID[:15], "truncated", 1),
        (b"\x05" + ID + b"z", "trailing", 17),
        (b"\x03" + ID + b"\x05ab", "truncated", 17),
        (b"\x03" + ID + b"\xff" * 9 + b"\x01", "truncated", 17),
        (b"\x03" + ID + b"\xff" * 10, "number", 17),
        (b"\x03" + ID + b"\x80", "truncated", 17),
        (b"\x01" + ID + b"\x01q" + b"\xff\xff\xff\xff\x1f", "range", 19),
        (encode(ADD)[:-30] + b"\x02" + encode(ADD)[-29:], "time", 32),
        (encode(ADD)[:-6] + b"\x3b\x9a\xca\x00\xff\xff", "time", 47),
        (encode(ADD) + b"\x00", "trailing", 62),
    ],
)
def test_an_error_says_what_is_wrong_and_where(payload, reason, offset):
    with pytest.raises(BadCommand) as caught:
        decode(payload)
    assert (caught.value.reason, caught.value.offset) == (reason, offset)


def test_numbers_in_more_bytes_than_needed_are_read():
    assert decode(b"\x03" + ID + b"\x82\x80\x00ab") == Complete(ID, b"ab")


def test_a_zone_only_says_how_to_show_a_time():
    zoned = encode(ADD)[:-17] + b"\x00\x3c" + encode(ADD)[-15:-2] + b"\x00\x00"
    assert decode(zoned) == ADD
    assert encode(ADD)[-30:-15].hex() == "01000000000000000000000000ffff"


def test_a_name_that_is_no_utf8_is_kept():
    raw = encode(ADD).replace(b"\x01q", b"\x01\xff")
    assert encode(decode(raw)) == raw


@pytest.mark.parametrize(
    "fields",
    [
        {"id": b"short"},
        {"ttr_ms": -1},
        {"ttr_ms": 2**32},
        {"ttl_ms": 2**63},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"max_attempts": 256},
        {"max_fails": -1},
        {"created_ns": 10**30},
    ],
)
def test_what_no_field_can_hold_is_not_written(fields):
    values = {"id": ID, "name": "q", "ttr_ms": 1, "ttl_ms": 1, "created_ns": 0}
    with pytest.raises(BadCommand):
        encode(Add(**{**values, **fields}))


def test_commands_of_different_types_are_never_equal():
    assert len({kind(ID) for kind in (Delete, Expire, StartAttempt, TimeoutAttempt)}) == 4


def test_a_text_that_is_no_id_is_refused():
    with pytest.raises(BadCommand):
        parse_id("hostile")
