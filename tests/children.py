"""Processes that a test starts and waits for."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed if the test fails: `with Popen` alone waits for it, for ever if it serves."""
    with subprocess.Popen(command, **{"text": True, **options}) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
