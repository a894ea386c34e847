"""A process that changes state on four threads while it is enumerated, and tells what was acknowledged.

    python -m tests.state.changer DIRECTORY POLICY FIRST FIRST FIRST FIRST

Each thread has things of its own, and a lock for them. Its changes are the same in every run: change `number` of
a thread follows from the number, and from what there is. So whoever knows the numbers knows the state, exactly.
After each change a line tells the thread and the number, on standard output.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from dataclasses import dataclass

import msgspec

from forelog.state import Enumeration, StateLog

THREADS = 4
KEYS = 12
ROTATE_BYTES = 2000
SWITCH_SECONDS = 0.0001  # threads take turns much more often than they do by default


class Put(msgspec.Struct):
    thread: int
    key: int
    value: int


@dataclass
class Gone:
    thread: int
    key: int


Things = dict[int, int]


def change(thread: int, number: int, things: Things) -> Put | Gone:
    """What a thread does as its change `number`."""
    dice = random.Random(number * THREADS + thread)
    key = dice.randrange(KEYS)
    if key in things and dice.random() < 0.4:
        return Gone(thread, key)
    return Put(thread, key, number)


def apply(event: Put | Gone, things: Things) -> None:
    if isinstance(event, Put):
        things[event.key] = event.value
    else:
        things.pop(event.key, None)


class App:
    """Things of four owners, each with a lock."""

    def __init__(self, path: str, sync: str = "os") -> None:
        self.things: list[Things] = [{} for _ in range(THREADS)]
        self.locks = [threading.Lock() for _ in range(THREADS)]
        self.log = StateLog(
            path,
            replay=lambda event: apply(event, self.things[event.thread]),
            enumerate=self.enumerate,
            types=[Put, Gone],
            sync=sync,
            rotate_bytes=ROTATE_BYTES,
        )

    def enumerate(self, log: Enumeration) -> None:
        for thread, things in enumerate(self.things):
            for key in list(things):
                with self.locks[thread]:
                    if key in things:
                        log.update(Put(thread, key, things[key]))

    def change_for_ever(self, thread: int, number: int) -> None:
        things, lock = self.things[thread], self.locks[thread]
        while True:
            with lock:
                event = change(thread, number, things)
                self.log.update(event)
                apply(event, things)
            os.write(1, b"%d %d\n" % (thread, number))
            number += 1


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    app = App(sys.argv[1], sys.argv[2])
    app.log.open()
    os.write(1, b"open\n")
    for thread, first in enumerate(sys.argv[3:]):
        threading.Thread(target=app.change_for_ever, args=(thread, int(first))).start()


if __name__ == "__main__":
    main()
