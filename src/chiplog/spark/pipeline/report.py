"""Tables and plots as one HTML file that needs nothing else: no scripts, no fonts, nothing from elsewhere.

>>> page = Report("orders")
>>> page.add_table("queues", ["name", "jobs"], [["mail", 3]])
>>> page.add_lines("added per minute", {"mail": [(0, 1.0), (60, 2.0)]})
>>> html = page.html()
>>> html.count("<svg"), html.count("<table"), "http" in html
(1, 1, False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 860, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 28
_COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
SERIES_MAX = len(_COLORS)
"""Lines in a plot; what is beyond is left out, and said."""
ROWS_MAX = 1000

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #1f2937;
       background: #fff }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .25em .8em; border-bottom: 1px solid #d1d5db; text-align: left; white-space: nowrap }
td.n { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #6b7280 }
p.note { color: #6b7280; font-size: 13px } .key { display: inline-block; margin-right: 1.2em; font-size: 13px }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px }
@media (prefers-color-scheme: dark) { body { color: #e5e7eb; background: #111827 }
  th, td { border-color: #374151 } svg text, p.note { fill: #9ca3af; color: #9ca3af } }
"""

Points = Sequence[tuple[float, float]]


class Report:
    """A page in the making: add parts, then take its html()."""

    def __init__(self, title: str, note: str = "") -> None:
        self._title = title
        self._parts: list[str] = [f'<p class="note">{escape(note)}</p>'] if note else []

    def add_table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table, of which the first thousand rows are shown."""
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows[:ROWS_MAX])
        more = f'<p class="note">and {len(rows) - ROWS_MAX:,} more</p>' if len(rows) > ROWS_MAX else ""
        empty = '<p class="note">none</p>' if not rows else ""
        table = f"<table><tr>{head}</tr>\n{body}</table>" if rows else ""
        self._parts.append(f"<h2>{escape(title)}</h2>\n{table}{more}{empty}")

    def add_lines(self, title: str, series: Mapping[str, Points]) -> None:
        """Values over time, in seconds since 1970: a line for each name."""
        shown = dict(list(series.items())[:SERIES_MAX])
        points = [point for line in shown.values() for point in line]
        if not points:
            return
        first, last = min(x for x, _ in points), max(x for x, _ in points)
        top = nice_ceiling(max(y for _, y in points))
        drawn = [_axes(first, last, top)]
        keys = []
        for (name, line), color in zip(shown.items(), _COLORS, strict=False):
            drawn.append(_line(line, first, last, top, color))
            keys.append(f'<span class="key"><i style="background:{color}"></i>{escape(name)}</span>')
        if len(series) > len(shown):
            keys.append(f'<span class="key">and {len(series) - len(shown)} more</span>')
        self._parts.append(f"<h2>{escape(title)}</h2>\n{_svg(drawn)}\n<p>{''.join(keys)}</p>")

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
        self._parts.append(f"<h2>{escape(title)}</h2>\n{_svg(drawn, height)}")

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


def _svg(drawn: Sequence[str], height: int = HEIGHT) -> str:
    inside = "\n".join(drawn)
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">{inside}</svg>'


def _place(x: float, y: float, first: float, last: float, top: float) -> tuple[float, float]:
    across = (x - first) / (last - first) if last > first else 0.5
    return (
        _LEFT + across * (WIDTH - _LEFT - _RIGHT),
        HEIGHT - _BOTTOM - y / top * (HEIGHT - _TOP - _BOTTOM),
    )


def _line(points: Points, first: float, last: float, top: float, color: str) -> str:
    places = [_place(x, y, first, last, top) for x, y in sorted(points)]
    if len(places) == 1:
        x, y = places[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>'
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linejoin="round"/>'


def _axes(first: float, last: float, top: float) -> str:
    drawn = []
    for step in range(5):
        value = top * step / 4
        _, y = _place(first, value, first, last, top)
        drawn.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#9ca3af" opacity=".3"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
    ends = [(first, "start"), (last, "end")] if last > first else [(first, "middle")]
    for time, anchor in ends:
        x, _ = _place(time, 0, first, last, top)
        told = datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{told}</text>')
    return "".join(drawn)
