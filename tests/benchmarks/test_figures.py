"""Every figure runs, at a scale that says nothing about speed."""

from pathlib import Path

import pytest
from benchmarks.measure import Settings
from benchmarks.suite import BENCHMARKS, run


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_figure_runs_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    report = run(Settings(tmp_path, rounds=1, scale=0.002, tell=told.append), [name])
    (figure,) = report.figures
    assert figure.name == name
    assert figure.rows
    assert figure.goals
    assert all(row.value > 0 for row in figure.rows if row.unit.endswith("/s"))
    assert told
    assert list(tmp_path.iterdir()) == []


def test_opening_reads_no_sealed_segment_whole(tmp_path: Path) -> None:
    figure = BENCHMARKS["open"](Settings(tmp_path, rounds=1, scale=0.01))
    assert [goal.reached for goal in figure.goals if goal.at_most == 0] == [True, True]
