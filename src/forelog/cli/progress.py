"""Show on stderr how far a long command is.

In a terminal with rich installed: a bar, once the work has lasted half a second. Elsewhere: a line every ten
seconds. For shorter work nothing is printed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any, Self

from forelog.cli.output import human_bytes, human_count, say

BAR_AFTER_SECONDS = 0.5
LINE_EVERY_SECONDS = 10.0


class Progress:
    """Shows progress. Call it with how much is done, and how much there is in all."""

    def __init__(self, label: str, *, unit: str = "bytes") -> None:
        self._label = label
        self._unit = unit
        self._bar: Any = None
        self._task: Any = None
        self._tty = sys.stderr.isatty()
        self._next_seconds = time.monotonic() + (BAR_AFTER_SECONDS if self._tty else LINE_EVERY_SECONDS)

    def __call__(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
        elif time.monotonic() >= self._next_seconds and done < total:
            self._show(done, total)

    def _show(self, done: int, total: int) -> None:
        if self._tty:
            with contextlib.suppress(ImportError):
                self._start_bar(done, total)
                return
        self._next_seconds = time.monotonic() + LINE_EVERY_SECONDS
        amount = human_bytes if self._unit == "bytes" else human_count
        say(f"{self._label}: {100 * done // max(total, 1)}% ({amount(done)} of {amount(total)})")

    def _start_bar(self, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        amounts = DownloadColumn(binary_units=True) if self._unit == "bytes" else MofNCompleteColumn()
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            amounts,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._label, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
