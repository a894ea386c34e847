"""Random histories, and readers beside them, for as long as asked: `make explore EXPLORE_SECONDS=3600`."""

from __future__ import annotations

import argparse
import sys
import time

from forelog.testing import Explorer, Report, all_histories, random_history
from tests.testing.defects import DEFECTS, explore_defect

_SAMPLE = 200  # readers beside one random history
_LIMIT = 400  # schedules of a kind of reader beside a short one
_ROUND = 10  # random histories between two short ones


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first history's seed; the rest follow")
    parser.add_argument("--defects", action="store_true", help="look for the known defects only, and say which")
    options = parser.parse_args()
    return _look_for_defects() if options.defects else _explore(options.seconds, options.seed)


def _look_for_defects() -> int:
    """One line for each known defect: whether it is there."""
    there = 0
    for name, defect in DEFECTS.items():
        violations = explore_defect(name).violations
        kinds = {one.kind for one in violations if one.kind not in defect.kinds or defect.words in one.text}
        there += defect.kinds <= kinds
        rest = f" (also {', '.join(sorted(kinds - defect.kinds))})" if kinds - defect.kinds else ""
        print(f"{name}: {', '.join(sorted(defect.kinds & kinds)) or 'mended'}{rest}")
    print(f"{there} of {len(DEFECTS)} are there")
    return int(there > 0)


def _explore(seconds: float, seed: int) -> int:
    """Random histories, and now and then a short one more closely, with three switches."""
    end, total, short = time.monotonic() + seconds, Report(), list(all_histories().items())
    for number in range(seed, sys.maxsize):
        if time.monotonic() >= end:
            break
        _add(total, Explorer(random_history(number), seed=number).sample(_SAMPLE), number)
        if number % _ROUND == 0:
            name, history = short[number // _ROUND % len(short)]
            _add(total, Explorer(history, name=name, switches=3, limit=_LIMIT, seed=number).explore(), number)
            print(f"seed {number}: {total}", flush=True)
    print(total)
    return int(total.counts.total() > 0)


def _add(total: Report, report: Report, seed: int) -> None:
    total.add(report)
    for violation in report.violations:
        print(f"seed {seed}: {violation}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
