"""A program that uses the commit log and logs of messages. Type checkers must refuse the marked lines alone."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from forelog import Position, Stream
from forelog.commitlog import (
    AsyncCommitLog,
    CommitLog,
    FailurePolicy,
    Strategy,
    read_entries,
)
from forelog.formats.m3 import Datapoint, Series
from forelog.messages import Message, MessageLogReader, MessageLogWriter


def names_that_are_misspelt() -> None:
    from forelog.commitlog import ComitLog  # error: ComitLog


async def writes_are_of_the_format() -> None:
    queue = CommitLog(Path("data"), format="m3", strategy="behind", on_failure="ignore")
    queue.write(Series(b"cpu"), Datapoint(1, 0.5), annotation=b"x")
    queue.write(Series(b"cpu"), b"no datapoint")  # error: overload
    assert_type(CommitLog("log").write(b"payload"), Position | None)
    CommitLog("log").write(5)  # error: overload
    CommitLog("log", format="messages").write("topic", b"payload", {"unit": "C"})
    assert_type(queue.aio, AsyncCommitLog)
    assert_type(await queue.aio.write(b"payload"), Position | None)
    async with CommitLog("log") as log:
        await log.write(5)  # error: overload


def paths_are_str_or_path() -> None:
    CommitLog.open(Path("log"), strategy="wait", flush_bytes=1)
    read_entries(Stream(Path("data"), format="m3"))
    MessageLogReader(Path("bus"))


def options_are_checked() -> None:
    CommitLog("log", strategy=Strategy.WAIT, on_failure=FailurePolicy.STOP)
    CommitLog("log", strategy="wiat")  # error: "strategy"
    CommitLog("log", on_failure="stopp")  # error: "on_failure"
    CommitLog.open("log", stratgy="wait")  # error: "stratgy"


def messages() -> None:
    with MessageLogWriter(Path("bus"), sync="interval") as bus:
        bus.write("topic", b"payload", {"unit": "C"})
    MessageLogWriter("bus", sync="sometimes")  # error: "sync"
    with MessageLogReader("bus") as reader:
        assert_type(reader.recv(timeout=1), Message | None)
        reader.recv(timout=1)  # error: "timout"
