"""A dict that survives its program: `python -m examples.durable_dict`.

A shop keeps its stock in a dict. Another process sells from it, one piece at a time, until kill -9 ends it.
Whatever it reported as sold is sold: each change is in the log before it is in the dict. The log doesn't grow
for ever: when it is long enough, it is rewritten with the current content only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from forelog import Stream
from forelog.state import PersistentDict

SALES = 2000


def sell_until_killed(path: str) -> None:
    """Sell chips, and say so, until somebody ends it."""
    with PersistentDict[str, int](path, rotate_bytes=20_000) as stock:
        while True:
            stock["chips"] -= 1
            os.write(1, b"%d\n" % stock["chips"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/stock"
        with PersistentDict[str, int](path) as stock:
            stock.update(chips=1_000_000, dip=120)
            print("the shop opens:", dict(stock))

        said = 0
        command = [sys.executable, "-m", "examples.durable_dict", path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as selling:
            assert selling.stdout is not None
            for line in selling.stdout:
                if line.endswith("\n"):  # the last one may be cut
                    said = int(line)
                    if said == 1_000_000 - SALES:
                        selling.kill()
        print(f"kill -9, when it had said that {1_000_000 - said:,} are sold")

        with PersistentDict[str, int](path) as stock:
            lost = max(0, stock["chips"] - said)  # one more may be sold than could be said
            print(f"the shop opens again: {lost} sales are lost, and the dip is still there: {stock['dip']}")
            stock.rotate()
            stats = stock.stats()
            print(
                f"generation {stats.generation} of the log begins with all {stats.objects} things that there are"
            )
        size = sum(segment.byte_count for segment in Stream.open(path).segments())
        print(f"after {1_000_000 - said:,} changes and more the log has {size} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sell_until_killed(sys.argv[1])
    else:
        main()
