"""What the writers make of a run."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.__main__ import main, write
from benchmarks.measure import Case, Figure, Goal, Row, Series, Settings, fastest, interleave, ratio_goal, row
from benchmarks.plot import svg
from benchmarks.report import (
    BEGIN,
    END,
    HEADLINES,
    Report,
    bound,
    headlines,
    markdown,
    number,
    summary,
    terminal,
    verdict,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report() -> Report:
    rows = [
        Row("forelog <append>", "os", "forelog", "records/s", 1_200_000, 1_100_000, 1_300_000),
        Row("os.write & more", "none", "limit", "records/s", 2_000_000, 1_900_000, 2_100_000),
        Row("memory", "-", "forelog", "bytes", 4096, 4096, 4096),
    ]
    goals = [
        Goal("append to os.write", 0.55, 0.5, 0.6, at_least=0.6),
        Goal("append to sqlite", 10.0, 9.0, 11.0, at_least=5.0),
        Goal("only shown", 2.0, 2.0, 2.0),
    ]
    figure = Figure("append", "One record at a time", rows, goals, ["A note."])
    return Report({"processor": "a processor", "date": "today"}, 7, 1.0, [figure], ["Not installed: lmdb."])


def test_json_holds_all_of_a_report_and_says_what_was_reached(report: Report) -> None:
    document = json.loads(report.to_json())
    assert [goal["reached"] for goal in document["figures"][0]["goals"]] == [False, True, None]
    assert Report.from_json(report.to_json()) == report


def test_tables_say_honestly_what_was_not_reached(report: Report) -> None:
    for text in (terminal(report), markdown(report)):
        line = next(line for line in text.splitlines() if "append to os.write" in line)
        assert "0.550 x" in line
        assert "not reached" in line
    assert "1 of 2 goals reached" in terminal(report)


def test_the_picture_is_well_formed_and_has_a_dot_for_each_rate(report: Report) -> None:
    root = ElementTree.fromstring(svg(report))
    dots = [node for node in root.iter() if node.tag.endswith("circle")]
    assert len(dots) == 2 + 3  # the rates, and the legend
    assert "prefers-color-scheme: dark" in svg(report)


def test_only_what_is_between_the_markers_of_a_page_is_replaced(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nalso mine\n")
    write(report, tmp_path)
    assert page.read_text().startswith("# Mine\n")
    assert page.read_text().endswith("also mine\n")
    assert "old" not in page.read_text()
    before = page.read_text()
    assert main(["--write-docs", "--out", str(tmp_path)]) == 0
    assert page.read_text() == before


def test_figures_are_kept_beside_newer_ones_of_the_same_machine(report: Report) -> None:
    newer = replace(report, figures=[Figure("cursor", "Record by record", date="tomorrow")])
    assert [one.name for one in newer.beside(report, ["append", "cursor"]).figures] == ["append", "cursor"]
    elsewhere = replace(newer, machine={"processor": "another", "date": "tomorrow"})
    assert [one.name for one in elsewhere.beside(report, ["append", "cursor"]).figures] == ["cursor"]


def test_the_readme_has_each_headline_with_a_peer_beside_it(report: Report) -> None:
    machine = {"processor": "a processor", "cores": "2", "filesystem": "ext4", "python": "CPython"}
    rows = [
        Row("forelog append", "os", "forelog", "records/s", 780_000, 1, 1),
        Row("sqlite3, WAL, INSERT per commit", "OFF", "peer", "records/s", 95_300, 1, 1),
        Row("not a headline", "os", "forelog", "records/s", 1, 1, 1),
    ]
    text = summary(replace(report, machine=machine, figures=[Figure("append", "One at a time", rows)]))
    assert "| append, one record at a time | 780 k records/s | SQLite, nothing synced: 95.3 k records/s |" in text
    assert "not a headline" not in text
    assert "a processor, 2 cores, ext4, CPython." in text


def test_the_last_run_has_all_ten_headlines() -> None:
    written = Report.from_json((ROOT / "docs/benchmarks.json").read_text())
    assert len(headlines(written)) == len(HEADLINES) == 10


def test_a_page_without_markers_is_refused(report: Report, tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text("# Mine\n")
    with pytest.raises(ValueError, match="has no lines"):
        write(report, tmp_path)


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    mine, other = (Series(Case(name, "-", "forelog", lambda: 0.0)) for name in ("mine", "other"))
    mine.rates, other.rates = [1.0, 8.0, 9.0], [1.0, 2.0, 1.0]
    goal = ratio_goal("", mine, other, at_least=4.0)
    assert (goal.low, goal.value, goal.high, goal.reached) == (1.0, 4.0, 9.0, True)


def test_rounds_are_interleaved_and_the_first_is_thrown_away(tmp_path: Path) -> None:
    ran: list[str] = []

    def case(name: str) -> Case:
        def once() -> float:
            ran.append(name)
            return float(len(ran))

        return Case(name, "-", "forelog", once)

    series = interleave(Settings(tmp_path, rounds=2), [case("a"), case("b")])
    assert ran == ["a", "b", "b", "a", "a", "b"]
    assert [one.rates for one in series] == [[4.0, 5.0], [3.0, 6.0]]
    assert fastest(series, "").case.name == "a"
    assert row(series[1], "records/s").low == 3.0


@pytest.mark.parametrize(
    ("goal", "text", "said"),
    [
        (Goal("", 1.5, 1, 2, 0.7, 1.4), "0.7 to 1.40 x", "not reached"),
        (Goal("", 0, 0, 0, at_most=0, unit="segments"), "none", "reached"),
        (Goal("", 5, 5, 5, at_most=6.0), "<= 6.00 x", "reached"),
        (Goal("", 5, 5, 5), "-", "-"),
        (Goal("", 5, 5, 5, at_least=6.0, held_back="bound by CPU"), ">= 6 x", "not reached: bound by CPU"),
        (Goal("", 7, 7, 7, at_least=6.0, held_back="bound by CPU"), ">= 6 x", "reached"),
    ],
)
def test_bounds_and_verdicts(goal: Goal, text: str, said: str) -> None:
    assert (bound(goal), verdict(goal)) == (text, said)


def test_numbers_have_about_three_digits() -> None:
    assert number(35_200, "records/s") == "35.2 k records/s"
    assert number(0.006, "GB/s") == "6.00 MB/s"
    assert number(12, "bytes") == "12 B"
    assert number(20_500, "writes/s") == "20.5 k writes/s"
