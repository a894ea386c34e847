"""Results on stdout, messages on stderr, and numbers as people read them.

>>> human_bytes(67_108_864), human_bytes(999), human_bytes(1536)
('64.0 MiB', '999 B', '1.5 KiB')
>>> human_count(12_345_678), human_duration(0.00042), human_duration(5400)
('12,345,678', '420 µs', '1.5 h')
>>> print("\\n".join(table([("name", ">bytes"), ("a", "1"), ("bb", "20")])))
name  bytes
a         1
bb       20
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any


def say(message: str) -> None:
    """Print a message that isn't a result to stderr, in one piece: threads that log write there too."""
    sys.stderr.write(f"forelog: {message}\n")


def print_json(value: Any) -> None:
    """A result as one line of JSON."""
    import json

    print(json.dumps(value, ensure_ascii=False))


def in_json(name: str, data: bytes) -> dict[str, str]:
    """Bytes as JSON can have them.

    >>> in_json("payload", b"text"), in_json("payload", b"\\xff")
    ({'payload': 'text'}, {'payload_base64': '/w=='})
    """
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def human_bytes(count: float) -> str:
    """A number of bytes with a unit."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= 1024
        if abs(count) < 1024 or unit == "TiB":
            break
    return f"{count:.1f} {unit}"


def human_count(count: float) -> str:
    """A number with separators; one with a fraction and below a hundred keeps three digits.

    >>> human_count(1234.5), human_count(1.23456), human_count(7)
    ('1,234', '1.23', '7')
    """
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:.3g}"


def human_duration(seconds: float) -> str:
    """A time span with a unit."""
    for bound, divisor, unit in (
        (1e-6, 1e-9, "ns"),
        (1e-3, 1e-6, "µs"),
        (1, 1e-3, "ms"),
        (120, 1, "s"),
        (5400, 60, "min"),
        (172_800, 3600, "h"),
    ):
        if abs(seconds) < bound:
            return f"{seconds / divisor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h" if abs(seconds) < 172_800 else f"{seconds / 86_400:.3g} d"


def plural(count: int, thing: str) -> str:
    """`1 record`, `2,000 records`.

    >>> plural(1, "record"), plural(2000, "record")
    ('1 record', '2,000 records')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned lines. The first has the titles; one that starts with > is of a column of numbers."""
    right = [title.startswith(">") for title in rows[0]]
    cells = [[title.removeprefix(">") for title in rows[0]], *rows[1:]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(right))]
    return [
        "  ".join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]


def as_text(payload: bytes) -> str:
    r"""A payload as text on one line. What isn't printable UTF-8 is escaped, so its bytes can be recovered.

    >>> as_text("größer".encode()), as_text(b"two\nlines"), as_text(b"\x00\xff\\")
    ('größer', 'two\\nlines', '\\x00\\xff\\\\')
    """
    text = payload.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char.isprintable():
        return char
    if char.isascii():
        return repr(char)[1:-1]
    # Not as \x85, which is the byte 85, not UTF-8.
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
