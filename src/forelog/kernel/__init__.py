"""The kernel that runs: the compiled one if it is there, else its plain-Python twin.

`FORELOG_KERNEL=python` or `=compiled` in the environment decides it by hand; asking for a compiled
kernel that isn't there is an error rather than a slow surprise.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING

from forelog.kernel import plain

_choice = os.environ.get("FORELOG_KERNEL", "auto")
if _choice not in ("auto", "python", "compiled"):
    raise ImportError(f"FORELOG_KERNEL is {_choice!r}: expected 'auto', 'python' or 'compiled'")


def _select() -> ModuleType:
    if _choice == "python":
        return plain
    try:
        from forelog.kernel import _kernel  # type: ignore[attr-defined]
    except ImportError:
        if _choice == "compiled":
            raise
        logging.getLogger("forelog").warning(
            "the compiled kernel is missing: using the plain-Python one, which gives the same results many "
            "times slower. Install a C compiler and then forelog again, or set FORELOG_KERNEL=python to say "
            "that this is intended."
        )
        return plain
    compiled: ModuleType = _kernel
    return compiled


if TYPE_CHECKING:
    active = plain
else:
    active = _select()
COMPILED: bool = active.COMPILED
