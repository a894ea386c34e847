"""A program that uses forelog's logs. Type checkers must refuse the lines marked `error:`, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from forelog import (
    Appender,
    KeepLatest,
    Position,
    Record,
    Stream,
    SyncPolicy,
    VerifyReport,
    verify,
)
from forelog.errors import CorruptRecord
from forelog.testing import CrashDisk, Writer


def names_that_are_misspelt() -> None:
    from forelog.erors import ForelogError  # error: forelog.erors

    from forelog import Streem  # error: Streem
    from forelog.errors import CorruptedRecord  # error: CorruptedRecord

    Stream("log").apender()  # error: apender


def types_are_known() -> None:
    stream = Stream.open("log")
    with stream.appender(sync="always") as log:
        assert_type(log, Appender)
        assert_type(log.append(b"one"), Position)
    with stream.cursor() as cursor:
        for record in cursor:
            assert_type(record, Record)
    with stream.cleaner() as cleaner:
        cleaner.clean(KeepLatest(key=slice(0, 8)))
    try:
        assert_type(verify(stream), VerifyReport)
    except CorruptRecord as error:
        print(error.path)
        stream.cursor(start=error.position)
    for block in stream.blocks(on_corruption="skip"):
        print(block.frame_bytes(0))
    with stream.reading() as walk:
        print(walk.position.segment)


def paths_are_str_or_path() -> None:
    Stream(Path("log"), format="captain").backup(Path("copy"))
    Stream.open(Path("log"))
    Stream(1)  # error: "int" | Literal[1]


async def tasks_have_the_same() -> None:
    with Stream("log").appender() as log:
        assert_type(await log.append_async(b"one"), Position)


def options_are_checked() -> None:
    stream = Stream("log")
    stream.appender(sync=SyncPolicy.INTERVAL, sync_interval_ms=5, visible="synced")
    stream.appender(sync="alwasy")  # error: "sync"
    stream.appender(sycn="always")  # error: "sycn"
    stream.appender(visible="read")  # error: "visible"
    stream.cursor(on_corruption="ignore")  # error: "on_corruption"
    Stream("log", format="capitan")  # error: "format"


def a_writer_of_histories(writer: Writer) -> None:
    stream = writer.stream(Path("log"), format="m3")
    writer.appender(stream, sync="always", spare=True)
    writer.appender(stream, sync="alwasy")  # error: "sync"
    writer.appender(stream, spaer=True)  # error: "spaer"
    writer.stream("log", format="capitan")  # error: "format"
    Stream("log", files=CrashDisk())
