"""A log is recognised at a position, or found to be another one."""

from __future__ import annotations

from forelog import Stream
from forelog.formats import Captain
from forelog.log.directory.trace import agrees, trace

CAPTAIN = Captain()


def test_a_trace_tells_a_log_that_was_cut_restored_or_written_anew(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        for number in range(10):
            log.append(b"record %d" % number)
        end = log.position
        log.append(b"later")
    directory = stream.directory
    known = trace(directory, end)
    assert known is not None
    assert agrees(directory, end, known)
    path = tmp_path / "000000001.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:-50])
    assert not agrees(directory, end, known)
    other = CAPTAIN.header() + b"".join(CAPTAIN.encode(b"RECORD %d" % number, 1) for number in range(20))
    path.write_bytes(other)
    assert not agrees(directory, end, known)
    path.write_bytes(whole)
    assert agrees(directory, end, known)


def test_what_cleaning_has_moved_or_taken_cannot_be_compared_and_is_no_alarm(tmp_path):
    stream = Stream(tmp_path)
    with stream.appender() as log:
        log.append_many([b"keep", b"drop"])
        end = log.position
        log.roll()
        log.append(b"x")
    known = trace(stream.directory, end)
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload == b"drop")
    assert agrees(stream.directory, end, known)
    with stream.cleaner() as cleaner:
        cleaner.clean(lambda _, record: record.payload == b"keep")
    assert agrees(stream.directory, end, known)
    assert trace(stream.directory, end._replace(offset=0)) is None
