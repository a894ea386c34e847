"""The writer that has no company: the oracle for `log/alone.pxi`."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from tests.kernel.oracle.append import AppendCore
from tests.kernel.oracle.figures import Distribution
from tests.kernel.oracle.queue import BoundedQueue


class LoneWriter:
    def __init__(
        self,
        core: AppendCore,
        queue: BoundedQueue,
        among: Callable[[Any], Any],
        timing: Distribution,
        sizes: Distribution | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        self._core, self._queue, self._among = core, queue, among
        self._timing, self._sizes, self._failed = timing, sizes, failed

    def append(self, payload: Any) -> Any:
        found = self._alone(self._core.append_synced, payload, 1)
        return self._among(payload) if found is None else found

    def append_many(self, payloads: Sequence[Any]) -> tuple[int, int, array[int]] | None:
        found: tuple[int, int, array[int]] | None
        found = self._alone(self._core.append_many_synced, payloads, len(payloads))
        return found

    def _alone(self, append: Callable[[Any], Any], given: Any, count: int) -> Any:
        if not self._queue.lead_alone():
            return None
        begun = time.monotonic()
        try:
            found = append(given)
        except Exception as error:
            if self._failed is not None:
                self._failed(error)
            raise
        finally:
            self._queue.pass_on()
        if found is not None:
            self._timing.add(time.monotonic() - begun)
            if self._sizes is not None:
                self._sizes.add(count)
        return found
