"""Log lines for operators: one for each event, with fields that can be searched for, and never a flood.

    broker: connected from=10.0.0.7:50311 user=ann client=watch version=5
    broker: login refused from=10.0.0.9:41200 user=ann client=x reason="bad user name or password"
    broker: login refused and 312 more from=10.0.0.9

A value that isn't plain is quoted, its control characters are escaped, and a long one is cut: a client can neither
begin a line of its own nor pretend to be a field. Of each event, each address gets `burst` lines in a window, and
all addresses together `lines_max`; what is over that is counted, and the count is a line when the window ends.
Events are counted whether or not they are logged: `counts` is for metrics. For a handler of a program's own, each
record has the words as `event` and the values, as they are, as `fields`.

>>> text("watch"), text('a\\nb "c"'), text(None), text(7), text("x" * 1000)[-8:]
('watch', '"a\\\\nb \\\\"c\\\\""', '-', '7', 'x…(1000)')
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

CHARS_MAX = 200
"""Characters of a value. A longer one is cut, and its length is shown."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:+#$@%*,\[\]-]+")
_SUMMARIES_MAX = 20
"""Lines for one event at the end of a window; what is left is summed up in one more."""


class Notices:
    """The lines of one server. Safe to use from several threads.

    Call `sweep` now and then, so that counts are logged when nothing else is, and `close` at the end.
    """

    def __init__(
        self,
        source: str,
        *,
        burst: int = 20,
        lines_max: int = 200,
        window_seconds: float = 10.0,
        keys_max: int = 1024,
        logger: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: dict[str, int] = {}
        """How often each event happened, logged or not."""
        self._source = source
        self._burst, self._lines_max, self._keys_max = burst, lines_max, keys_max
        self._window = window_seconds
        self._logger = logging.getLogger("forelog") if logger is None else logger
        self._clock = clock
        self._lock = threading.Lock()
        self._began = clock()
        self._seen: dict[tuple[str, str], int] = {}
        self._lines: dict[str, int] = {}
        self._more: dict[tuple[int, str, str], int] = {}

    def info(self, event: str, where: str, /, **fields: object) -> None:
        """Log a normal event. `where` is the address without its port; each has a limit of lines."""
        self._log(logging.INFO, event, where, fields)

    def warning(self, event: str, where: str, /, **fields: object) -> None:
        """Log what an operator may want to look at, such as a refusal."""
        self._log(logging.WARNING, event, where, fields)

    def count(self, event: str) -> None:
        """Count an event without a line."""
        with self._lock:
            self.counts[event] = self.counts.get(event, 0) + 1

    def sweep(self) -> None:
        """Log what was left out, if the window is over."""
        if self._clock() - self._began >= self._window:
            self._end_window()

    def close(self) -> None:
        """Log what was left out until now."""
        self._end_window()

    def _log(self, level: int, event: str, where: str, fields: dict[str, object]) -> None:
        self.count(event)
        if not self._logger.isEnabledFor(level):
            return
        self.sweep()
        with self._lock:
            key = (event, where)
            if key not in self._seen and len(self._seen) >= self._keys_max:
                key = (event, "")
            count = self._seen[key] = self._seen.get(key, 0) + 1
            lines = self._lines.get(event, 0)
            if count > self._burst or lines >= self._lines_max:
                left_out = (level, *key)
                self._more[left_out] = self._more.get(left_out, 0) + 1
                return
            self._lines[event] = lines + 1
        named = {name.rstrip("_"): value for name, value in fields.items()}
        shown = " ".join(f"{name}={text(value)}" for name, value in named.items())
        extra = {"event": event, "fields": named}
        self._logger.log(level, "%s: %s %s", self._source, event, shown, extra=extra)

    def _end_window(self) -> None:
        with self._lock:
            more, self._more = self._more, {}
            self._seen, self._lines = {}, {}
            self._began = self._clock()
        shown: dict[tuple[int, str], int] = {}
        rest: dict[tuple[int, str], int] = {}
        for (level, event, where), count in sorted(more.items(), key=lambda item: -item[1]):
            shown[level, event] = shown.get((level, event), 0) + 1
            if where and shown[level, event] <= _SUMMARIES_MAX:
                self._logger.log(level, "%s: %s and %d more from=%s", self._source, event, count, text(where))
            else:
                rest[level, event] = rest.get((level, event), 0) + count
        for (level, event), count in rest.items():
            self._logger.log(level, "%s: %s and %d more from=elsewhere", self._source, event, count)


def text(value: object) -> str:
    """A value as a field of a line shows it: a dash for None, quotes around whatever isn't plain."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        value = str(value)
    cut = value[:CHARS_MAX]
    size = f"…({len(value)})" if len(value) > CHARS_MAX else ""
    if _PLAIN.fullmatch(cut) and cut != "-":
        return cut + size
    escaped = "".join(_escape(char) for char in cut)
    return f'"{escaped}"{size}'


def one_line(message: str, chars_max: int = 4000) -> str:
    """A message of any logger as one line of printable characters.

    >>> one_line("a file\\nwith \\x1b[2J"), one_line("x" * 5000)[-7:]
    ('a file\\\\nwith \\\\x1b[2J', '…(5000)')
    """
    size = f"…({len(message)})" if len(message) > chars_max else ""
    cut = message[:chars_max]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else _escape(char) for char in cut)
    return cut + size


def _escape(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()
