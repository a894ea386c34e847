"""A little of what `make promise` does at length."""

from __future__ import annotations

from tests.broker.promise import Plan, run
from tests.broker.serving import served


def test_nothing_acknowledged_is_lost_whatever_is_cut_or_killed(tmp_path):
    with served(tmp_path / "log", "--file-bytes", str(1 << 20)) as broker:
        tally = run(Plan(messages=8000, cuts=80, kills=4, seed=7), broker)
        said = broker.said()
    assert tally.kept(), str(tally)
    assert tally.acknowledged == 8000
    assert tally.cuts >= 80
    assert tally.kills == 4
    assert "Traceback" not in said, said[-4000:]


def test_quality_2_stays_exact_when_every_message_is_synced(tmp_path):
    with served(tmp_path / "log", "--sync", "always") as broker:
        tally = run(Plan(messages=1000, cuts=20, kills=2, seed=8, connection_s=0.2), broker)
    assert tally.kept(), str(tally)
