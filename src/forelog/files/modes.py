"""Who may read and write the files of a log.

A new log belongs to its user alone: its directories have the mode 0700 and its files 0600. A `mode` changes
that. It is the mode of files. Directories also get the right to enter, for everyone who may read or write the
files. The process's umask can take rights away, and never adds any.

An existing log keeps its mode. New files in it get the mode of its `read.lock`; without one, the rights that
all other files there have. So `chmod -R g+rX LOG` opens a log to its group, new files included.

What root makes in a directory of somebody else belongs to that user: a check by root must not lock the owner out.

>>> oct(directory_mode(0o600)), oct(directory_mode(0o640)), oct(directory_mode(0o666))
('0o700', '0o750', '0o777')
>>> check_mode(0o200)
Traceback (most recent call last):
ValueError: mode is 0o200: expected that of a file that its owner may read and write, such as 0o600 or 0o640
"""

from __future__ import annotations

import contextlib
import os
import stat

PRIVATE = 0o600
"""Files that only their user may read and write."""
SHARED_BY_READERS = "read.lock"
"""The file that every reader opens. New files of the log get its mode."""
_RIGHTS = 0o666
_OWNER = 0o600
_ATTEMPTS = 16  # another process may make or remove the file at the same moment


def check_mode(mode: object) -> int:
    """Return a mode that the files of a log can have, or raise ValueError."""
    if not isinstance(mode, int) or isinstance(mode, bool) or mode & ~_RIGHTS or mode & _OWNER != _OWNER:
        shown = f"{mode:#o}" if isinstance(mode, int) and not isinstance(mode, bool) else repr(mode)
        raise ValueError(
            f"mode is {shown}: expected that of a file that its owner may read and write, such as 0o600 or 0o640"
        )
    return mode


def directory_mode(mode: int) -> int:
    """The mode of a directory whose files have this mode."""
    return mode | (mode & 0o444) >> 2 | (mode & 0o222) >> 1


def mode_like(directory: str, otherwise: int = PRIVATE) -> int:
    """A mode for files with the same rights as a directory; `otherwise` if there is no such directory."""
    try:
        return os.stat(directory).st_mode & _RIGHTS | _OWNER
    except FileNotFoundError:
        return otherwise


def make_directory(path: str, mode: int) -> None:
    """Create a directory for files of this mode. Raises FileExistsError if something is there."""
    os.mkdir(path, directory_mode(mode))


def open_or_create(path: str, flags: int, mode: int) -> int:
    """Open a file, or create it with the mode of its log, or with `mode` if it is the log's first file."""
    for _ in range(_ATTEMPTS):
        try:
            return os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            # Exclusively: what a name leads to elsewhere is neither made nor given away.
            with contextlib.suppress(FileExistsError):
                return _create(path, flags, mode)
    return os.open(path, flags | os.O_CLOEXEC)


def _create(path: str, flags: int, mode: int) -> int:
    folder = os.path.dirname(path) or "."
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _mode_in(folder, mode))
    try:
        if os.geteuid() == 0 and (owner := os.stat(folder)).st_uid != 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mode_in(folder: str, mode: int) -> int:
    """The mode of the log in a directory, or the given one if there is none yet."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(f"{folder}/{SHARED_BY_READERS}").st_mode & _RIGHTS | _OWNER
    found = _RIGHTS
    alone = True
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found, alone = found & status.st_mode, False
    return mode if alone else found | _OWNER
