"""Worlds, one seed after the other: `make world`.

python -m tests.world --seconds 60 --seed 0     as many worlds as there is time for, on all cores
python -m tests.world --only 17                 one world again, with its trace in world-17.txt
python -m tests.world --only 17 --shorten       the fewest faults with which it still fails
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from forelog.testing.world import Fault
from tests.world.run import Verdict, run

_WORLD_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description="Worlds, one seed after the other.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on; default: 60")
    parser.add_argument("--seed", type=int, default=0, help="the first world's seed; default: 0")
    parser.add_argument("--only", type=int, metavar="SEED", help="one world, with its trace in a file")
    parser.add_argument("--shorten", action="store_true", help="with --only: take out faults while it still fails")
    options = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if options.only is not None:
        return _one(options.only, shorten=options.shorten)
    return _many(options.seed, options.seconds)


def _one(seed: int, *, shorten: bool) -> int:
    verdict = run(seed, seconds=_WORLD_SECONDS, trace=True)
    if shorten and verdict.violations:
        verdict = run(seed, seconds=_WORLD_SECONDS, plan=_shortest(seed, list(verdict.plan)), trace=True)
        print("fewest faults:", *verdict.plan, sep="\n  ")
    path = Path(f"world-{seed}.txt")
    path.write_text("\n".join(verdict.trace) + "\n")
    print(f"seed {seed}: {len(verdict.trace)} lines in {path}, digest {verdict.digest}")
    print(*(verdict.violations or ["nothing is wrong"]), sep="\n")
    return bool(verdict.violations)


def _shortest(seed: int, plan: list[Fault]) -> list[Fault]:
    """Take out halves, quarters and so on, then single faults, as long as the world still fails without them."""
    size = max(len(plan) // 2, 1)
    while size:
        place = 0
        while place < len(plan):
            rest = plan[:place] + plan[place + size :]
            if run(seed, seconds=_WORLD_SECONDS, plan=rest).violations:
                plan = rest
            else:
                place += size
        size //= 2
    return plan


def _many(first: int, seconds: float) -> int:
    began = time.monotonic()
    faults: Counter[str] = Counter()
    worlds, simulated, handled, failed = 0, 0.0, 0, []
    seeds = itertools.count(first)
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, initializer=logging.disable, initargs=(logging.CRITICAL,)) as pool:
        running: set[Future[Verdict]] = set()
        while True:
            while len(running) < cores and time.monotonic() - began < seconds:
                running.add(pool.submit(run, next(seeds), seconds=_WORLD_SECONDS))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for verdict in (future.result() for future in done):
                worlds, simulated, handled = worlds + 1, simulated + verdict.seconds, handled + verdict.handled
                faults += verdict.faults
                if verdict.violations:
                    failed.append(verdict.seed)
                    print(f"\nseed {verdict.seed}:", *verdict.violations[:5], sep="\n  ")
            _progress(worlds, simulated, faults, time.monotonic() - began)
    print()
    for name, count in sorted(faults.items()):
        print(f"  {count:8,d}  {name}")
    print(f"{worlds:,} worlds, {simulated / 3600:.2f} simulated hours, {handled:,} jobs handled")
    print("failed:", failed or "none")
    return bool(failed)


def _progress(worlds: int, simulated: float, faults: Counter[str], took: float) -> None:
    total = sum(count for name, count in faults.items() if " before " not in name)
    line = f"{took:5.0f} s: {worlds:,} worlds, {simulated / 3600:.2f} simulated hours, {total:,} faults"
    if sys.stdout.isatty():
        print(f"\r{line}", end="", flush=True)
    elif worlds % 50 == 0:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
