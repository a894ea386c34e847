"""Resources that survive their program: `python -m examples.resources`.

A program keeps resources in a dict. Every change is in the log before it is made. When the log has grown too
long, the program enumerates its resources, and what came before is dropped. The example runs the program three
times: it creates resources, is killed while it changes them, and finds them as they were.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass

from forelog.state import Enumeration, StateLog

RESOURCES = 100


@dataclass
class Resource:
    """All of a resource: as an event it means that there is one, or that there is another now."""

    id: int
    field: str


@dataclass
class Deleted:
    id: int


class Resources:
    """The program's resources, by their ids."""

    def __init__(self, path: str) -> None:
        self.all: dict[int, Resource] = {}
        self._lock = threading.Lock()
        self.log = StateLog(
            path, replay=self._replay, enumerate=self._enumerate, types=[Resource, Deleted], rotate_bytes=20_000
        )

    def create(self, resource: Resource) -> None:
        with self._lock:
            if resource.id in self.all:
                raise ValueError(f"there is a resource {resource.id} already")
            self.log.update(resource)  # write ahead ...
            self.all[resource.id] = resource  # ... then change

    def update(self, resource: Resource) -> None:
        with self._lock:
            if resource.id not in self.all:
                raise ValueError(f"there is no resource {resource.id} to update")
            self.log.update(resource)
            self.all[resource.id] = resource

    def delete(self, number: int) -> None:
        with self._lock:
            if number not in self.all:
                raise ValueError(f"there is no resource {number} to delete")
            self.log.update(Deleted(number))
            del self.all[number]

    def _replay(self, event: Resource | Deleted) -> None:
        if isinstance(event, Resource):
            self.all[event.id] = event
        else:
            self.all.pop(event.id, None)

    def _enumerate(self, log: Enumeration) -> None:
        with self._lock:  # what was logged a moment ago is in memory by now
            numbers = list(self.all)
        # A lock for one resource at a time: the program goes on meanwhile.
        for number in log.each(numbers):
            with self._lock:
                if number in self.all:
                    log.update(self.all[number])


def change_until_killed(path: str) -> None:
    """What the second run does: count every resource up, and say so, until somebody ends it."""
    resources = Resources(path)
    with resources.log:
        turn = 0
        while True:
            turn += 1
            for number in resources.all:
                resources.update(Resource(number, f"turn {turn}"))
                os.write(1, b"%d turn %d\n" % (number, turn))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/state"
        resources = Resources(path)
        with resources.log:
            for number in range(RESOURCES):
                resources.create(Resource(number, "new"))
            resources.delete(13)
            print(f"made {RESOURCES} resources, deleted one: {len(resources.all)} are there")

        command = [sys.executable, "-m", "examples.resources", path]
        said: dict[int, str] = {}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as changing:
            assert changing.stdout is not None
            for line in changing.stdout:
                if line.endswith("\n"):  # the last one may be cut
                    word, _, turn = line.strip().partition(" ")
                    said[int(word)] = turn
                    if turn == "turn 50":
                        changing.kill()
        print(f"kill -9, in {said[0]}")

        resources = Resources(path)
        with resources.log:
            stats = resources.log.stats()
            wrong = [number for number, turn in said.items() if not as_said(resources.all[number].field, turn)]
            print(f"generation {stats.generation}: {stats.restored} events replayed")
            print(f"{len(resources.all)} resources are there, {len(wrong)} are not as they were")


def as_said(found: str, said: str) -> bool:
    """Whether a resource is as it was said to be, or in the turn after it, which could no more be said."""
    return found == said or found == f"turn {int(said.split()[1]) + 1}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        change_until_killed(sys.argv[1])
    else:
        main()
