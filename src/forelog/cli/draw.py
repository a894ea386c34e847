"""Pictures of numbers in a terminal, from blocks that fill a character by eighths.

>>> bar(3, 4, 8), bar(1, 64, 8)
('██████', '▏')
>>> print("\\n".join(columns([1, 2, 3, 4], height=2)))
  ▄█
▄███
>>> sparkline([0, 5, 10])
' ▄█'
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_EIGHTHS_WIDE = " ▏▎▍▌▋▊▉█"
_EIGHTHS_HIGH = " ▁▂▃▄▅▆▇█"


def can_draw() -> bool:
    """Whether the output can show block characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█▏▁".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def bar(value: float, value_max: float, width: int, *, blocks: bool = True) -> str:
    """A bar of at most `width` characters; anything above zero shows."""
    if value <= 0 or value_max <= 0:
        return ""
    share = min(value / value_max, 1.0) * width
    if not blocks:
        return "#" * max(round(share), 1)
    eighths = max(round(share * 8), 1)
    return "█" * (eighths // 8) + _EIGHTHS_WIDE[eighths % 8].strip()


def columns(values: Sequence[float], *, height: int, blocks: bool = True) -> list[str]:
    """A column for each value, as lines from top to bottom; anything above zero shows."""
    top = max(values, default=0) or 1
    levels = [max(round(value / top * height * 8), 1) if value > 0 else 0 for value in values]
    lines = []
    for row in reversed(range(height)):
        filled = [min(max(level - row * 8, 0), 8) for level in levels]
        signs = [_EIGHTHS_HIGH[eighths] if blocks else "#" if eighths >= 4 else " " for eighths in filled]
        lines.append("".join(signs).rstrip())
    return lines


def sparkline(values: Sequence[float]) -> str:
    """A column for each value, in a single line."""
    return columns(values, height=1)[0]
