"""Two programs with logs of their own, each a process: `python -m examples.demo.writers stock|meters PATH`.

Each says `ack KEY` for what its log has acknowledged, and not before. Both end with SIGTERM, or
when their standard input ends, which is also when whoever started them is gone.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import threading
import time

from forelog.commitlog import CommitLog
from forelog.formats.m3 import Datapoint, Series
from forelog.state import PersistentDict

ITEMS = ("bolts", "gears", "belts", "seals", "pumps", "cable")
"""All of one length, so that the key of a change is always the same part of its bytes."""
MACHINES = ("press", "lathe", "mill", "oven")
STOCK_PAUSE_S = 0.008
METERS_PAUSE_S = 0.01


def main(what: str, path: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=_until_the_end_of_input, args=(ended,), daemon=True).start()
    {"stock": keep_stock, "meters": read_meters}[what](path, ended)


def keep_stock(path: str, ended: threading.Event) -> None:
    """Take from the stock, and fill it up: every change is on stable storage before it is made."""
    chance = random.Random(time.time_ns())
    with PersistentDict[str, list[int]](path, sync="always") as stock:
        serial = max((value[1] for value in stock.values()), default=0)
        _say(f"serving stock at {path}: {len(stock)} items were restored")
        while not ended.wait(STOCK_PAUSE_S):
            serial += 1
            item = chance.choice(ITEMS)
            left = stock.get(item, [400 + 90 * ITEMS.index(item), 0])[0] - chance.randrange(1, 12)
            stock[item] = [left if left > 40 else left + 700, serial]
            _say(f"ack {serial}")


def read_meters(path: str, ended: threading.Event) -> None:
    """What each machine draws, in kilowatts, in M3's format; a batch is acknowledged when it is synced."""
    chance = random.Random(time.time_ns())
    meters = [
        Series(b"power", namespace=b"factory", shard=number, tags={b"machine": name.encode()})
        for number, name in enumerate(MACHINES)
    ]
    with CommitLog(path, format="m3", strategy="wait") as log:
        _say(f"serving meters at {path}")
        while not ended.wait(METERS_PAUSE_S):
            now = time.time_ns()
            log.write_batch([(one, Datapoint(now, _kilowatts(n, now, chance))) for n, one in enumerate(meters)])
            _say(f"ack {now}")


def _kilowatts(machine: int, time_ns: int, chance: random.Random) -> float:
    wave = math.sin(time_ns / 1e9 * 2 * math.pi / (4 + 3 * machine))
    return 12.0 + 9 * machine + (3 + machine) * wave + chance.gauss(0, 0.6)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _until_the_end_of_input(ended: threading.Event) -> None:
    # Not through sys.stdin: its lock, held by a thread that waits, would be in the way of the interpreter's end.
    while os.read(0, 4096):
        pass
    ended.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
