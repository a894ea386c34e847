"""All histories and all kinds of readers. Those of the faces are imported when they are first asked for."""

from __future__ import annotations

from forelog.testing import histories as _histories  # noqa: F401 - it registers them
from forelog.testing import readers as _readers  # noqa: F401
from forelog.testing import registry
from forelog.testing.registry import Reader
from forelog.testing.writer import History


def all_histories() -> dict[str, History]:
    """Every short history, by name."""
    from forelog.testing import histories_of_faces  # noqa: F401 - it takes a while

    return dict(registry.histories)


def all_readers() -> dict[str, Reader]:
    """Every kind of reader, by name."""
    from forelog.testing import readers_of_faces  # noqa: F401 - it takes a while

    return dict(registry.readers)
