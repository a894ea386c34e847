"""The module `_reached`, where it was built.

The compiled modules note in it what they reach. It has to be loaded before them: import this before forelog.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def _load() -> Any:
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)  # its table is visible to them
    try:
        import _reached  # type: ignore[import-not-found]
    except ImportError:
        return None
    finally:
        sys.setdlopenflags(flags)
    return _reached


REACHED = _load()
