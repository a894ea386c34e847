"""A filesystem that is too small: a tmpfs in a mount namespace of its own.

Nothing has to be unmounted: the namespace ends with the last process in it. All of a run is in there, its readers
too, or they wouldn't see the log.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path


@cache
def can_mount() -> bool:
    """Whether a tmpfs can be had here."""
    return shutil.which("unshare") is not None and (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
        == 0
    )


def in_a_room(command: list[str], folder: Path, size_bytes: int) -> list[str]:
    """A command, to be run where `folder` has no more room than that."""
    mount = f"mount -t tmpfs -o size={size_bytes} none {shlex.quote(str(folder))}"
    return ["unshare", "-rm", "sh", "-c", f"{mount} && exec {shlex.join(command)}"]
