"""Readers beside writers, one after the other: `make readers`.

    python -m tests.readers --readers follower,broker --writers rolling,full,killed --seconds 20 --kills 30

Each run prints a line. The command ends with 1 if one of them has shown anything to be wrong.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.readers.pair import Pair, Plan, run
from tests.readers.room import can_mount, in_a_room
from tests.readers.writer import WAYS

READERS = ("follower", "broker", "spark", "ingest", "copy")
ROOM_BYTES = dict.fromkeys(READERS, 4 << 20) | {"copy": 64 << 20}
"""The size of the filesystem for `full`. What is copied is never cleaned, and gets its room bit by bit."""


def maker(reader: str) -> Callable[..., Pair]:
    """The pair that has this reader. Spark is imported only where it is needed."""
    if reader == "follower":
        from tests.readers.follower import Follower as Found
    elif reader == "broker":
        from tests.readers.subscriber import Subscriber as Found  # type: ignore[assignment]
    elif reader == "spark":
        from tests.readers.spark_stream import SparkStream as Found  # type: ignore[assignment]
    elif reader == "ingest":
        from tests.readers.table import IngestedTable as Found  # type: ignore[assignment]
    else:
        from tests.readers.copies import StateCopies as Found  # type: ignore[assignment]
    return Found


def run_here(reader: str, way: str, plan: Plan, place: Path | None) -> int:
    """One run, in this process; its line is printed."""
    verdict = run(maker(reader), way, plan, place)
    print(verdict.line(), flush=True)
    return 1 if verdict.wrong() else 0


def run_in_a_room(reader: str, plan: Plan) -> subprocess.CompletedProcess[str]:
    """The same with the writer `full`, in a process that has a filesystem of its own, which is too small."""
    with tempfile.TemporaryDirectory(prefix="forelog-room-") as folder:
        words = ["--readers", reader, "--writers", "full", "--seconds", str(plan.seconds), "--place", folder]
        words += ["--idle-seconds", str(plan.idle_seconds), "--seed", str(plan.seed)]
        command = [sys.executable, "-m", "tests.readers", *words]
        room = in_a_room(command, Path(folder), ROOM_BYTES[reader])
        return subprocess.run(room, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _names(text: str, known: tuple[str, ...]) -> list[str]:
    names = text.split(",")
    if wrong := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(wrong)}: expected {', '.join(known)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = tuple(WAYS)
    parser.add_argument("--readers", type=lambda text: _names(text, READERS), default=list(READERS))
    parser.add_argument("--writers", type=lambda text: _names(text, ways), default=list(ways))
    parser.add_argument("--seconds", type=float, default=20.0, help="for which a writer writes")
    parser.add_argument("--kills", type=int, default=30, help="how often one is killed")
    parser.add_argument("--idle-seconds", type=float, default=2.0, help="for which a reader is watched at rest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="where the logs are; 'full' needs a small filesystem")
    chosen = parser.parse_args()
    plan = Plan(chosen.seconds, chosen.kills, chosen.idle_seconds, chosen.seed)
    codes = []
    for reader in chosen.readers:
        for way in chosen.writers:
            if way != "full" or chosen.place is not None:
                codes.append(run_here(reader, way, plan, chosen.place))
            elif can_mount():
                done = run_in_a_room(reader, plan)
                print(done.stdout, end="", flush=True)
                codes.append(done.returncode)
            else:
                print(f"{reader:8} {way:7} skipped: no permission to mount a small tmpfs", flush=True)
    return max(codes, default=0)


if __name__ == "__main__":
    raise SystemExit(main())
