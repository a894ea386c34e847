"""How long a broker's event loop is held up: the longest that one round of it has worked.

What counts is the time that the thread was working, not the time that passed: a busy machine changes nothing.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
import traceback
from collections.abc import Iterator

from tests.broker.local import Local


class Held:
    """Rounds of the event loop."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.rounds = 0
        self.is_over = False

    def start(self, loop) -> None:
        last = time.thread_time()

        def round_() -> None:
            nonlocal last
            now = time.thread_time()
            self.longest_ms = max(self.longest_ms, (now - last) * 1000)
            self.rounds += 1
            last = now
            if not self.is_over:
                loop.call_soon(round_)

        loop.call_soon(round_)


@contextlib.contextmanager
def held(broker: Local) -> Iterator[Held]:
    found = Held()
    gc.collect()
    gc.disable()
    broker.do(lambda: found.start(broker.broker.loop))
    try:
        yield found
    finally:
        found.is_over = True
        gc.enable()


def stacks() -> str:
    """Where all threads are, for whoever looks for what holds up the loop."""
    return "\n".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
