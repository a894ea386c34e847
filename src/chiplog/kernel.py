"""The kernel that runs: the compiled one if it is there, else its plain-Python twin.

`CHIPLOG_KERNEL=python` or `=compiled` in the environment decides it by hand; asking for a compiled
kernel that isn't there is an error rather than a slow surprise.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType
from typing import TYPE_CHECKING

from chiplog import _kernel_py

_choice = os.environ.get("CHIPLOG_KERNEL", "auto")
if _choice not in ("auto", "python", "compiled"):
    raise ImportError(f"CHIPLOG_KERNEL is {_choice!r}: expected 'auto', 'python' or 'compiled'")


def _select() -> ModuleType:
    if _choice == "python":
        return _kernel_py
    try:
        from chiplog import _kernel
    except ImportError:
        if _choice == "compiled":
            raise
        logging.getLogger("chiplog").warning(
            "the compiled kernel is missing: using the plain-Python one, which gives the same results many "
            "times slower. Install a C compiler and then chiplog again, or set CHIPLOG_KERNEL=python to say "
            "that this is intended."
        )
        return _kernel_py
    compiled: ModuleType = _kernel
    return compiled


if TYPE_CHECKING:
    active = _kernel_py
else:
    active = _select()
COMPILED: bool = active.COMPILED
