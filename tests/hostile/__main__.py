"""`python -m tests.hostile`: every attack, one after the other, and a table of what each has cost.

memory     the largest that the server was, over what it was before
left       how much larger it is when the attackers have gone
latency    the longest round trip of another client that was there all along
stall      the same, less what the machine made server and client wait for a processor
newcomer   the longest that a client which came meanwhile had to wait to be let in
idle       the share of a processor that the server uses when nobody asks for anything
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from tests.hostile.attacks import all_attacks
from tests.hostile.siege import Outcome, besiege
from tests.hostile.table import HEAD, row, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="those whose name has this in it"
    )
    parser.add_argument("--list", action="store_true", help="name them, and what each does")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    parser.add_argument(
        "--slack", type=float, default=1.0, metavar="TIMES", help="for times, on a busy machine (1)"
    )
    options = parser.parse_args()
    chosen = [one for one in all_attacks() if not options.only or any(part in one.name for part in options.only)]
    if options.list:
        for one in chosen:
            print(f"{one.name:<46} {one.about}")
        return 0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    outcomes: list[Outcome] = []
    began = time.monotonic()
    if not options.json:
        print(HEAD, flush=True)
    for one in chosen:
        try:
            outcomes.append(besiege(one, slack=options.slack))
        except Exception as error:  # the others are to be seen as well
            outcomes.append(Outcome(one.name, one.about, problems=[f"{type(error).__name__}: {error}"[:300]]))
        print(json.dumps(outcomes[-1].as_dict()) if options.json else row(outcomes[-1]), flush=True)
    if not options.json:
        print(summary(outcomes, time.monotonic() - began))
    return 0 if outcomes and all(found.fine for found in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
