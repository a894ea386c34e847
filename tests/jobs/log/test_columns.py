"""Commands as Arrow columns, beside the same commands one by one."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forelog import Stream
from forelog.errors import BadCommand
from forelog.formats.commands.columns import COLUMNS, arrow_schema, decode_batch, decode_block
from forelog.formats.commands.commands import Add, Complete, Delete, Fail, Schedule, encode, format_id
from forelog.log.walk import Walk
from forelog.times import to_datetime
from tests.jobs.log import vectors
from tests.jobs.log.test_commands import ADD, ID
from tests.jobs.strategies import COMMANDS, outcome

pa = pytest.importorskip("pyarrow")

YEAR_1, YEAR_9999 = -62_135_596_800 * 10**9, 253_402_300_799 * 10**9
PAYLOADS = st.lists(
    st.none() | st.binary(max_size=60) | COMMANDS.map(encode) | st.sampled_from(vectors.all_payloads()),
    max_size=20,
)


def expected(payload: bytes | None) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(COLUMNS)
    if payload is None:
        return row
    command = outcome(payload)
    if isinstance(command, BadCommand):
        return {**row, "error": command.reason}
    row |= {"command": command.word, "id": format_id(command.id)}
    if isinstance(command, Complete | Fail) and len(payload) > 17:
        row["result"] = command.result
    if isinstance(command, Add | Schedule):
        row |= {name: getattr(command, name) for name in COLUMNS[3:8]}
        row["name"] = command.name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        row |= {"job_payload": command.payload, "scheduled": when(command.time_ns)}
        row["created"] = when(command.created_ns)
    return row


def when(time_ns: int | None) -> int | None:
    """Microseconds since 1970, rounded down."""
    return None if time_ns in (None, YEAR_1) else time_ns // 1000


def rows(columns: dict[str, Any]) -> list[dict[str, object]]:
    plain = {
        name: (column.cast(pa.int64()) if name in ("scheduled", "created") else column).to_pylist()
        for name, column in columns.items()
    }
    return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]


@given(PAYLOADS, st.sampled_from([pa.binary(), pa.large_binary()]), st.data())
@example(vectors.all_payloads(), pa.binary(), None)
def test_columns_of_any_array_say_what_the_commands_say(payloads, kind, data):
    whole = pa.array(payloads, kind)
    first = data.draw(st.integers(0, len(payloads))) if data else 0
    last = data.draw(st.integers(first, len(payloads))) if data else len(payloads)
    columns = decode_batch(whole.slice(first, last - first))
    assert rows(columns) == [expected(payload) for payload in payloads[first:last]]
    for name, column in columns.items():
        column.validate(full=True)
        assert column.type == arrow_schema([name]).field(name).type
        assert len(column) == last - first


@pytest.mark.parametrize("log", vectors.LOGS)
def test_a_log_of_the_original_block_by_block_and_batch_by_batch(log, tmp_path):
    shutil.copytree(vectors.FOLDER / log, tmp_path / "log")
    stream = Stream.open(tmp_path / "log")
    wanted = [expected(vectors.payload(record)) for record in vectors.records(log)]
    by_batch = [
        row for batch in stream.scan(columns=["payload"]) for row in rows(decode_batch(batch.column("payload")))
    ]
    by_block = [row for block in Walk(stream.directory) for row in rows(decode_block(block))]
    assert by_batch == by_block == wanted
    assert [row["id"] for row in wanted] == [record["id"] for record in vectors.records(log)]


def test_only_the_columns_asked_for_come_and_in_their_order():
    payloads = pa.array([encode(ADD)])
    assert list(decode_batch(payloads, ["error", "id"])) == arrow_schema(["error", "id"]).names == ["error", "id"]
    assert decode_batch(payloads, []) == {}
    with pytest.raises(ValueError, match="choose from command, id"):
        decode_batch(payloads, ["payload"])
    with pytest.raises(TypeError, match="list of names"):
        decode_batch(payloads, "id")


def test_a_name_that_is_no_utf8_is_shown_with_replacements():
    payloads = pa.array([encode(ADD), encode(ADD).replace(b"\x01q", b"\x01\xff"), encode(Delete(ID))])
    assert decode_batch(payloads, ["name"])["name"].to_pylist() == ["q", "�", None]


def test_times_from_the_year_1_to_9999_are_there_and_round_down():
    times = [YEAR_1 + 1000, -1, 0, 1999, YEAR_9999]
    payloads = pa.array([encode(Schedule(ID, "q", 1, 1, time_ns, time_ns)) for time_ns in times])
    columns = decode_batch(payloads, ["scheduled", "created"])
    assert columns["scheduled"].to_pylist() == [to_datetime(time_ns) for time_ns in times]
    assert columns["created"] == columns["scheduled"]


def test_arrays_of_other_kinds_of_bytes_are_read_too():
    delete = encode(Delete(ID))
    for kind in (pa.binary(17), pa.binary_view()):
        assert decode_batch(pa.array([delete, None], kind), ["command"])["command"].to_pylist() == ["delete", None]
    assert len(decode_batch(pa.array([], pa.binary()))["id"]) == 0


def test_the_arrays_outlive_what_they_were_made_from():
    data = bytearray(encode(ADD))
    offsets = pa.py_buffer(bytes(4) + len(data).to_bytes(4, "little"))
    columns = decode_batch(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(data)]))
    before = rows(columns)
    data[:] = bytes(len(data))
    assert rows(columns) == before
