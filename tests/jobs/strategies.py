"""Commands, good and hostile, for property tests."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from forelog.errors import BadCommand
from forelog.formats.commands.commands import (
    Add,
    Command,
    Complete,
    Delete,
    Expire,
    Fail,
    Schedule,
    StartAttempt,
    TimeoutAttempt,
    decode,
    encode,
)
from tests.jobs.log.vectors import all_payloads

IDS = st.binary(min_size=16, max_size=16)
TIMES = st.integers(-(10**20), 10**20) | st.sampled_from([0, -1, -62_135_596_800 * 10**9 + 1])
SHARED = {
    "id": IDS,
    "name": st.text("abc_.-", max_size=300) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "ttr_ms": st.integers(0, 2**32 - 1),
    "ttl_ms": st.integers(0, 2**63 - 1),
    "created_ns": TIMES,
    "payload": st.binary(max_size=300),
    "priority": st.integers(-(2**31), 2**31 - 1),
    "max_attempts": st.integers(0, 255),
    "max_fails": st.integers(0, 255),
}
COMMANDS = st.one_of(
    st.builds(Add, **SHARED, time_ns=st.none() | TIMES),
    st.builds(Schedule, **SHARED, time_ns=TIMES),
    *(st.builds(kind, IDS, st.binary(max_size=300)) for kind in (Complete, Fail)),
    *(st.builds(kind, IDS) for kind in (Delete, Expire, StartAttempt, TimeoutAttempt)),
)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A command with bytes changed, cut out, put in, and numbers of absurd size."""
    data = bytearray(encode(draw(COMMANDS)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        action = draw(st.sampled_from(["flip", "cut", "insert", "number"]))
        if action == "flip" and place < len(data):
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif action == "cut":
            del data[place : place + draw(st.integers(1, 20))]
        elif action == "insert":
            data[place:place] = draw(st.binary(max_size=20))
        else:
            data[place:place] = b"\xff" * draw(st.integers(1, 10)) + draw(st.binary(max_size=2))
    return bytes(data)


PAYLOADS = hostile() | st.binary(max_size=80) | st.sampled_from(all_payloads())


def laid_out(payloads: list[bytes], gap: bytes = b"") -> tuple[bytes, array[int], array[int]]:
    buffer, starts, ends = bytearray(), array("q"), array("q")
    for payload in payloads:
        buffer += gap
        starts.append(len(buffer))
        buffer += payload
        ends.append(len(buffer))
    return bytes(buffer), starts, ends


def outcome(payload: bytes) -> Command | BadCommand:
    try:
        return decode(payload)
    except BadCommand as error:
        return error
