"""Tables and plots as one HTML file, without scripts, fonts or other files.

>>> page = Report("orders")
>>> page.add_table("queues", ["name", "jobs"], [["mail", 3]])
>>> page.add_lines("added per minute", {"mail": [(0, 1.0), (60, 2.0)]})
>>> html = page.html()
>>> html.count("<svg"), html.count("<table"), "http" in html
(1, 1, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 860, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 22, 28
_COLORS = ("#3b82f6", "#d97706", "#10b981", "#ef4444", "#8b5cf6", "#06b6d4", "#db2777", "#84cc16")
SERIES_MAX = len(_COLORS)
"""Lines in a plot; the plot says how many more were left out."""
ROWS_MAX = 1000
DOTS_MAX = 2000
"""Dots of one series. If there are more, every second one is drawn, or every third, and so on."""
_TIMES_MAX = 8

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #1f2937;
       background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin: 2.2em 0 .3em }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .25em .8em; border-bottom: 1px solid #d1d5db; text-align: left; white-space: nowrap }
td.n { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #6b7280 }
svg text.mark { fill: #dc2626 } p { margin: .4em 0 }
p.note { color: #6b7280; font-size: 13px } .key { display: inline-block; margin-right: 1.2em; font-size: 13px }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.5em, 1fr)); gap: .8em;
  margin: 1.2em 0 }
.figures div { border: 1px solid #d1d5db; border-radius: 8px; padding: .5em .8em }
.figures b { display: block; font-size: 1.5em; line-height: 1.3; font-variant-numeric: tabular-nums }
.figures span { color: #6b7280; font-size: 13px }
@media (prefers-color-scheme: dark) { body { color: #e5e7eb; background: #111827 }
  th, td, .figures div { border-color: #374151 }
  svg text, p.note, .figures span { fill: #9ca3af; color: #9ca3af } svg text.mark { fill: #f87171 } }
@media (max-width: 600px) { body { margin: 1em auto } svg text { font-size: 22px }
  svg text.minor { display: none } }
"""

Points = Sequence[tuple[float, float]]


class Report:
    """A page in the making: add parts, then take its html().

    Times are seconds since 1970. With `start_s` they are shown as seconds since then, else as dates.
    """

    def __init__(self, title: str, note: str = "", *, start_s: float | None = None) -> None:
        self._title = title
        self._start_s = start_s
        self._parts: list[str] = [f'<p class="note">{escape(note)}</p>'] if note else []

    def add_figures(self, figures: Mapping[str, str]) -> None:
        """A few important numbers, in large type, each above its name."""
        tiles = (
            f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in figures.items()
        )
        self._parts.append(f'<div class="figures">{"".join(tiles)}</div>')

    def add_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table, of which the first thousand rows are shown."""
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows[:ROWS_MAX])
        more = f'<p class="note">and {len(rows) - ROWS_MAX:,} more</p>' if len(rows) > ROWS_MAX else ""
        empty = '<p class="note">none</p>' if not rows else ""
        table = f"<table><tr>{head}</tr>\n{body}</table>" if rows else ""
        self._parts.append(f"<h2>{escape(title)}</h2>\n{table}{more}{empty}")

    def add_lines(
        self, title: str, series: Mapping[str, Points], *, note: str = "", marks: Mapping[str, float] | None = None
    ) -> None:
        """Values over time: a line for each name, and an upright line for each marked time."""
        self._add_plot(title, series, _line, note, marks or {}, decades=False)

    def add_dots(
        self,
        title: str,
        series: Mapping[str, Points],
        *,
        note: str = "",
        marks: Mapping[str, float] | None = None,
        decades: bool = False,
    ) -> None:
        """Values over time, as dots. With `decades` each step of the scale is ten times the last."""
        self._add_plot(title, series, _dots, note, marks or {}, decades=decades)

    def _add_plot(
        self,
        title: str,
        series: Mapping[str, Points],
        draw: Callable[[Points, _Frame, str], str],
        note: str,
        marks: Mapping[str, float],
        *,
        decades: bool,
    ) -> None:
        shown = dict(list(series.items())[:SERIES_MAX])
        points = [point for line in shown.values() for point in line]
        if not points:
            return
        frame = _Frame.around(points, self._times_of(marks), decades)
        drawn = [_axes(frame, self._start_s)]
        keys = []
        for (name, line), color in zip(shown.items(), _COLORS, strict=False):
            drawn.append(draw(line, frame, color))
            keys.append(f'<span class="key"><i style="background:{color}"></i>{escape(name)}</span>')
        if len(series) > len(shown):
            keys.append(f'<span class="key">and {len(series) - len(shown)} more</span>')
        drawn += [_mark(name, time, frame) for name, time in marks.items()]
        told = f'<p class="note">{escape(note)}</p>\n' if note else ""
        self._parts.append(f"<h2>{escape(title)}</h2>\n{told}{_svg(drawn, label=title)}\n<p>{''.join(keys)}</p>")

    def _times_of(self, marks: Mapping[str, float]) -> list[float]:
        """The times that a plot must include, whatever its values are."""
        return [*marks.values(), *([] if self._start_s is None else [self._start_s])]

    def add_bars(self, title: str, values: Mapping[str, float], unit: str = "") -> None:
        """A bar for each name, the longest first."""
        ordered = sorted(values.items(), key=lambda item: -item[1])[:30]
        if not ordered:
            return
        top = max(value for _, value in ordered) or 1
        height = 24 * len(ordered) + 6
        drawn = []
        for row, (name, value) in enumerate(ordered):
            y = 24 * row + 4
            width = max(value / top, 0) * (WIDTH - 380)
            label = f"{short(value)} {unit}".strip()
            drawn.append(
                f'<text x="216" y="{y + 13}" text-anchor="end">{escape(name[:34])}</text>'
                f'<rect x="224" y="{y}" width="{width:.1f}" height="16" rx="2" fill="{_COLORS[0]}"/>'
                f'<text x="{230 + width:.1f}" y="{y + 13}">{escape(label)}</text>'
            )
        self._parts.append(f"<h2>{escape(title)}</h2>\n{_svg(drawn, height, title)}")

    def html(self) -> str:
        """The page."""
        title = escape(self._title)
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>{_STYLE}</style></head>\n"
            f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )


def short(value: float) -> str:
    """A number with few digits.

    >>> short(1234567), short(0.1234), short(12)
    ('1.23M', '0.123', '12')
    """
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= bound:
            return f"{value / (1e3 if unit == 'k' else bound):.3g}{unit}"
    return f"{value:.3g}" if value != int(value) else f"{value:.0f}"


def nice_ceiling(value: float) -> float:
    """The next number above with one digit that is 1, 2 or 5.

    >>> nice_ceiling(7), nice_ceiling(0.13), nice_ceiling(0)
    (10.0, 0.2, 1.0)
    """
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value)


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"<td>{escape(str(value))}</td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")
    return f'<td class="n">{text}</td>'


def _svg(drawn: Sequence[str], height: int = HEIGHT, label: str = "") -> str:
    inside = "\n".join(drawn)
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{inside}</svg>'


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie in a plot: from first to last, from low to high, which are powers of ten with `decades`."""

    first: float
    last: float
    low: float
    high: float
    decades: bool

    @classmethod
    def around(cls, points: Points, times: Sequence[float], decades: bool) -> _Frame:
        all_times = [*(x for x, _ in points), *times]
        first, last = min(all_times), max(all_times)
        if not decades:
            return cls(first, last, 0.0, nice_ceiling(max(y for _, y in points)), False)
        above = [y for _, y in points if y > 0] or [1.0]
        low, high = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
        return cls(first, last, low, max(high, low + 1), True)

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        if self.decades:
            y = math.log10(y) if y > 0 else self.low
        up = (y - self.low) / (self.high - self.low)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), HEIGHT - _BOTTOM - up * (HEIGHT - _TOP - _BOTTOM)

    def steps(self) -> list[float]:
        """The values at which the scale has marks."""
        if self.decades:
            return [10.0**power for power in range(int(self.low), int(self.high) + 1)]
        return [self.high * step / 4 for step in range(5)]


def _line(points: Points, frame: _Frame, color: str) -> str:
    places = [frame.place(x, y) for x, y in sorted(points)]
    if len(places) == 1:
        return _dots(points, frame, color)
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return (
        f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linejoin="round" '
        'vector-effect="non-scaling-stroke"/>'
    )


def _dots(points: Points, frame: _Frame, color: str) -> str:
    shown = points[:: math.ceil(len(points) / DOTS_MAX)] if points else []
    places = (frame.place(x, y) for x, y in shown)
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    return f'<g fill="{color}" fill-opacity=".7">{circles}</g>'


def _mark(name: str, time: float, frame: _Frame) -> str:
    x, _ = frame.place(time, frame.steps()[0])
    beside = f'x="{x + 5:.1f}"' if x < WIDTH * 0.7 else f'x="{x - 5:.1f}" text-anchor="end"'
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="{HEIGHT - _BOTTOM}" stroke="#dc2626" stroke-dasharray="4 3" '
        f'vector-effect="non-scaling-stroke"/><text class="mark" {beside} y="16">{escape(name)}</text>'
    )


def _axes(frame: _Frame, start_s: float | None) -> str:
    drawn = []
    for value in frame.steps():
        _, y = frame.place(frame.first, value)
        drawn.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#9ca3af" opacity=".3"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
    for x, anchor, text in _times(frame, start_s):
        kind = ' class="minor"' if anchor == "middle" and frame.last > frame.first else ""
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}"{kind}>{text}</text>')
    return "".join(drawn)


def _times(frame: _Frame, start_s: float | None) -> list[tuple[float, str, str]]:
    """The times below a plot: their places, their alignment, and their text."""

    def told(time: float) -> str:
        if start_s is not None:
            return f"{time - start_s:.1f}".removesuffix(".0") + " s"
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")

    first, last, low = frame.first, frame.last, frame.steps()[0]
    if last <= first:
        return [(frame.place(first, low)[0], "middle", told(first))]
    ends = [(frame.place(first, low)[0], "start", told(first)), (frame.place(last, low)[0], "end", told(last))]
    if start_s is None:
        return ends
    step = nice_ceiling((last - first) / _TIMES_MAX)
    ticks = [start_s + step * number for number in range(int((last - start_s) / step) + 1)]
    inner = [time for time in ticks if first + step / 2 < time < last - step / 2]
    return ends + [(frame.place(time, low)[0], "middle", told(time)) for time in inner]
