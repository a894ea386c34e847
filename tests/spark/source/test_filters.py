"""A filter gives what the same filter gives on rows that were collected before; and opens no more than it must."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forelog import Stream
from forelog.files import OSFiles
from forelog.formats.captain import Captain
from forelog.spark.options import ReadOptions, read_options
from forelog.spark.planning import find_logs, plan
from forelog.spark.ranges import NOTHING, Ranges
from forelog.spark.slices import read_slice, table_columns
from tests.spark.source.test_planning import write_log

pytestmark = pytest.mark.filterwarnings("ignore")

START = 1_700_000_000_000_000_000
FAR = [
    "timestamp '0001-01-01 00:00:00'",
    "timestamp '1677-09-21 00:00:00'",
    "timestamp '1969-12-31 23:59:59.999999'",
    "timestamp '2262-04-12 00:00:00'",
    "timestamp '9999-12-31 23:59:59.999999'",
    "timestamp '+200000-01-01 00:00:00'",
]


def damage(path: Path, rng: random.Random, times: int) -> None:
    for _ in range(times):
        segment = Path(rng.choice(Stream(path).segments()[:-1]).path)
        data = bytearray(segment.read_bytes())
        data[rng.randrange(8, len(data))] ^= 1 << rng.randrange(8)
        segment.write_bytes(data)


def out_of_order(path: Path, rng: random.Random) -> None:
    """Segments as another program may write them: with times that go back, and some that no timestamp can hold."""
    captain = Captain()
    path.mkdir()
    for number in (1, 2, 3, 5, 9):
        records = [
            captain.encode(
                b"%d" % rng.randrange(100),
                rng.choice([START, START, 0, 10**27, -(10**27)]) + rng.randrange(-(10**12), 10**12),
            )
            for _ in range(60)
        ]
        (path / f"{number:09d}.log").write_bytes(captain.header() + b"".join(records))


def make(kind: str, path: Path, seed: int) -> None:
    rng = random.Random(seed)
    if kind == "out of order":
        return out_of_order(path, rng)
    write_log(path, seed, segment_bytes=rng.choice([3000, 20_000, 300_000]))
    if kind == "continued":  # segments of another program, and then ours
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        out_of_order(path, rng)
        write_log(path, seed, segment_bytes=150_000)
    if kind == "cleaned":
        with Stream(path).cleaner() as cleaner:
            cleaner.clean(lambda _, record: record.position.offset % 3 == 0)
    if kind == "damaged":
        damage(path, rng, 4)
    return None


def conditions(rows: list, rng: random.Random) -> list[str]:
    """Filters by values that are there, that are beside those, and that no row has."""

    def segment() -> str:
        return str(rng.choice([rng.choice(rows).segment, 0, -1, 2**31 - 1]))

    def offset() -> str:
        return str(rng.choice([rng.choice(rows).offset + rng.choice([-1, 0, 0, 1]), 0, -5, 2**62]))

    def time() -> str:
        known = [row.micros for row in rows if row.micros is not None]
        return rng.choice([f"timestamp_micros({rng.choice(known) + rng.choice([-1, 0, 0, 1])})", rng.choice(FAR)])

    def one() -> str:
        compared = rng.choice(["=", "<", "<=", ">", ">=", "<>", "<=>"])
        return rng.choice(
            [
                f"segment {compared} {segment()}",
                f"offset {compared} {offset()}",
                f"time {compared} {time()}",
                f"segment between {segment()} and {segment()}",
                f"offset between {offset()} and {offset()}",
                f"time between {time()} and {time()}",
                f"segment in ({segment()}, {segment()}, null)",
                f"offset in ({offset()}, {offset()})",
                f"time in ({time()}, {time()})",
                f"segment = {segment()} and offset = {offset()}",
                f"cast(segment as string) = '{segment()}'",
                f"cast(segment as double) > {segment()} + 0.5",
                f"date(time) = date({time()})",
                f"time > cast(date({time()}) as string)",
                "time is null",
                "time is not null",
                "payload is null",
                f"payload = cast('{rng.randrange(100)}' as binary)",
                "cast(payload as string) like '1%'",
                "length(payload) > 2",
                f"hour(time) = {rng.randrange(24)}",
            ]
        )

    def some(depth: int) -> str:
        kind = rng.randrange(6) if depth else 0
        if kind < 3:
            return one()
        if kind == 3:
            return f"not ({some(depth - 1)})"
        return f"({some(depth - 1)}) {'and' if kind == 4 else 'or'} ({some(depth - 1)})"

    return [some(2) for _ in range(16)]


@pytest.mark.parametrize("kind", ["whole", "cleaned", "damaged", "out of order", "continued"])
def test_a_filter_is_the_same_before_and_after(spark, tmp_path, kind):
    rng = random.Random(kind)
    for seed in range(1):
        path = tmp_path / f"log{seed}"
        make(kind, path, seed)
        frame = (
            spark.read.format("forelog")
            .option("onCorruption", "skip")
            .option("partitionBytes", rng.choice([5000, 10**8]))
        )
        frame = frame.load(str(path)).selectExpr("*", "unix_micros(time) micros")
        rows = frame.collect()
        assert len(rows) > 100
        after = spark.createDataFrame(rows, frame.schema).coalesce(1).cache()
        for zone, condition in zip(["UTC", "America/St_Johns"] * 8, conditions(rows, rng), strict=True):
            spark.conf.set("spark.sql.session.timeZone", zone)
            try:
                found = sorted(frame.where(condition).collect(), key=str)
                assert found == sorted(after.where(condition).collect(), key=str), condition
            finally:
                spark.conf.set("spark.sql.session.timeZone", "UTC")
        after.unpersist()


def test_a_filter_by_log_opens_no_other(spark, tmp_path):
    for name in ("a", "b", "deep/c"):
        write_log(tmp_path / name, 1)
    (tmp_path / "b" / "000000001.log").write_bytes(b"no log at all")
    frame = (
        spark.read.format("forelog")
        .option("recursive", "true")
        .schema("log string, offset bigint")
        .load(str(tmp_path))
    )
    for condition in ("log = 'a'", "log in ('a', 'x')", "log = 'a' and offset >= 0", "log <=> 'a'"):
        assert frame.where(condition).groupBy("log").count().collect() == [("a", 400)]
    assert frame.where("log in ('deep/c', 'a') or log = 'none'").count() == 800
    assert frame.where("log = 'a' and log = 'deep/c'").count() == 0


def of_json(text: str) -> Ranges:
    return Ranges.of_json(text)


@pytest.fixture
def log(tmp_path):
    """Ten segments, each with a few marks in its index."""
    times = iter(range(START, START + 10**12, 10**6))
    with Stream(tmp_path / "log", clock=lambda: next(times)).appender(segment_bytes=200_000) as log:
        for _ in range(4000):
            log.append(b"x" * 480)
    return tmp_path / "log"


@pytest.fixture
def opened(monkeypatch):
    """The names of files that were opened."""
    names: list[str] = []
    real = OSFiles.open_read

    def open_read(self, path):
        names.append(Path(path).name)
        return real(self, path)

    monkeypatch.setattr(OSFiles, "open_read", open_read)
    return names


def planned(path: Path, ranges: Ranges, **options: str) -> list:
    logs = find_logs(str(path), recursive=False)
    return plan(read_options({"path": str(path), **options}), logs, splits=True, ranges=ranges)


def segments_of(names: list[str]) -> set[str]:
    return {name for name in names if name.endswith(".log")}


def test_a_segment_of_many_is_planned_without_opening_any(log, opened):
    count = len(Stream(log).numbers())
    assert count > 5
    logs = find_logs(str(log), recursive=False)
    opened.clear()
    (piece,) = plan(ReadOptions(str(log)), logs, splits=True, ranges=of_json('{"segment": [2, 2]}'))
    assert segments_of(opened) == set()
    assert (tuple(piece.start), tuple(piece.stop)) == ((2, 0), (3, 0))
    assert plan(ReadOptions(str(log)), logs, splits=True, ranges=NOTHING) == []
    assert plan(ReadOptions(str(log)), logs, splits=True, ranges=of_json('{"segment": [99, null]}')) == []
    assert segments_of(opened) == set()


def read_bytes(pieces: list) -> int:
    options = read_options({"path": "x"})
    columns, default = table_columns(options)
    payloads = (batch["payload"] for piece in pieces for batch in read_slice(piece, options, columns, default))
    return sum(len(one) for batch in payloads for one in batch.to_pylist())


def test_an_offset_reads_no_more_than_what_lies_between_two_marks(log):
    pieces = planned(log, of_json('{"segment": [2, 2], "offset": [70000, 70000]}'))
    assert 0 < read_bytes(pieces) < 70_000
    several = read_bytes(planned(log, of_json('{"offset": [70000, 70000]}')))
    assert several < 70_000 * len(Stream(log).numbers()) + 200_000, "the last one has no index yet"


def test_times_open_the_segments_that_can_have_them(log, opened):
    segments = Stream(log).segments()
    middle = segments[3].first_time_ns // 1000
    logs = find_logs(str(log), recursive=False)
    opened.clear()
    (piece,) = plan(
        ReadOptions(str(log)), logs, splits=True, ranges=of_json(f'{{"time": [{middle + 1}, {middle + 2}]}}')
    )
    assert piece.start.segment == piece.stop.segment == 4
    assert len(segments_of(opened)) <= 4, "those that a binary search among ten looks at"
    assert planned(log, of_json('{"time": [null, 1000]}')) == []
    assert read_bytes(planned(log, of_json(f'{{"time": [{9 * 10**18}, null]}}'))) < 200_000


def test_segments_that_lie_apart_are_slices_apart(tmp_path):
    """One with an index can be left out by its times also where those go back elsewhere."""
    path = tmp_path / "log"
    out_of_order(path, random.Random(1))
    write_log(path, 1, segment_bytes=1000)
    micros = Stream(path).segments()[-1].first_time_ns // 1000
    pieces = planned(path, of_json(f'{{"time": [{micros}, {micros}]}}'))
    assert sum(piece.stop.segment - piece.start.segment + 1 for piece in pieces) < len(Stream(path).numbers())


@pytest.mark.parametrize("text", ["{}", '{"segment": [null, 3]}', '{"log": ["a"]}', '{"time": [null, null]}'])
def test_ranges_without_bounds_leave_everything(text):
    ranges = of_json(text)
    assert not ranges.empty
    assert (ranges.since_ns, ranges.until_ns, ranges.offset) == (None, None, Ranges().offset)


def test_columns_of_a_codec_of_ones_own_rule_nothing_out(monkeypatch):
    """Its `time` and `offset` may mean something else."""
    from forelog.spark import register_codec
    from forelog.spark.codecs import Records, codec_of
    from forelog.spark.slices import ranges_for

    class Own(Records):
        name = "own"
        positioned = ()  # type: ignore[assignment]

    monkeypatch.setattr("forelog.spark.codecs._codecs", {})
    register_codec(Own())
    options = read_options(
        {"path": "x", "codec": "own", "forelog.ranges": '{"segment": [2, 3], "offset": [1, 1]}'}
    )
    assert ranges_for(options, codec_of("own")) == Ranges()
