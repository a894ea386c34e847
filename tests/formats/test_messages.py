"""The messages format under the engine: names, numbers, times, recovery, damage, cleaning."""

from __future__ import annotations

import itertools
from array import array

import msgspec
import pytest

from forelog import KeepLast, OlderThan, Position, Stream, apply_repairs, plan_repair, verify
from forelog.errors import CorruptRecord, RecordTooLarge, TimeOutOfRange
from forelog.formats import detect, named_format
from forelog.formats.messages import Messages
from forelog.formats.messages.msgpack import pack, unpack
from forelog.testing import CrashDisk

START = 1_794_767_400_123_456_789
FORMAT = Messages()


def ticking(start: int = START, step: int = 1000):
    ticks = itertools.count(start, step)
    return lambda: next(ticks)


def stream_at(path, clock=None, files=None) -> Stream:
    return Stream(path, format="messages", clock=clock or ticking(), files=files)


def item(payload: bytes, topic: str = "t", properties=None):
    return FORMAT.item(topic, payload, properties)


def payloads(stream: Stream, **options) -> list[bytes]:
    with stream.cursor(**options) as cursor:
        return [record.payload for record in cursor]


def times(stream: Stream) -> list[int]:
    with stream.cursor() as cursor:
        return [record.time_ns for record in cursor]


def files_of(path) -> list:
    return sorted(path.glob("*.dat"))


# -- names


@pytest.mark.parametrize("number", [0, 1, START, 2**62 - 1, 951_782_400 * 10**9])
def test_a_name_and_a_number_are_the_same_time(number):
    assert FORMAT.segment_number(FORMAT.segment_name(number)) == number


@pytest.mark.parametrize(
    "name",
    [
        "20261115T183000.123456789Z.dat.rw",
        "20261115T183000.12345678Z.dat",
        "20261315T183000.123456789Z.dat",
        "20260230T183000.123456789Z.dat",
        "20261115T183060.123456789Z.dat",
        "19691231T235959.999999999Z.dat",
        "22000101T000000.000000000Z.dat",
        "20261115T183000.123456789.dat",
        "٢٠٢٦1115T183000.123456789Z.dat",
        "000000001.log",
    ],
)
def test_other_names_are_no_segments(name):
    assert FORMAT.segment_number(name) is None


def test_a_file_is_named_by_the_time_of_its_first_message(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender(segment_bytes=100) as log:
        for i in range(20):
            log.append(item(b"%d" % i * 5))
    with stream.cursor() as cursor:
        firsts = {record.position.segment: record.time_ns for record in reversed(list(cursor))}
    assert len(firsts) > 4
    assert all(number == time_ns for number, time_ns in firsts.items())
    assert [FORMAT.segment_number(path.name) for path in files_of(tmp_path)] == sorted(firsts)


def test_a_log_is_known_by_its_files(tmp_path):
    with stream_at(tmp_path).appender() as log:
        position = log.append(item(b"one"))
    found = Stream.open(tmp_path)
    assert found.format == FORMAT == named_format("messages") == detect(files_of(tmp_path)[0].name, b"")
    assert Position.parse(str(position)) == position
    assert payloads(found, start=str(position)) == [b"one"]


# -- times


def test_times_increase_strictly_when_the_clock_stands_still_or_goes_back(tmp_path):
    clock = iter([*[START] * 8, *range(START, START - 60, -1)])
    stream = stream_at(tmp_path, clock=lambda: next(clock))
    with stream.appender(segment_bytes=60) as log:
        for _ in range(5):
            log.append(item(b"x" * 9))
            log.append_many([item(b"y"), item(b"z")])
    with stream.appender(segment_bytes=60) as log:
        log.append_many([item(b"y"), item(b"z")])
    found = times(stream)
    assert len(found) == 17
    assert all(a < b for a, b in itertools.pairwise(found))
    assert verify(stream).ok


def test_a_batch_gets_consecutive_nanoseconds(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender() as log:
        log.append_many([item(b"%d" % i) for i in range(5)])
    found = times(stream)
    assert found == list(range(found[0], found[0] + 5))


def test_the_first_message_after_a_roll_has_the_time_at_which_it_is_written(tmp_path):
    now = [START]
    stream = stream_at(tmp_path, clock=lambda: now[0])
    with stream.appender() as log:
        now[0] += 10**9
        first = log.append(item(b"one"))
        rolled = log.roll()
        now[0] += 10**9
        second = log.append(item(b"two"))
    assert (first, second) == (Position(START + 10**9, 0), Position(START + 2 * 10**9, 0))
    assert rolled < second
    assert payloads(stream, start=rolled) == [b"two"]
    assert len(files_of(tmp_path)) == 2


def test_a_follower_of_an_empty_file_goes_on_in_the_one_that_takes_its_place(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender() as log, stream.cursor(follow=True) as cursor:
        assert cursor.read(timeout=0) is None
        position = log.append(item(b"one"))
        assert cursor.read(timeout=10).position == position
        log.roll()
        assert cursor.read(timeout=0) is None
        position = log.append(item(b"two"))
        assert cursor.read(timeout=10).position == position


@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize("spare", [False, True])
def test_a_log_goes_on_after_it_was_closed(tmp_path, sync, spare):
    stream = stream_at(tmp_path)
    for i in range(4):
        with stream.appender(sync=sync, spare=spare, segment_bytes=90) as log:
            log.append(item(b"%d a" % i))
            log.append_many([item(b"%d b" % i), item(b"%d c" % i)])
            if i == 2:
                log.roll()
    assert payloads(stream) == [b"%d %c" % (i, c) for i in range(4) for c in b"abc"]
    found = times(stream)
    assert all(a < b for a, b in itertools.pairwise(found))
    report = verify(stream)
    assert (report.ok, report.records) == (True, 12)


def test_a_clock_past_the_last_year_of_messages_is_refused(tmp_path):
    stream = stream_at(tmp_path, clock=lambda: 2**62)
    with pytest.raises(TimeOutOfRange, match="1970 to 2115"):
        stream.appender()


# -- encoded records


def test_records_that_are_encoded_already_are_appended_as_they_are(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender(segment_bytes=100) as log:
        for i in range(5):
            now = log.next_time()
            frames = [FORMAT.encode(item(b"%d %d" % (i, j)), now + 7 * j) for j in range(3)]
            starts = array("q", itertools.accumulate(map(len, frames[:-1]), initial=0))
            positions = log.append_encoded(b"".join(frames), starts)
            assert [p.offset - positions[0].offset for p in positions] == list(starts)
        assert list(log.append_encoded(b"", array("q"))) == []
    assert payloads(stream) == [b"%d %d" % (i, j) for i in range(5) for j in range(3)]
    assert len(files_of(tmp_path)) > 1
    report = verify(stream)
    assert report.ok
    assert not report.notes()


def test_encoded_records_that_are_not_later_are_refused_and_nothing_is_written(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender(batch_bytes_max=1000) as log:
        log.append(item(b"one"))
        last = times(stream)[-1]
        two = FORMAT.encode(item(b"x"), last + 1)
        for data, starts in (
            (FORMAT.encode(item(b"x"), last), [0]),
            (two + two, [0, len(two)]),
            (b"\0" + two, [1]),
            (b"nonsense, and enough of it", [0]),
        ):
            with pytest.raises(ValueError, match="encoded records"):
                log.append_encoded(data, array("q", starts))
        with pytest.raises(RecordTooLarge):
            log.append_encoded(FORMAT.encode(item(bytes(1000)), last + 1), array("q", [0]))
        log.append_encoded(memoryview(two), array("q", [0]))
    assert payloads(stream) == [b"one", b"x"]


def test_encoded_records_are_synced_under_always():
    disk = CrashDisk()
    stream = stream_at("log", files=disk)
    with stream.appender(sync="always") as log:
        log.append(item(b"one"))
        log.append_encoded(FORMAT.encode(item(b"two"), log.next_time()), array("q", [0]))
        for state in disk.states(limit=50):
            assert payloads(stream_at("log", files=state.disk)) == [b"one", b"two"]


# -- finding


def test_a_time_is_found_by_names_and_marks_also_within_a_batch(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender(segment_bytes=300_000) as log:
        for i in range(12):
            log.append_many([item(b"%06d" % (100 * i + j) + bytes(900)) for j in range(100)])
    found = times(stream)
    assert len(files_of(tmp_path)) > 2
    for row in (0, 1, 99, 100, 101, 555, 1198, 1199):
        assert payloads(stream, since=found[row])[0][:6] == b"%06d" % row
    assert payloads(stream, since=found[300] - 1)[0][:6] == b"000300"
    assert payloads(stream, since=found[-1] + 1) == []
    assert [p[:6] for p in payloads(stream, reverse=True)] == [b"%06d" % i for i in reversed(range(1200))]


def test_messages_larger_than_any_window_are_read_forward_backward_and_after_damage(tmp_path):
    stream = stream_at(tmp_path)
    written = [bytes([65 + i]) * (3 << 20) if i % 2 else b"small %d" % i for i in range(5)]
    big = {f"k{i}": "v" * 5000 for i in range(100)}
    with stream.appender() as log:
        positions = [log.append(item(payload, "t" * 300, big)) for payload in written]
    assert payloads(stream) == written
    assert payloads(stream, reverse=True) == written[::-1]
    path = files_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[positions[1].offset + 1_000_000] ^= 1
    path.write_bytes(data)
    assert payloads(stream, on_corruption="skip") == [written[0], *written[2:]]


# -- damage


def damaged(tmp_path, change) -> Stream:
    stream = stream_at(tmp_path)
    with stream.appender() as log:
        log.append_many([item(b"message %d" % i, properties={"n": i}) for i in range(6)])
        log.roll()
        log.append(item(b"last"))
    path = files_of(tmp_path)[0]
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return stream


def test_damage_is_told_and_reading_goes_on_after_it(tmp_path):
    def flip(data: bytearray) -> None:
        data[data.index(b"message 2") + 3] ^= 1

    stream = damaged(tmp_path, flip)
    with pytest.raises(CorruptRecord) as raised:
        payloads(stream)
    assert raised.value.reason == "crc"
    assert payloads(stream, on_corruption="skip") == [b"message %d" % i for i in (0, 1, 3, 4, 5)] + [b"last"]
    assert not verify(stream).ok


def test_a_head_that_is_gone_is_passed_over_too(tmp_path):
    def wipe(data: bytearray) -> None:
        place = data.index(b"message 2")
        data[place - 14 : place + 2] = bytes(16)

    stream = damaged(tmp_path, wipe)
    assert payloads(stream, on_corruption="skip") == [b"message %d" % i for i in (0, 1, 3, 4, 5)] + [b"last"]


def test_repair_takes_the_damage_out_and_keeps_the_rest(tmp_path):
    def flip(data: bytearray) -> None:
        data[data.index(b"message 2") + 3] ^= 1

    stream = damaged(tmp_path, flip)
    before = [r.position for r in stream.cursor(on_corruption="skip")]
    assert plan_repair(stream)
    apply_repairs(stream)
    assert verify(stream).ok
    with stream.cursor() as cursor:
        assert [record.position for record in cursor] == before


def test_a_torn_tail_is_cut_and_kept_as_evidence(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender() as log:
        log.append_many([item(b"one"), item(b"two"), item(b"three")])
    path = files_of(tmp_path)[0]
    whole = path.read_bytes()
    (tmp_path / "append.synced").unlink()
    path.write_bytes(whole[:-3])
    with stream.appender() as log:
        assert log.recovery.torn.reason == "truncated"
        log.append(item(b"four"))
    assert payloads(stream) == [b"one", b"two", b"four"]
    assert len(list(tmp_path.glob("*.torn"))) == 1
    found = times(stream)
    assert all(a < b for a, b in itertools.pairwise(found))


def test_a_torn_message_that_holds_messages_is_one_torn_tail(tmp_path):
    stream = stream_at(tmp_path)
    inner = b"".join(FORMAT.encode(item(b"inner %d" % i), 5 + i) for i in range(4))
    with stream.appender() as log:
        log.append_many([item(b"one"), item(inner + bytes(100))])
    path = files_of(tmp_path)[0]
    (tmp_path / "append.synced").unlink()
    path.write_bytes(path.read_bytes()[:-30])
    assert payloads(stream) == [b"one"]
    with stream.appender() as log:
        assert log.recovery.torn is not None
        assert log.recovery.damage is None
    assert payloads(stream) == [b"one"]


# -- forgetting


def test_records_and_files_are_cleaned_and_positions_stay(tmp_path):
    stream = stream_at(tmp_path)
    with stream.appender(segment_bytes=200) as log:
        positions = [log.append(item(b"%02d" % i + bytes(20))) for i in range(30)]
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: int(record.payload[:2]) % 2 == 0)
    left = [int(p[:2]) for p in payloads(stream)]
    assert left[:3] == [1, 3, 5]
    assert int(payloads(stream, start=positions[4])[0][:2]) == 5
    assert verify(stream).ok
    cutoff = times(stream)[4]
    with stream.cleaner() as cleaner:
        cleaner.clean(OlderThan(time_ns=cutoff))
    assert times(stream)[0] == cutoff
    with stream.cleaner() as cleaner:
        cleaner.clean(KeepLast(segments=2))
    assert len(files_of(tmp_path)) == 2


# -- any reader


def test_any_msgpack_reader_reads_a_file(tmp_path):
    stream = stream_at(tmp_path)
    properties = {"qos": 1, "user": [["a", "b"]], "raw": b"\x00", "f": 0.5, "none": None, "big": 2**63}
    with stream.appender() as log:
        log.append(item(b"21.5", "plant/é/temp", properties))
        log.append(item(b"", ""))
    data = files_of(tmp_path)[0].read_bytes()
    first = len(FORMAT.encode(item(b"21.5", "plant/é/temp", properties), START))
    time_ns, topic, payload, told, _ = msgspec.msgpack.decode(data[:first])
    assert (topic, payload, told) == ("plant/é/temp", b"21.5", properties)
    assert msgspec.msgpack.decode(data[first:])[:4] == [times(stream)[1], "", b"", {}]
    assert time_ns == times(stream)[0]


def test_what_another_writer_packs_in_its_own_way_is_read(tmp_path):
    from forelog import kernel

    (tmp_path / FORMAT.segment_name(200)).write_bytes(
        b"".join(
            b"\x95" + body + msgspec.msgpack.encode(kernel.crc32c(body))
            for body in (
                msgspec.msgpack.encode(n)
                + msgspec.msgpack.encode("t")
                + msgspec.msgpack.encode(b"%d" % n)
                + b"\x80"
                for n in (200, 300, 70_000, 2**33)
            )
        )
    )
    stream = Stream.open(tmp_path)
    assert payloads(stream) == [b"200", b"300", b"70000", b"%d" % 2**33]
    with stream.appender() as log:
        log.append(item(b"ours"))
    assert payloads(stream)[-1] == b"ours"


@pytest.mark.parametrize(
    "value",
    [
        0,
        127,
        128,
        255,
        256,
        65535,
        65536,
        2**32,
        2**64 - 1,
        -1,
        -32,
        -33,
        -128,
        -129,
        -(2**31),
        -(2**63),
        0.5,
        None,
        True,
        "x" * 31,
        "x" * 32,
        "x" * 256,
        "x" * 65536,
        b"",
        b"x" * 256,
        b"x" * 65536,
        [1] * 15,
        [1] * 16,
        [1] * 65536,
        {},
        {str(i): i for i in range(16)},
        {"a": {"b": ["c", {"d": b"e"}]}},
    ],
)
def test_properties_are_packed_as_others_do(value):
    assert pack(value) == msgspec.msgpack.encode(value)
    assert unpack(pack(value)) == value


def test_keys_that_only_msgpack_has_can_be_read():
    assert unpack(bytes.fromhex("82 92 01 91 02 c0 81 a1 61 81 90 03 c2")) == {
        (1, (2,)): None,
        (("a", (((), 3),)),): False,
    }


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), {1, 2}])
def test_what_has_no_form_in_msgpack_is_refused(value):
    with pytest.raises((TypeError, ValueError)):
        pack(value)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xa5abc", b"\x01\x01", b"\x91" * 40, b"\xdd\xff\xff\xff\xff"])
def test_what_is_no_msgpack_is_told(data):
    with pytest.raises(ValueError, match="msgpack"):
        unpack(data)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("t" * 65_536,), RecordTooLarge),
        (("t", b"", {1: 2}), TypeError),
        (("t", b"", {"a": "x" * (1 << 20)}), RecordTooLarge),
        (("t", b"", ["a"]), TypeError),
        ((("t", b"", b""),), TypeError),
        (("t", "text"), TypeError),
    ],
)
def test_what_is_no_message_is_told(arguments, error):
    with pytest.raises(error):
        FORMAT.item(*arguments)


def test_properties_nested_too_deep_are_not_written(tmp_path):
    deep: list = []
    for _ in range(16):
        deep = [deep]
    with stream_at(tmp_path).appender() as log, pytest.raises(ValueError, match="deep"):
        log.append(item(b"", "t", {"a": deep}))


@pytest.mark.parametrize("kind", ["open_append", "sync", "sync_dir"])
def test_a_file_that_cannot_be_started_loses_nothing_that_was_synced(kind):
    disk = CrashDisk()
    stream = stream_at("log", files=disk)
    with stream.appender(segment_bytes=50) as log:
        for payload in (b"one", b"two" * 20, b"three"):
            fault = disk.fail(lambda op: op.kind == kind and op.path.endswith((".dat", "log", "append.new")))
            if log.position.offset == 0 or log.position.offset >= 50:
                with pytest.raises(OSError, match=r"nothing was appended|failed"):
                    log.append(item(payload))
            fault.stop()
            if log.failed is not None:
                break
            log.append(item(payload))
        failed = log.failed is not None
    assert failed == (kind != "open_append")
    with stream.appender() as log:
        log.append(item(b"after"))
    *found, last = payloads(stream)
    assert last == b"after"
    # What a sync failed for may be gone, from its end; nothing else may.
    assert found == [b"one", b"two" * 20, b"three"][: len(found) if failed else 3]
    assert verify(stream).ok
