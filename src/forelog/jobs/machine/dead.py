"""Dead letters: jobs that failed for good, and jobs that expired without being completed.

A job that failed is here until its ttl is over. Then, like a job that expired, it becomes a letter, which is
kept for a time, and as long as all letters have room.
"""

from __future__ import annotations

from dataclasses import dataclass

from forelog.formats.commands import commands, notes
from forelog.formats.commands.commands import Add, Schedule
from forelog.jobs.machine.ordered import Ordered
from forelog.jobs.machine.queue import Job

KEEP_MS = 7 * 24 * 3600 * 1000
LETTERS_BYTES_MAX = 64 << 20
_LETTER_BYTES = 700  # memory of a letter, besides its bytes
_MS_NS = 1_000_000


@dataclass(slots=True, eq=False)
class Letter:
    """A job that is gone."""

    id: bytes
    name: bytes
    died_ns: int
    reason: bytes
    error: bytes
    attempts: int
    fails: int
    words: bytes
    """The flags beyond workq's that it was added with."""
    add: bytes
    """The add or schedule of the job, as the command log had it."""

    def job(self) -> Add | Schedule:
        """What was to be done."""
        found = commands.decode(self.add)
        assert isinstance(found, Add | Schedule)
        return found

    def memory_bytes(self) -> int:
        """About how many bytes it takes in memory."""
        return _LETTER_BYTES + len(self.add) + len(self.error) + len(self.words)

    def note(self) -> bytes:
        """As the annex has it."""
        return notes.encode(
            notes.Letter(
                self.id,
                self.died_ns,
                self.reason,
                self.error,
                self.attempts,
                self.fails,
                self.words,
                self.add,
            )
        )


def letter_of(note: notes.Letter) -> Letter:
    """The letter that a note holds."""
    add = commands.decode(note.add)
    name = add.name.encode("utf-8", "surrogateescape") if isinstance(add, Add | Schedule) else b""
    return Letter(
        note.id, name, note.died_ns, note.reason, note.error, note.attempts, note.fails, note.words, note.add
    )


Entry = Job | Letter


def died_ns(entry: Entry) -> int:
    """When it failed, or expired."""
    return entry.done_ns if isinstance(entry, Job) else entry.died_ns


def _latest_first(entry: Entry) -> tuple[int, bytes]:
    return -died_ns(entry), entry.id


class Dead:
    """All that failed for good, latest first, in all queues and in each."""

    def __init__(self) -> None:
        self.keep_ns = KEEP_MS * _MS_NS
        """How long letters are kept; 0 for not at all."""
        self.bytes_max = LETTERS_BYTES_MAX
        self.letters: dict[bytes, Letter] = {}
        """By id, oldest first."""
        self.letters_bytes = 0
        self._entries: dict[bytes, Entry] = {}
        self._all: Ordered[Entry] = Ordered(_latest_first)
        self._of: dict[bytes, Ordered[Entry]] = {}
        self._counts: dict[bytes, int] = {}

    def get(self, job_id: bytes) -> Entry | None:
        """What has this id."""
        return self._entries.get(job_id)

    def count(self, name: bytes) -> int:
        """How many a queue has."""
        return self._counts.get(name, 0)

    def some(self, name: bytes | None, offset: int, limit: int) -> list[Entry]:
        """A slice of a queue's, or of all: latest first."""
        entries = self._all if name is None else self._of.get(name)
        return [] if entries is None else entries.some(offset, limit)

    def add(self, entry: Entry) -> None:
        """Put in a job that failed, or a letter. An earlier one of the same id goes."""
        self.remove(entry.id)
        self._entries[entry.id] = entry
        self._all.add(entry)
        of = self._of.get(entry.name)
        if of is None:
            of = self._of[entry.name] = Ordered(_latest_first)
        of.add(entry)
        self._counts[entry.name] = self._counts.get(entry.name, 0) + 1
        if isinstance(entry, Letter):
            self.letters[entry.id] = entry
            self.letters_bytes += entry.memory_bytes()
            while self.letters_bytes > self.bytes_max:
                self.remove(next(iter(self.letters)))

    def remove(self, job_id: bytes) -> Entry | None:
        """Take out what has this id, if anything has."""
        entry = self._entries.pop(job_id, None)
        if entry is None:
            return None
        self._all.remove(entry)
        self._of[entry.name].remove(entry)
        self._counts[entry.name] -= 1
        if not self._counts[entry.name]:
            del self._counts[entry.name], self._of[entry.name]
        if isinstance(entry, Letter):
            del self.letters[entry.id]
            self.letters_bytes -= entry.memory_bytes()
        return entry

    def forget(self, now_ns: int, limit: int) -> None:
        """Drop letters that were kept long enough, up to `limit`."""
        while limit > 0 and self.letters:
            oldest = next(iter(self.letters.values()))
            if now_ns < oldest.died_ns + self.keep_ns:
                return
            self.remove(oldest.id)
            limit -= 1
