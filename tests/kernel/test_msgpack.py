"""Many values in msgpack as one: what comes of it is what each gives by itself, whatever the bytes are."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kernel import oracle
from tests.kernel.test_twins import same

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.sampled_from(
        ["x" * 31, "x" * 32, "x" * 256, "x" * 65536, b"y" * 255, b"y" * 256, b"y" * 65536, [0] * 65536]
    )
    | st.binary(max_size=40)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=8,
)
PACKED = VALUES.map(msgspec.msgpack.encode)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A value, cut short, made longer, or with a byte changed."""
    data = bytearray(draw(PACKED | st.binary(max_size=12)))
    at = draw(st.integers(0, len(data)))
    action = draw(st.sampled_from(["nothing", "cut", "more", "change"]))
    if action == "cut":
        del data[at:]
    elif action == "more":
        data += draw(st.binary(min_size=1, max_size=5))
    elif action == "change" and at < len(data):
        data[at] = draw(st.integers(0, 255))
    return bytes(data)


def laid_out(parts: list[bytes], head: bytes) -> tuple[bytes, array, array]:
    buffer, starts, ends = b"", array("q"), array("q")
    for part in parts:
        starts.append(len(buffer))
        buffer += head + part
        ends.append(len(buffer))
    return buffer, starts, ends


def again(data: bytes, *, parts: bool = False) -> list[bytes] | None:
    """A value, or its parts, from and to bytes, because a NaN isn't equal to itself; None if it can't be."""
    try:
        value = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError):
        return None
    return [msgspec.msgpack.encode(part) for part in (value if parts else [value])]


@given(st.lists(PACKED, max_size=6), st.sampled_from([b"", b"\x01\x04User"]))
def test_all_values_are_taken(parts, head):
    buffer, starts, ends = laid_out(parts, head)
    count, data = same("msgpack_array", buffer, starts, ends, 0, len(parts), head, len(head), 1 << 30)
    assert count == len(parts)
    assert data == b"\xdd" + count.to_bytes(4, "big") + b"".join(parts)


@given(st.lists(hostile(), min_size=1, max_size=6))
@example([b"\x92\x01", b"\x01"])  # two that would be one
@example([b"\xc1"])
@example([b"\xdf\xff\xff\xff\xff"])
@example([b"\xc6\xff\xff\xff\xff"])
def test_none_borrows_bytes_from_the_next(parts):
    buffer, starts, ends = laid_out(parts, b"")
    count, data = same("msgpack_array", buffer, starts, ends, 0, len(parts), b"", 0, 1 << 30)
    each = [again(part) for part in parts[:count]]
    assert again(data, parts=True) == (None if None in each else [part for (part,) in each])
    if count < len(parts):
        assert again(parts[count]) is None


def test_it_ends_where_the_head_or_the_room_does():
    buffer, starts, ends = laid_out([b"\x01", b"\x02", b"\x03"], b"\0")
    assert same("msgpack_array", buffer, starts, ends, 1, 3, b"\0", 1, 99) == (2, b"\xdd\0\0\0\2\2\3")
    assert same("msgpack_array", buffer, starts, ends, 0, 3, b"\0", 1, 2)[0] == 2
    assert same("msgpack_array", buffer, starts, ends, 0, 3, b"\0", 1, 0)[0] == 1
    assert same("msgpack_array", buffer, starts, ends, 0, 3, b"\0\1", 1, 99) == (1, b"\xdd\0\0\0\1\1")
    assert same("msgpack_array", buffer, starts, ends, 0, 3, b"x", 1, 99) == (0, b"\xdd\0\0\0\0")


@pytest.mark.parametrize(
    "args",
    [(0, 4, b"", 0), (2, 1, b"", 0), (-1, 1, b"", 0), (0, 1, b"\0", 2), (0, 1, b"\0", -1)],
)
def test_what_makes_no_sense_is_refused(args):
    buffer, starts, ends = laid_out([b"\x01", b"\x02", b"\x03"], b"\0")
    assert same("msgpack_array", buffer, starts, ends, *args, 99) is ValueError
    with pytest.raises(ValueError, match="outside of its buffer"):
        oracle.msgpack_array(buffer[:-1], starts, ends, 0, 3, b"\0", 1, 99)
    assert same("msgpack_array", buffer[:-1], starts, ends, 0, 3, b"\0", 1, 99) is ValueError
