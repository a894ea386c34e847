"""Drops from an annex what nobody needs, while the server writes it.

A run drops notes of jobs that are gone, notes that a later one has replaced, and the notes of turns that don't
count. It goes from the oldest segment to the latest, so a note is gone before the one that takes it back. It is
due once the annex has more than twice the bytes that the last run left, and SLACK_BYTES. The current segment is
finished first, if it has at least ROLL_BYTES. So the annex takes at most

    2 x (bytes of the notes that were needed at the last run) + SLACK_BYTES + ROLL_BYTES
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forelog.errors import BadCommand, ForelogError, LockTimeout
from forelog.formats.commands.notes import Turn, Verdict, decode
from forelog.jobs.log.annex import Annex
from forelog.jobs.machine.notebook import Notebook, Standing
from forelog.log.cleaner import CleanReport
from forelog.log.position import Position, Record

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("forelog")

SLACK_BYTES = 1 << 20
"""Useless bytes that an annex may have, beyond half of its size."""
ROLL_BYTES = 1 << 20
"""The size from which the current segment is finished early, so that it can be cleaned."""


class NoteCleaner:
    """Cleans the annex of a server: `prepare` on the event loop, then `clean` on a thread."""

    def __init__(self, annex: Annex, notebook: Notebook) -> None:
        self._annex = annex
        self._notebook = notebook
        self._left_bytes = 0
        self._standing: Standing | None = None
        self._dropped: list[tuple[Position, Position]] = []

    def prepare(self) -> bool:
        """Note what is needed now, while nothing is being written. Returns whether a run is due."""
        annex = self._annex
        if not annex.exists:
            return False
        end = annex.stream.end()
        sizes = [annex.stream.segment_bytes(number) or 0 for number in annex.stream.numbers()]
        if sum(sizes) <= 2 * self._left_bytes + SLACK_BYTES:
            return False
        if end.offset >= ROLL_BYTES:
            annex.roll()
        self._standing = self._notebook.standing(annex.stream.now_ns())
        self._dropped = list(annex.dropped)
        return True

    def clean(self) -> CleanReport | None:
        """Clean once. Returns None if the annex is being read, or can't be cleaned; that is logged."""
        try:
            with self._annex.stream.cleaner(timeout=0) as cleaner:
                report = cleaner.clean(self._forget(), on_corruption="skip")
        except LockTimeout:
            logger.info("the annex is being read: it will be cleaned later")
            return None
        except (OSError, ForelogError) as error:
            logger.error("the annex couldn't be cleaned: %s", error)
            return None
        numbers = self._annex.stream.numbers()
        self._left_bytes = sum(self._annex.stream.segment_bytes(number) or 0 for number in numbers)
        return report

    def _forget(self) -> Callable[[str, Record], bool]:
        standing, dropped, last = self._standing, self._dropped, self._annex.number
        assert standing is not None

        def forget(path: str, record: Record) -> bool:  # noqa: ARG001
            try:
                note = decode(bytes(record.payload))
            except BadCommand:
                return False
            if isinstance(note, Turn | Verdict):
                return note.number != last
            counts = not any(first <= record.position <= end for first, end in dropped)
            return not counts or not self._notebook.needs(note, standing)

        return forget
