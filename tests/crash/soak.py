"""Random histories and random crash states, for as long as asked: `make crash CRASH_SECONDS=3600`."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.crash.history import check, run
from tests.crash.test_crash_states import random_actions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first history's seed; the rest follow")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    seed, checked, seen = options.seed, 0, set()
    while time.monotonic() < end:
        rng = random.Random(seed)
        actions = random_actions(seed, rng.randrange(5, 60))
        history = run(actions, sector_bytes=rng.choice([16, 64, 512, 4096]))
        for moment in rng.sample(range(len(history.disk.events) + 1), min(20, len(history.disk.events))):
            for state in history.disk.states(moment, limit=20, seed=seed):
                try:
                    check(history, state)
                except BaseException:
                    print(f"seed {seed}, moment {moment}: {actions}", file=sys.stderr)
                    raise
                checked += 1
                seen.add(state.disk.origin)
        seed += 1
        if seed % 20 == 0:
            print(f"{checked} states, {len(seen)} distinct, {seed - options.seed} histories", flush=True)
    print(f"{checked} states, {len(seen)} distinct, {seed - options.seed} histories: nothing lost, nothing wrong")
    return 0


if __name__ == "__main__":
    import logging

    logging.disable(logging.CRITICAL)
    sys.exit(main())
