"""No bytes, and bytes at odd places: C forbids a NULL in a copy of nothing, and a number that isn't aligned.

Without sanitizers a wrong kernel passes these too. `make sanitize` runs them with a kernel that ends at the first.
"""

from __future__ import annotations

import ctypes
from array import array

import pytest

from forelog import kernel
from tests.kernel import oracle
from tests.kernel.test_twins import same

BOTH = pytest.mark.parametrize("kernel", [kernel, oracle], ids=["kernel", "oracle"])
NONE: array[int] = array("q")


def at_null() -> memoryview:
    """An empty buffer at the address 0, as other libraries hand it out."""
    return memoryview((ctypes.c_char * 0).from_address(0)).cast("B")


@BOTH
def test_a_buffer_without_bytes_may_be_at_any_address(kernel):
    nothing, one = at_null(), array("q", [0])
    assert kernel.crc32c(nothing) == kernel.crc32c_portable(nothing) == 0
    assert kernel.captain_encode(nothing, 5) == kernel.captain_encode(b"", 5)
    assert kernel.captain_encode_many([nothing], 5)[0] == kernel.captain_encode(b"", 5)
    for name in ("captain", "messages", "m3"):
        assert not getattr(kernel, f"{name}_scan")(nothing, 0, 0, 0, 10).offsets
        assert getattr(kernel, f"{name}_find")(nothing, 0, 0, True) == -1
        getattr(kernel, f"{name}_hop")(nothing, 0, 0, 0, 0)
    assert kernel.pieces(nothing, one, one) == [b""]
    assert kernel.pieces_after(nothing, one, one, 0, 1, b"") == [b""]
    assert kernel.gather(nothing, one, one, 0, 1, bytearray(8), nothing) == 0
    assert kernel.compact(nothing, one, 0, 0, b"\1", nothing) == 0
    assert kernel.topic_codes(nothing, array("q", [0, 0]), array("q", [0, 0]))[1] == [b""]
    assert kernel.messages_flags(nothing, one, one) == kernel.messages_flags(b"", one, one)
    assert kernel.msgpack_array(nothing, one, one, 0, 1, b"", 0, 10)[0] == 0
    assert kernel.mqtt_split(nothing, 0, 0, 100).end == 0
    assert kernel.mqtt_publishes(nothing, 0, 0, 5, 100).end == 0
    assert kernel.mqtt_encode_publish(5, b"t", nothing, 0, False, False, 0, b"") == bytes.fromhex(
        "3004 0001 74 00"
    )
    assert kernel.Inbox().take("owner", nothing, 0, 0, 5, 100, 1, b"\x80", b"\x80")[0] == 0
    assert kernel.commands_decode(nothing, one, one, 0, 1).types == b"\0"
    assert kernel.uuid_texts(nothing)[1] == b""


@BOTH
def test_a_set_may_begin_with_an_empty_key(kernel):
    keys, one = kernel.KeySet(), array("q", [0, 0])
    assert keys.keep_latest(b"", one, one, 0, 5, -1) == bytearray(b"\0\1")
    assert keys.keep_latest(b"abc", array("q", [0, 0]), array("q", [0, 3]), 0, 5, -1) == bytearray(b"\0\1")
    assert len(keys) == 2


@BOTH
def test_messages_without_bytes_become_chunks_as_others_do(kernel):
    data, starts, places = kernel.m3_chunks([b"", b"", b"one", b""], 100)
    assert (data, starts, places) == oracle.m3_chunks([b"", b"", b"one", b""], 100)


@BOTH
def test_an_empty_inbox_has_no_topics(kernel):
    inbox = kernel.Inbox()
    assert inbox.topics() == []
    assert inbox.drain().data == b""


def test_columns_may_lie_at_any_address():
    starts, ends = array("q", [0, 1]), array("q", [1, 4])
    for one in (kernel, oracle):
        places, micros = bytearray(13), bytearray(17)
        assert one.gather(b"abcdef", starts, ends, 0, 2, memoryview(places)[1:], bytearray(4)) == 4
        assert memoryview(places[1:]).cast("i").tolist() == [0, 1, 4]
        assert one.microseconds(array("q", [5000, -7999]), 0, 2, memoryview(micros)[1:])
        assert memoryview(micros[1:]).cast("q").tolist() == [5, -7]


def test_no_rows_are_no_rows():
    for name in ("pieces", "topic_codes", "messages_flags", "messages_json"):
        same(name, b"", NONE, NONE)
    same("select", NONE, b"")
    same("relocate", NONE, NONE)
