"""All queues by name. Only the newest empty ones stay, as any client can name one."""

from __future__ import annotations

from forelog.jobs.machine.ledger import Ledger
from forelog.jobs.machine.ordered import Ordered
from forelog.jobs.machine.queue import Queue

QUEUES_IDLE_MAX = 10_000
QUEUE_BYTES = 1536  # memory of a queue


class Registry:
    """The queues of a machine."""

    def __init__(self, ledger: Ledger) -> None:
        self.queues: dict[bytes, Queue] = {}
        """Each queue under its name."""
        self.names: Ordered[bytes] = Ordered(bytes)
        """The names of the queues, in order."""
        self._ledger = ledger
        self._idle: dict[bytes, None] = {}

    def queue(self, name: bytes) -> Queue:
        """The queue of this name, created if needed."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = Queue(name)
            self.names.add(name)
            self._ledger.memory_bytes += QUEUE_BYTES
            self.rest(queue)
        return queue

    def rest(self, queue: Queue) -> None:
        """Remember a queue that may be empty, as one of those that may be dropped."""
        idle = self._idle
        idle.pop(queue.name, None)
        idle[queue.name] = None
        while len(idle) > QUEUES_IDLE_MAX:
            name = next(iter(idle))
            del idle[name]
            old = self.queues.get(name)
            if old is not None and old.is_idle():
                del self.queues[name]
                self.names.remove(name)
                self._ledger.memory_bytes -= QUEUE_BYTES
