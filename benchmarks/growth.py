"""Ten times the log: the time for each byte, and the memory, should stay what they were.

Every run is a process of its own, so that its peak memory is its own as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Figure, Role, Row, Settings, count_goal, goal_of, row_of
from benchmarks.reading import child

LARGE_BYTES = 1 << 30
SMALL_BYTES = 100 << 20
RSS_MAX_BYTES = 200 << 20
_OPERATIONS = {
    "bare": "os.write, fdatasync",
    "append": "append_many(1000), close",
    "verify": "verify",
    "scan": "scan() to Arrow",
}


@dataclass
class Run:
    """One operation on a log of one size: nanoseconds for each byte, and the peak memory."""

    ns_per_byte: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def add(self, answer: dict[str, float]) -> None:
        self.ns_per_byte.append(answer["seconds"] * 1e9 / answer["bytes"])
        self.peak_bytes = max(self.peak_bytes, int(answer["peak_bytes"]))


def growth(settings: Settings) -> Figure:
    """Append, verify and scan 1 GiB beside 100 MiB."""
    sizes = [settings.count(SMALL_BYTES, least=1 << 19), settings.count(LARGE_BYTES, least=5 << 20)]
    runs = {(operation, size): Run() for operation in _OPERATIONS for size in sizes}
    rounds = min(settings.rounds, 3)
    for number in range(1, rounds + 1):
        for size in sizes:
            with settings.scratch() as path:
                for operation in _OPERATIONS:
                    settings.tell(f"round {number} of {rounds}: {operation} {_mib(size)}")
                    runs[operation, size].add(_measure(operation, path, size))
    figure = Figure("growth", f"{_mib(sizes[1])} beside {_mib(sizes[0])}")
    for operation, text in _OPERATIONS.items():
        small, large = runs[operation, sizes[0]], runs[operation, sizes[1]]
        sync = {"append": "os", "bare": "each 64 MiB"}.get(operation, "-")
        for size, run in zip(sizes, (small, large), strict=True):
            figure.rows += _rows(f"{text}, {_mib(size)}", sync, run)
        low, high = (None, None) if operation == "bare" else (0.7, 1.4)
        figure.goals += [
            goal_of(f"{text}: time per byte", large.ns_per_byte, small.ns_per_byte, at_least=low, at_most=high),
            count_goal(f"{text}: peak memory", large.peak_bytes / small.peak_bytes, "x"),
        ]
    for size in sizes:
        ours, bare = runs["append", size].ns_per_byte, runs["bare", size].ns_per_byte
        figure.goals.append(
            goal_of(f"append_many(1000), close, {_mib(size)}, to os.write", bare, ours, at_least=0.6)
        )
    peak = runs["verify", sizes[1]].peak_bytes
    figure.goals.append(
        count_goal(f"peak memory while verifying {_mib(sizes[1])}", peak, "bytes", at_most=RSS_MAX_BYTES)
    )
    figure.notes.append(
        "Ratios are those of the larger log to the smaller one. Both are read from the page cache, where they "
        "fit. Appending includes the sync at each segment's end: it grows as os.write and fdatasync do."
    )
    return figure


def _measure(operation: str, path: Path, size: int) -> dict[str, float]:
    if operation == "bare":
        answer = child(operation, path / "bare", size)
        (path / "bare").unlink()
        return answer
    return child(operation, path / "log", *([size] if operation == "append" else []))


def _mib(size: int) -> str:
    return "1 GiB" if size == 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def _rows(name: str, sync: str, run: Run) -> list[Row]:
    role: Role = "limit" if sync.startswith("each") else "forelog"
    rates = [1 / ns for ns in run.ns_per_byte]
    return [
        row_of(name, "GB/s", rates, sync, role),
        row_of(f"{name}: peak memory", "bytes", [run.peak_bytes], sync, role),
    ]
