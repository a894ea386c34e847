"""Write a server's log lines on a thread of their own.

The reader of these lines, such as a paused terminal, may be slow or not read at all. A server must not wait for
it. So lines beyond a bound are dropped. When there is room again, a line says how many.
"""

from __future__ import annotations

import logging
import queue
import threading

from forelog.serving.notices import one_line

LINES_MAX = 4096
CLOSE_SECONDS = 2.0


class OneLine(logging.Formatter):
    """Formats a message as one line, whatever it contains, so nobody can forge a second one. A traceback
    follows below."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = one_line(record.message)
        return super().formatMessage(record)


class Aside(logging.Handler):
    """Hands records to another handler, on a thread."""

    def __init__(self, handler: logging.Handler, *, lines_max: int = LINES_MAX) -> None:
        super().__init__()
        self._handler = handler
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(lines_max)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="forelog-lines", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self._lines.put_nowait(_told(self._dropped))
                self._dropped = 0
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write the lines that wait, as long as they are read."""
        try:
            self._lines.put(None, timeout=CLOSE_SECONDS)
            self._thread.join(CLOSE_SECONDS)
        except queue.Full:
            pass
        super().close()

    def _run(self) -> None:
        while (record := self._lines.get()) is not None:
            self._handler.handle(record)


def _told(count: int) -> logging.LogRecord:
    text = "%d lines were dropped: their reader is too slow"
    return logging.LogRecord("forelog", logging.WARNING, __file__, 0, text, (count,), None)
