"""The figures of a run, as a table."""

from __future__ import annotations

from tests.hostile.attacks import MIB
from tests.hostile.siege import Outcome

__all__ = ["HEAD", "row", "summary"]

HEAD = (
    f"{'attack':<46} {'sent':>9} {'time':>6} {'latency':>8} {'stall':>8} {'newcomer':>8} "
    f"{'memory':>8} {'left':>7} {'disk':>9} {'idle':>5}  verdict"
)


def row(found: Outcome) -> str:
    """One attack: a line, and one for each bound that it broke."""
    line = (
        f"{found.name:<46} {_size(found.sent_bytes):>9} {found.seconds:>5.1f}s {found.latency_ms:>6.0f}ms "
        f"{found.stall_ms:>6.0f}ms {found.newcomer_ms:>6.0f}ms "
        f"{found.memory_mib:>+7.0f}M {found.left_mib:>+6.0f}M {found.disk_mib:>8.1f}M "
        f"{max(found.idle_cpu, found.left_cpu):>4.0%}  {'fine' if found.fine else 'FAILED'}"
    )
    return "\n".join([line, *(f"      {problem}" for problem in found.problems)])


def summary(every: list[Outcome], seconds: float) -> str:
    """The last lines."""
    failed = [found.name for found in every if not found.fine]
    sent = sum(found.sent_bytes for found in every)
    worst = max(every, key=lambda found: found.stall_ms, default=None)
    lines = [f"{len(every)} attacks in {seconds:.0f} s, {_size(sent)} sent, {len(failed)} failed"]
    if worst is not None:
        lines.append(f"the longest stall of another client: {worst.stall_ms:,.0f} ms, by {worst.name}")
    return "\n".join([*lines, *(f"  failed: {name}" for name in failed)])


def _size(count: int) -> str:
    if count < 10_000:
        return f"{count} B"
    return f"{count / 1000:,.0f} kB" if count < 10_000_000 else f"{count / MIB:,.1f} M"
