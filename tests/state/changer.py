"""A process that changes state on four threads while it is enumerated, and tells what was acknowledged.

    python -m tests.state.changer DIRECTORY POLICY FIRST FIRST FIRST FIRST
    python -m tests.state.changer --dict DIRECTORY POLICY FIRST FIRST FIRST FIRST

With `--dict` each change is a transaction of a PersistentDict, in which some keys expire.

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
from typing import Any

import msgspec

from forelog.log.appender import Sync
from forelog.state import Enumeration, PersistentDict, StateLog

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

    def __init__(self, path: str, sync: Sync = "os") -> None:
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
            with self.locks[thread]:
                keys = list(things)
            for key in keys:
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


LASTING, FLEETING = 1e6, 1e-6  # seconds


class DictApp:
    """The same with a dict. Whatever a transaction sets has its number."""

    def __init__(self, path: str, sync: Sync = "os") -> None:
        self.log = self.data = PersistentDict[tuple[int, str], int](path, sync=sync, rotate_bytes=ROTATE_BYTES)

    def change_for_ever(self, thread: int, number: int) -> None:
        while True:
            with self.data.transaction():
                for name in ("a", "b", f"at {number % KEYS}"):
                    self.data[thread, name] = number
                self.data.set((thread, "lasting"), number, ttl=LASTING)
                self.data.set((thread, "fleeting"), number, ttl=FLEETING)
                self.data.pop((thread, f"at {number % KEYS - 1}"), None)
                self.data.increment((thread, "count"))
            os.write(1, b"%d %d\n" % (thread, number))
            number += 1

    def number_of(self, thread: int) -> int:
        """How many changes of a thread there are; every key has to say so."""
        items = {name: number for (owner, name), number in self.data.items() if owner == thread}
        number = items.pop("count", 0)
        keys = ["a", "b", "lasting", f"at {(number - 1) % KEYS}"] if number else []
        last = {name: items.get(name) for name in keys}
        assert last == dict.fromkeys(keys, number - 1), f"part of a transaction: {items} after {number}"
        assert "fleeting" not in items
        return number


def main() -> None:
    sys.setswitchinterval(SWITCH_SECONDS)
    arguments = sys.argv[1:]
    make = DictApp if arguments[0] == "--dict" else App
    sync: Any
    path, sync, *numbers = arguments[arguments[0] == "--dict" :]
    app = make(path, sync)
    app.log.open()
    os.write(1, b"open\n")
    for thread, first in enumerate(numbers):
        threading.Thread(target=app.change_for_ever, args=(thread, int(first))).start()


if __name__ == "__main__":
    main()
