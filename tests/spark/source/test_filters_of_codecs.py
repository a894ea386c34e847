"""A filter on any column of any codec gives what the same filter gives on rows that were collected before."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forelog import Stream
from forelog.broker import MessageLogWriter
from forelog.commitlog import CommitLog
from forelog.formats.m3 import Datapoint, Series
from forelog.spark.codecs import codec_of
from tests.conftest import VECTORS
from tests.spark.source.test_filters import FAR, make

pytestmark = pytest.mark.filterwarnings("ignore")

COMPARED = ["=", "<", "<=", ">", ">=", "<>", "<=>"]


def records(path: Path, _: random.Random) -> None:
    for kind in ("whole", "damaged", "out of order", "cleaned"):
        make(kind, path / kind.replace(" ", "-"), 3)


def commands(path: Path, rng: random.Random) -> None:
    for name in ("cmdlog", "cmdlog-2090"):
        shutil.copytree(VECTORS / "workq" / name, path / f"{name}-{rng.randrange(9)}")


def messages(path: Path, rng: random.Random) -> None:
    for name in ("a", "b"):
        times = iter(range(10**18, 2 * 10**18, rng.randrange(1, 10**12)))
        with MessageLogWriter(
            path / name, file_bytes=3000, buffer_bytes=500, flush_interval_ms=None, clock=times.__next__
        ) as log:
            for serial in range(150):
                log.write(f"plant/{serial % 5}/o%", b"%d" % serial, {"n": serial} if serial % 3 else None)


def datapoints(path: Path, rng: random.Random) -> None:
    for name in ("m", "n"):
        with CommitLog(path / name, format="m3") as log:
            for serial in range(120):
                series = Series(b"cpu%d" % (serial % 5), tags={b"host": b"a"} if serial % 2 else None)
                log.write(series, Datapoint(rng.randrange(10**18), rng.random()))


def literal(value: Any, kind: str, rng: random.Random) -> str:
    """A value of a row, one beside it, or one that no row has."""
    if kind == "timestamp":
        step = rng.choice([-1, 0, 0, 0, 1])
        return rng.choice(FAR) if value is None or rng.random() < 0.2 else f"timestamp_micros({value + step})"
    if value is None:
        return "null"
    if kind == "string":
        text = str(value).replace("'", "")
        return f"'{rng.choice([text, text[:2], text + 'x'])}'"
    if kind == "binary":
        return f"cast('{bytes(value)[:8].decode('latin-1')!a}' as binary)".replace("''", "'")
    if kind == "double":
        return repr(float(value))
    return str(rng.choice([value, value + rng.choice([-1, 1]), 0, -1]))


def conditions(rows: list, types: dict[str, str], rng: random.Random) -> list[str]:
    def values(name: str) -> Callable[[], str]:
        key = f"{name}_micros" if types[name] == "timestamp" else name
        return lambda: literal(rng.choice(rows)[key], types[name], rng)

    def one() -> str:
        name = rng.choice(list(types))
        kind, value = types[name], values(name)
        if kind.startswith("map"):
            return rng.choice([f"size({name}) > 0", f"{name} is null"])
        choices = [
            f"{name} {rng.choice(COMPARED)} {value()}",
            f"{name} in ({value()}, {value()}, null)",
            f"{name} not in ({value()}, {value()})",
            f"{name} is null",
            f"{name} is not null",
            f"coalesce({name}, {value()}) = {value()}",
        ]
        if kind != "binary":
            choices.append(f"{name} between {value()} and {value()}")
            choices.append(f"cast({name} as string) {rng.choice(COMPARED)} cast({value()} as string)")
        if kind in ("string", "binary"):
            choices.append(
                f"cast({name} as string) like '{rng.choice(['%a%', 'p%', '%1', '_%', '%!%%'])}' escape '!'"
            )
        if kind == "timestamp":
            choices.append(f"date({name}) = date({value()})")
        if kind in ("int", "bigint", "smallint"):
            choices.append(f"cast({name} as double) / 2 >= {rng.randrange(50)}")
        return rng.choice(choices)

    def some(depth: int) -> str:
        kind = rng.randrange(6) if depth else 0
        if kind < 3:
            return one()
        if kind == 3:
            return f"not ({some(depth - 1)})"
        return f"({some(depth - 1)}) {'and' if kind == 4 else 'or'} ({some(depth - 1)})"

    return [some(2) for _ in range(12)]


@pytest.mark.parametrize("codec", ["records", "commands", "messages", "datapoints"])
def test_a_filter_is_the_same_before_and_after(spark, tmp_path, codec):
    rng = random.Random(codec)
    {"records": records, "commands": commands, "messages": messages, "datapoints": datapoints}[codec](
        tmp_path / "logs", rng
    )
    types = {"log": "string", **codec_of(codec).columns}
    reader = spark.read.format("forelog").options(codec=codec, recursive="true", onCorruption="skip")
    frame = reader.schema(", ".join(f"`{name}` {kind}" for name, kind in types.items())).load(
        str(tmp_path / "logs")
    )
    times = [name for name, kind in types.items() if kind == "timestamp"]
    frame = frame.selectExpr("*", *(f"unix_micros({name}) {name}_micros" for name in times))
    rows = frame.selectExpr(*(name for name in frame.columns if name not in times)).collect()
    assert len(rows) > 50
    after = frame.localCheckpoint()  # rows without the source that they are from
    held = 0
    for zone, condition in zip(["UTC", "Asia/Kolkata"] * 6, conditions(rows, types, rng), strict=True):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            ours, theirs = (
                sorted(map(str, one.where(condition).drop(*times).collect())) for one in (frame, after)
            )
            assert ours == theirs, condition
            held += 0 < len(ours) < len(rows)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert held, "some filters leave some rows"


def test_counted_tasks_and_segments_of_filters(spark, tmp_path):
    """Both bounds of a filter decide what is opened: the tasks of a query say which segments those are."""
    with Stream(tmp_path / "log").appender(segment_bytes=2000) as log:
        for serial in range(500):
            log.append(b"%050d" % serial)
    frame = spark.read.format("forelog").option("partitionBytes", "2500").load(str(tmp_path / "log"))
    every = frame.rdd.getNumPartitions()
    assert every > 10
    assert frame.where("segment between 3 and 5").rdd.getNumPartitions() == 3
    assert frame.where("segment in (2, 4) or segment = 3").rdd.getNumPartitions() == 3
    assert frame.where("segment > 3 and segment < 5").rdd.getNumPartitions() == 1
    assert frame.where("segment = 3 and segment = 4").count() == 0
    middle = frame.where("segment = 6").selectExpr("unix_micros(min(time))").first()[0]
    within = f"time >= timestamp_micros({middle}) and time <= timestamp_micros({middle + 1})"
    assert frame.where(within).rdd.getNumPartitions() <= 3
