"""A command log, command by command."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forelog import Stream
from forelog.errors import BadCommand, CorruptRecord
from forelog.formats import Block
from forelog.formats.commands.commands import MAGIC, Add, Command, Delete, Schedule, decode, encode
from forelog.jobs.log.reader import commands_of, read_commands
from forelog.jobs.log.replay import Replay
from forelog.kernel.types import END, Scan
from forelog.times import parse_time
from tests.jobs.log import vectors
from tests.jobs.log.test_commands import ADD, ID
from tests.jobs.strategies import COMMANDS, PAYLOADS, laid_out, outcome


@pytest.mark.parametrize("log", vectors.LOGS)
def test_a_log_of_the_original_is_read_in_order_with_positions_and_times(log, tmp_path):
    shutil.copytree(vectors.FOLDER / log, tmp_path / "log")
    stream = Stream.open(tmp_path / "log")
    found = list(read_commands(stream))
    for (position, time_ns, command), record in zip(found, vectors.records(log), strict=True):
        assert (f"{position.segment:09d}.log", position.offset) == (record["segment"], record["offset"])
        assert time_ns == parse_time(record["time"])
        assert command == decode(vectors.payload(record))
    assert list(read_commands(stream, start=found[5][0], until=found[9][0])) == found[5:9]
    state = Replay(parse_time("2026-11-15T18:40:00Z"))
    for _, time_ns, command in found:
        assert not isinstance(command, BadCommand)
        state.apply(command, time_ns)
    assert state.jobs


@given(st.lists(PAYLOADS | COMMANDS.map(encode), max_size=20), st.data())
def test_a_block_gives_what_its_payloads_give_one_by_one(payloads, data):
    buffer, starts, ends = laid_out(payloads, b"-")
    first = data.draw(st.integers(0, len(payloads)))
    times = type(starts)("q", range(len(payloads)))
    scan = Scan(starts, starts, ends, times, len(buffer), END, 0)
    block = Block(1, "1.log", memoryview(buffer), 0, scan, starts, first, len(payloads), len(buffer))
    found = list(commands_of(block))
    assert [(position.offset, time_ns) for position, time_ns, _ in found] == list(
        zip(starts[first:], times[first:], strict=True)
    )
    for (_, _, command), payload in zip(found, payloads[first:], strict=True):
        alone = outcome(payload)
        assert type(command) is type(alone)
        if isinstance(alone, BadCommand):
            assert (command.reason, command.offset, str(command)) == (alone.reason, alone.offset, str(alone))
        else:
            assert command == alone


def test_times_that_no_int64_of_nanoseconds_holds_are_kept(tmp_path):
    far = 250_000_000_000 * 10**9
    commands: list[Command] = [
        Schedule(ID, "q", 1, 1, far, -far),
        Add(ID, "q", 1, 1, far),
        Add(ID, "q", 1, 1, 5, time_ns=far),
        Schedule(ID, "q", 1, 1, -62_135_596_800 * 10**9, -62_135_596_800 * 10**9),
    ]
    stream = Stream(tmp_path / "log", magic=MAGIC)
    with stream.appender() as log:
        log.append_many([encode(command) for command in commands])
    assert [command for _, _, command in read_commands(stream)] == commands


def test_damage_is_told_as_the_caller_chose(tmp_path):
    stream = Stream(tmp_path / "log", magic=MAGIC)
    with stream.appender() as log:
        log.append_many([encode(ADD), encode(Delete(ID))])
        log.roll()
        log.append(encode(Delete(ID)))
    path = tmp_path / "log" / "000000001.log"
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecord):
        list(read_commands(stream))
    assert [command for _, _, command in read_commands(stream, on_corruption="skip")] == [Delete(ID)] * 2
