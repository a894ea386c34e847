"""A spare segment without a thread, so that equal histories are equal: the writer that waits does its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forelog.log.directory.spare import Spare


class DrivenSpare(Spare):
    """A spare that works where it is waited for."""

    _pending = False

    def begin(self, work: Callable[[], None]) -> None:
        self._work, self._pending = work, True

    def wait_named(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self.drive()
        return True

    def wait_idle(self, timeout: float | None = None) -> bool:  # noqa: ARG002
        self.drive()
        return True

    def take(self) -> Any:
        self.drive()
        return super().take()

    @property
    def named(self) -> bool:
        return not self._pending

    def close(self) -> None:
        self.drive()
        super().close()

    def drive(self) -> None:
        """Do the work that is pending, if any."""
        if self._pending and self._work is not None:
            self._pending = False
            self._work()
            self._file = self._make()
