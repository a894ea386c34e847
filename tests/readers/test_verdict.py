"""What is taken for wrong: every way in which a reader's records can differ from the log's is counted."""

from __future__ import annotations

import pytest

from forelog import Position
from tests.readers.ledger import Ledger, read_ledger
from tests.readers.records import DAMAGED, END, Notes, Seen, last_seen, payload, read_reached, read_seen
from tests.readers.verdict import Comparison, Verdict, compare


def at(number: int, segment: int = 1) -> Seen:
    """A record where it should be."""
    return Seen(number, Position(segment, number * 10))


END_OF_LOG = Seen(END, Position(0, 0))
LOG = [at(1), at(2), at(3), at(8), at(9)]


@pytest.fixture
def noted(tmp_path):
    """1 to 3 were acknowledged, 4 and 5 refused; 6 and 7 are unknown, and so are 8 and 9, which the log has."""
    ledger = Ledger(tmp_path / "ledger")
    first = ledger.trying(3)
    ledger.acked(first, [at(number).position for number in (1, 2, 3)])
    ledger.refused(ledger.trying(2), 2, "WriteFailed: no room")
    ledger.note("cut 000000001.log")
    ledger.trying(2)
    ledger.note("killed")
    ledger.trying(2)
    ledger.close()
    return read_ledger(tmp_path / "ledger")


def test_a_ledger_tells_what_was_tried_and_what_came_of_it(noted):
    assert (list(noted.acked), noted.refused, noted.unknown) == ([1, 2, 3], {4, 5}, {6, 7, 8, 9})
    assert (noted.cuts, noted.kills, noted.refusals, noted.segments) == (1, 1, 1, {1})


def test_a_ledger_goes_on_after_a_writer_that_was_killed_in_the_middle_of_a_line(tmp_path):
    path = tmp_path / "ledger"
    path.write_text("trying 1 5\nacked 1 000000001:8\nacked 2 0000")
    ledger = Ledger(path)
    assert ledger.trying(1) == 6
    ledger.close()
    noted = read_ledger(path)
    assert (list(noted.acked), noted.unknown) == ([1], {2, 3, 4, 5, 6})


def test_a_reader_that_has_the_log_has_nothing_wrong(noted):
    assert compare(noted, LOG, LOG, exact=True) == Comparison()
    assert compare(noted, [*LOG[:3], END_OF_LOG, *LOG[3:], END_OF_LOG], LOG, exact=True) == Comparison()


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ([at(1), at(3), at(8), at(9)], Comparison(gaps=1)),
        ([at(1), at(2), at(3)], Comparison(gaps=2)),
        ([*LOG[:3], at(4), *LOG[3:]], Comparison(phantoms=1)),
        ([*LOG[:3], at(6), at(7), *LOG[3:]], Comparison(phantoms=2)),
        ([*LOG[:3], at(7), *LOG[3:]], Comparison(phantoms=1, halves=1)),
        ([*LOG, at(77)], Comparison(phantoms=1)),
        ([*LOG, Seen(DAMAGED, Position(2, 8)), Seen(DAMAGED, Position(2, 9))], Comparison(phantoms=2)),
        ([*LOG, Seen(6, at(3).position)], Comparison(phantoms=1, doubles=1, disorder=1, halves=1)),
        ([at(1), at(2), at(2), at(3), at(8), at(9)], Comparison(again=1)),
        ([at(1), at(3), at(2), at(8), at(9)], Comparison(disorder=1)),
        ([at(1), at(2), at(3, segment=2), at(8), at(9)], Comparison(moved=1)),
        ([at(1), at(2), END_OF_LOG, *LOG[2:]], Comparison(halves=1)),
    ],
)
def test_whatever_a_reader_has_wrong_is_counted(noted, seen, wrong):
    assert compare(noted, seen, LOG, exact=True) == wrong


def test_a_reader_that_may_get_records_again_gets_them_in_order(noted):
    assert compare(noted, [at(1), at(2), at(1), at(2), *LOG[2:]], LOG, exact=False) == Comparison()


def test_what_the_log_has_lost_or_invented_is_counted(noted):
    assert compare(noted, LOG, [at(1), *LOG[2:]], exact=True) == Comparison(lost=1)
    assert compare(noted, LOG, [*LOG[:3], at(5), *LOG[3:]], exact=True) == Comparison(gaps=1, phantoms=1)


def test_what_was_cleaned_away_is_not_missed(noted):
    assert compare(noted, LOG, LOG[2:], exact=True) == Comparison()


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ({}, []),
        ({"idle_cpu_seconds": 1.9}, ["1.90 s of CPU in 2.0 s with nothing to do"]),
        ({"held": "read.lock is held"}, ["read.lock is held"]),
        ({"complaint": "the reader: it hangs"}, ["the reader: it hangs"]),
        ({"comparison": Comparison(gaps=1200)}, ["1,200 gaps"]),
    ],
)
def test_a_verdict_says_what_is_wrong(noted, run, told):
    fine = {
        "comparison": Comparison(),
        "records": 5,
        "segments": 1,
        "seconds": 1.0,
        "idle_cpu_seconds": 0.1,
        "idle_seconds": 2.0,
    }
    verdict = Verdict("follower", "full", noted, **(fine | run))
    assert verdict.wrong() == told
    assert ("WRONG" in verdict.line()) == bool(told)


def test_what_a_reader_notes_is_there_at_once(tmp_path):
    notes = Notes(tmp_path)
    notes.add(payload(7, 100), Position(1, 8))
    notes.add(payload(8, 100)[:-1])
    notes.add(b"chaff")
    notes.end()
    assert read_seen(tmp_path) == [Seen(7, Position(1, 8)), Seen(DAMAGED, Position(0, 0)), END_OF_LOG]
    assert last_seen(tmp_path) == 7
    assert read_reached(tmp_path / "reached") is None
    notes.reach(Position(1, 9))
    assert read_reached(tmp_path / "reached") == Position(1, 9)
