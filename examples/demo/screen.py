"""How the demo looks: alive in a terminal, plain lines where nobody watches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.demo.ledger import KINDS, Ledger
from forelog.cli.draw import can_draw, sparkline

SAMPLE_S = 0.25
SAMPLES = 28
PLAIN_PAUSE_S = 4.0


class Screen:
    """What is printed. Nothing but text and newlines if it isn't a terminal."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=True, emoji=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, markup=True, emoji=False, width=200, color_system=None)
        self.watched = self.console.is_terminal and not self.console.is_dumb_terminal

    def heading(self, title: str, subtitle: str = "") -> None:
        self.console.print(f"\n[bold cyan]{title}[/]" + (f"  [dim]{subtitle}[/]" if subtitle else ""))

    def say(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns that begin with `>` are numbers."""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
        for name in columns:
            table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row))
        self.console.print(_indented(table))
        self.console.print()

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Something that takes a while, and says how long it took."""
        start = time.monotonic()
        if self.watched:
            with self.console.status(f"[dim]{text} …[/]", spinner="dots"):
                yield
        else:
            yield
        self.say(f"{text} [dim]{time.monotonic() - start:.1f} s[/]")


class Watch:
    """What is acknowledged, as it grows: a table in a terminal, a line now and then elsewhere."""

    def __init__(self, screen: Screen, ledger: Ledger, seconds: float) -> None:
        self._screen, self._ledger, self._seconds = screen, ledger, seconds
        self._start = self._told = time.monotonic()
        self._rates: dict[str, deque[float]] = {kind: deque([0.0] * SAMPLES, SAMPLES) for kind in KINDS}
        self._counts = dict.fromkeys(KINDS, 0)
        self._draws = can_draw()
        self._live = Live(console=screen.console, auto_refresh=False, transient=True) if screen.watched else None

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Something happened: it stays above the table."""
        self._screen.say(f"[dim]{self.elapsed:5.1f} s[/]  {text}")
        self._told = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def go_on(self, share: float) -> None:
        """Watch for this share of the time."""
        end = time.monotonic() + share * self._seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, SAMPLE_S))
            self._sample()
            if self._live is not None:
                self._live.update(self._table(), refresh=True)
            elif time.monotonic() - self._told > PLAIN_PAUSE_S:
                counts = ", ".join(f"{self._counts[kind]:,} {kind}" for kind in KINDS)
                self.say(f"acknowledged: {counts}")

    def _sample(self) -> None:
        for kind in KINDS:
            count = self._ledger.count(kind)
            self._rates[kind].append((count - self._counts[kind]) / SAMPLE_S)
            self._counts[kind] = count

    def _table(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("acknowledged", "", "a second", ""):
            table.add_column(name, justify="left" if not name else "right", header_style="dim")
        for kind in KINDS:
            rates = list(self._rates[kind])
            drawn = Text(sparkline(rates).ljust(SAMPLES) if self._draws else "", "blue", no_wrap=True)
            lately = sum(rates[-4:]) / 4
            table.add_row(f"[bold]{self._counts[kind]:,}[/]", kind, f"{lately:,.0f}", drawn)
        bar = ProgressBar(total=self._seconds, completed=min(self.elapsed, self._seconds), width=60)
        return Group(Text(), _indented(table), Text(), _indented(bar))


def _indented(inner: RenderableType) -> Padding:
    return Padding(inner, (0, 0, 0, 3), expand=False)
