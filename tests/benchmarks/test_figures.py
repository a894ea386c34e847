"""Every figure runs, at a scale that says nothing about speed."""

from pathlib import Path

import pytest
from benchmarks.measure import Settings
from benchmarks.suite import BENCHMARKS, chosen, run

LONG = {"spark-read", "spark-query", "broker-publish", "broker-fan-out", "broker-catch-up", "jobs-many"} | {
    "tasks", "tasks-always", "tasks-latency",
}  # fmt: skip
"""What takes long even if it measures nothing; with --long these run too."""


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_figure_runs_and_leaves_nothing_behind(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name in LONG and not request.config.getoption("--long"):
        pytest.skip("takes long: --long runs it")
    told: list[str] = []
    report = run(Settings(tmp_path, rounds=1, scale=0.002, tell=told.append), [name])
    if not report.figures:
        pytest.skip(report.notes[-1])
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


def test_figures_are_chosen_by_their_names_and_by_those_of_groups() -> None:
    assert chosen([]) == list(BENCHMARKS)
    assert chosen(["start", "state", "append"]) == ["append", "start", "state-updates", "state-restore"]


def test_a_figure_whose_peer_is_missing_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = run(Settings(tmp_path, rounds=1, scale=0.002), ["jobs-os"])
    assert report.figures == []
    assert "apt-get install beanstalkd" in report.notes[-1]
