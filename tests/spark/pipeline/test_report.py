"""Pages of tables and plots: drawn to scale, well-formed, and complete in themselves."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark")
from forelog.spark.pipeline.report import DOTS_MAX, SERIES_MAX, Report


def plots(page: Report) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page.html(), re.DOTALL)]


def texts(plot: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in plot.iter("text")]


def test_a_mark_stands_where_its_time_is_and_widens_the_plot_if_it_has_to():
    page = Report("a")
    page.add_lines("within", {"x": [(0, 1.0), (10, 2.0)]}, marks={"<kill>": 5})
    page.add_lines("beyond", {"x": [(0, 1.0), (10, 2.0)]}, marks={"late": 20})
    within, beyond = plots(page)
    assert "<kill>" in texts(within)
    ends = [line.get("points").split() for plot in (within, beyond) for line in plot.iter("polyline")]
    marks = [
        float(line.get("x1"))
        for plot in (within, beyond)
        for line in plot.iter("line")
        if line.get("stroke-dasharray")
    ]
    first, last = (float(point.split(",")[0]) for point in ends[0])
    assert marks[0] == pytest.approx((first + last) / 2, abs=0.2)
    assert marks[1] == pytest.approx(last, abs=0.2)
    assert float(ends[1][1].split(",")[0]) == pytest.approx((first + last) / 2, abs=0.2)


def test_with_decades_each_step_is_ten_times_the_last_and_zero_is_at_the_bottom():
    page = Report("a")
    page.add_dots("times", {"x": [(0, 0.02), (1, 0.2), (2, 2.0), (3, 20.0), (4, 0.0)]}, decades=True)
    (plot,) = plots(page)
    heights = [float(dot.get("cy")) for dot in plot.iter("circle")]
    steps = [high - low for high, low in pairwise(heights[:4])]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert steps[0] > 10
    assert heights[4] == max(heights)
    assert texts(plot)[:5] == ["0.01", "0.1", "1", "10", "100"]


def test_of_very_many_dots_and_series_some_are_left_out():
    page = Report("a")
    page.add_dots("dots", {str(name): [(0, 1.0)] for name in range(SERIES_MAX + 3)})
    page.add_dots("more", {"x": [(number, 1.0) for number in range(5 * DOTS_MAX)]})
    few, many = plots(page)
    assert len(list(few.iter("circle"))) == SERIES_MAX
    assert "and 3 more" in page.html()
    assert len(list(many.iter("circle"))) == DOTS_MAX


def test_times_are_dates_or_seconds_since_a_start():
    dates, since = Report("a"), Report("b", start_s=1_000_000_000.0)
    for page in (dates, since):
        page.add_lines("x", {"x": [(1_000_000_002.0, 1.0), (1_000_000_016.0, 2.0)]})
    assert texts(plots(dates)[0])[-2:] == ["2001-09-09 01:46:42", "2001-09-09 01:46:56"]
    shown = texts(plots(since)[0])
    assert {"0 s", "16 s", "10 s"} <= set(shown)


def test_texts_and_figures_are_escaped():
    page = Report("<title>", "1 < 2 & so on")
    page.add_figures({"<lost>": "0"})
    html = page.html()
    assert "1 &lt; 2 &amp; so on" in html
    assert "&lt;title&gt;" in html
    assert "<b>0</b><span>&lt;lost&gt;</span>" in html
