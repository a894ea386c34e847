"""A writer in a process of its own, which notes in a ledger what it tries and what comes of it.

    python -m tests.readers.writer WAY PATH LEDGER --seconds 20 --reached FILE        to a log
    python -m tests.readers.writer WAY PATH LEDGER --seconds 20 --copies '["copy"]'   to a state log

There are three ways to write:

========  ==============================================================================================
rolling   small records one by one and a few together; a segment is full after a few of them
full      batches that may be larger than the room that is left; now and then room is made
killed    batches of some megabytes, in the middle of which the process is killed, and started again
========  ==============================================================================================

It says `open`, then `paused` when its time is over. It stays open, without a write, until its standard input is
closed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from forelog.copies.destinations import Ack
from forelog.errors import AppenderFailed, NotReplicated, WriteFailed
from tests.readers.ledger import Ledger
from tests.readers.place import LogPlace, NotingFiles, Place, StatePlace, copies_from, opened
from tests.readers.process import Child
from tests.readers.records import payload

KILL_SECONDS_MAX = 0.001  # after a segment has begun to grow: about as long as a write takes
TRIES_BEFORE_KILL_MAX = 4
LAST_SECONDS = 0.3  # for which it writes after the last kill
LIFE_SECONDS_MAX = 60.0
WRITE_SECONDS_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Way:
    """How a writer writes."""

    segment_bytes: int
    record_bytes: tuple[int, int]
    batch_records: tuple[int, int]
    singles: float
    """The share of appends that are of one record."""
    pause_seconds: float = 0.0
    """After each append."""
    syncs: bool = True
    cut_seconds: float = 0.0
    """How long it takes to make a file shorter."""
    ack: Ack = "synced"
    """What updates of a state log wait for. With "none" its copies lag behind, and catch up beside the writer."""


WAYS = {
    "rolling": Way(400, (12, 120), (2, 5), singles=0.7, syncs=False, ack="none"),
    "full": Way(256 << 10, (200, 4000), (50, 400), singles=0.2, pause_seconds=0.002, cut_seconds=0.01),
    "killed": Way(64 << 20, (4000, 16_000), (400, 1000), singles=0.0, pause_seconds=0.01),
}


# -- the process


def write(place: Place, ledger: Ledger, way: Way, seconds: float, seed: int) -> None:
    """Append, and note it, until the time is over."""
    chance = random.Random(seed + ledger.next)
    began = time.monotonic()
    refused = 0
    while (share := (time.monotonic() - began) / seconds) < 1.0:
        count = 1 if chance.random() < way.singles else chance.randint(*way.batch_records)
        sizes = [chance.randint(*way.record_bytes) for _ in range(count)]
        payloads = [payload(ledger.next + n, size) for n, size in enumerate(sizes)]
        first = ledger.trying(count)
        try:
            positions = place.write(payloads)
        except (WriteFailed, NotReplicated) as error:
            ledger.refused(first, count, f"{type(error).__name__}: {error}")
            refused += 1
            if refused % 3 == 0:
                place.make_room(share)
            time.sleep(0.005)
        except AppenderFailed:  # whether they are there isn't known
            place.close()
            opened(place)
        else:
            ledger.acked(first, positions)
            time.sleep(way.pause_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("path")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reached", type=Path, help="the file in which a reader says how far it has got")
    parser.add_argument("--copies", type=copies_from, help="where a state log is copied to, as JSON")
    chosen = parser.parse_args()
    ledger, way = Ledger(chosen.ledger), WAYS[chosen.way]
    files = NotingFiles(ledger.note, syncs=way.syncs, cut_seconds=way.cut_seconds)
    size = way.segment_bytes
    place: Place
    if chosen.copies is None:
        reached: Path = chosen.reached
        place = LogPlace(chosen.path, segment_bytes=size, reached=reached, files=files)
    else:
        place = StatePlace(chosen.path, segment_bytes=size, copies=chosen.copies, ack=way.ack, files=files)
    opened(place)
    if isinstance(place, StatePlace) and chosen.way == "full":
        place.fill()
    print("open", flush=True)
    write(place, ledger, way, chosen.seconds, chosen.seed)
    place.pause()
    print("paused", flush=True)
    sys.stdin.read()
    place.close()


# -- as its run sees it


class Writer:
    """The process, which is killed and started again where that is the way."""

    def __init__(self, way: str, path: Path, ledger: Path, *words: object, said: Path, seed: int = 0) -> None:
        self._way, self._path, self._ledger = way, path, ledger
        self._words, self._said, self._seed = words, said, seed
        self._child: Child | None = None

    def work(self, seconds: float, kills: int) -> None:
        """Have it write, and be killed so often; then it pauses."""
        if self._way == "killed":
            chance = random.Random(self._seed)
            for _ in range(kills):
                self._start(LIFE_SECONDS_MAX)
                self._kill_in_the_middle(chance)
            seconds = LAST_SECONDS
        self._start(seconds)
        self.child.wait_for("paused")

    @property
    def child(self) -> Child:
        """The process as it is now."""
        assert self._child is not None
        return self._child

    def _start(self, seconds: float) -> None:
        words = (self._way, self._path, self._ledger, "--seconds", seconds, "--seed", self._seed, *self._words)
        self._child = Child("tests.readers.writer", *words, said=self._said)
        self._child.wait_for("open")

    def _kill_in_the_middle(self, chance: random.Random) -> None:
        """Kill it soon after it has noted that it is about to write, and its segment grows."""
        begun, tries = self._ledger.stat().st_size, chance.randint(1, TRIES_BEFORE_KILL_MAX)
        with self._ledger.open("rb") as file:
            while True:
                file.seek(begun)
                lines = file.read().split(b"\n")[:-1]
                trying = [line.startswith(b"trying ") for line in lines]
                if sum(trying) >= tries and trying[-1]:
                    break
                time.sleep(0.0002)
        wait_for_growth(self._path, WRITE_SECONDS_MAX)
        time.sleep(chance.uniform(0, KILL_SECONDS_MAX))
        self.child.close()
        ledger = Ledger(self._ledger)
        ledger.note("killed")
        ledger.close()

    def finish(self) -> str | None:
        """Let it close its log; what is wrong with how it ended."""
        self.child.let_go()
        return self.child.end()

    def close(self) -> None:
        """Whatever it does, it ends."""
        if self._child is not None:
            self._child.close()


def wait_for_growth(folder: Path, seconds: float) -> None:
    """Until the last segment in a folder grows, or another one begins; or for so long."""
    deadline, before = time.monotonic() + seconds, _last_segment(folder)
    while _last_segment(folder) == before and time.monotonic() < deadline:
        pass  # a write takes a millisecond or two: a sleep would miss the middle of it


def _last_segment(folder: Path) -> tuple[str, int]:
    last = max(name for name in os.listdir(folder) if name.endswith((".log", ".dat")))
    try:
        return last, os.stat(folder / last).st_size
    except FileNotFoundError:  # an empty one, replaced by one with the number of its first record
        return last, -1


if __name__ == "__main__":
    main()
