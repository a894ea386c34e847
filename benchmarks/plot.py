"""The picture: for each figure a panel, for each case a dot on a logarithmic scale.

Rates here lie a factor of a thousand apart, so that bars would show the longest and nothing else. Dots on a
logarithmic scale don't pretend that their length means anything. Colours follow the reader's light or dark
mode by the page's own media query.
"""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from benchmarks.measure import Figure, Row
from benchmarks.report import Report, number

WIDTH = 940
LABEL_WIDTH = 375
VALUE_WIDTH = 165
ROW_HEIGHT = 22
HEAD_HEIGHT = 44
FOOT_HEIGHT = 26
MARGIN = 16

_STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f; }
  .title { font-weight: 600; font-size: 15px; }
  .faint, .tick { fill: #6a737d; font-size: 12px; }
  .grid { stroke: #d8dee4; stroke-width: 1; }
  .line { stroke: #c4ccd4; stroke-width: 2; }
  .forelog { fill: #c2410c; } .peer { fill: #57708f; }
  .limit { fill: #ffffff; stroke: #24292f; stroke-width: 1.5; }
  .bold { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .faint, .tick { fill: #9aa5b1; }
    .grid { stroke: #30363d; } .line { stroke: #424a53; }
    .forelog { fill: #fb923c; } .peer { fill: #8fb0d6; } .limit { fill: #0d1117; stroke: #e6edf3; }
  }
"""


class _Scale:
    """Decades from left to right."""

    def __init__(self, values: list[float]) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.left, self.right = LABEL_WIDTH, WIDTH - VALUE_WIDTH

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.left + share * (self.right - self.left)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def rates(figure: Figure) -> list[Row]:
    """The rows of a figure that are rates of one unit, and so belong on one scale."""
    units = [row.unit for row in figure.rows if row.unit.endswith("/s") and row.value > 0]
    return [row for row in figure.rows if units and row.unit == units[0] and row.value > 0]


def _panel(figure: Figure, rows: list[Row], top: float) -> list[str]:
    scale = _Scale([row.value for row in rows])
    bottom = top + HEAD_HEIGHT + len(rows) * ROW_HEIGHT
    parts = [_text(MARGIN, top + 18, figure.title, "title")]
    for tick in scale.ticks():
        x = scale.x(tick)
        parts.append(_line(x, top + HEAD_HEIGHT - 8, x, bottom, "grid"))
        parts.append(
            _text(x, bottom + 16, number(tick, rows[0].unit).removesuffix(rows[0].unit).strip(), "tick", "middle")
        )
    parts.append(_text(scale.right + 36, bottom + 16, rows[0].unit, "tick"))
    for place, row in enumerate(rows):
        y = top + HEAD_HEIGHT + place * ROW_HEIGHT + 6
        kind = "bold" if row.role == "forelog" else ""
        sync = "" if row.sync == "-" else f", sync {row.sync}"
        parts.append(_text(MARGIN, y + 4, row.name + sync, kind))
        parts.append(_line(scale.left, y, scale.x(row.value), y, "line"))
        parts.append(f'<circle cx="{scale.x(row.value):.1f}" cy="{y:.1f}" r="5.5" class="{row.role}"/>')
        parts.append(_text(scale.right + 12, y + 4, number(row.value, row.unit), kind))
    return parts


def _legend(y: float) -> list[str]:
    parts, x = [], float(MARGIN)
    for role, text in (("forelog", "forelog"), ("peer", "peer"), ("limit", "physical limit")):
        parts.append(f'<circle cx="{x + 6:.1f}" cy="{y - 4:.1f}" r="5.5" class="{role}"/>')
        parts.append(_text(x + 18, y, text, "faint"))
        x += 40 + 7 * len(text)
    parts.append(_text(WIDTH - MARGIN, y, "logarithmic scales, further right is faster", "faint", "end"))
    return parts


def svg(report: Report) -> str:
    """The figures that have rates, one below the other."""
    top = 40.0
    parts = _legend(24)
    for figure in report.figures:
        rows = rates(figure)
        if rows:
            parts += _panel(figure, rows, top)
            top += HEAD_HEIGHT + len(rows) * ROW_HEIGHT + FOOT_HEIGHT + MARGIN
    parts.append(_text(MARGIN, top + 8, f"{report.machine['processor']}, {report.machine['date']}", "faint"))
    height = top + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="forelog beside its peers">\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )
