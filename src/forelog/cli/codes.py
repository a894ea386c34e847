"""Exit codes, and the code and the line for each error."""

from __future__ import annotations

import errno

from forelog.errors import (
    BadAccessFile,
    BadPosition,
    BadReply,
    BadTokens,
    BatchFailed,
    ConnectionLost,
    CorruptRecord,
    ForelogError,
    HeaderMismatch,
    JobNotFound,
    JobRefused,
    JobTimeout,
    LockTimeout,
    LogNotFound,
    MissingExtra,
    RecordTooLarge,
    TimeOutOfRange,
    UnknownFormat,
)

FINE = 0
PROBLEMS = 1
USAGE = 2
NO_LOG = 3
DAMAGE = 4
LOCKED = 5
IO = 6
REFUSED = 7
NO_SERVER = 8
UNEXPECTED = 70
INTERRUPTED = 130


class UsageError(ForelogError):
    """Options that don't go together."""


class InputError(ForelogError):
    """The standard input is invalid."""


class Refused(ForelogError):
    """A broker refuses the request."""


class NoServer(ForelogError):
    """No broker there, or the connection broke."""


_ERRORS: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((LogNotFound, UnknownFormat, JobNotFound), NO_LOG),
    ((CorruptRecord, HeaderMismatch), DAMAGE),
    ((LockTimeout, JobTimeout), LOCKED),
    ((JobRefused, Refused), REFUSED),
    ((ConnectionLost, BadReply, NoServer), NO_SERVER),
    ((BadAccessFile, BadPosition, BadTokens, TimeOutOfRange, RecordTooLarge, MissingExtra, UsageError), USAGE),
    ((ForelogError, OSError), IO),
)

_ADVICE = {
    errno.ENOSPC: "free some space there, then try again",
    errno.EDQUOT: "free some space there, then try again",
    errno.EACCES: "run it as a user who may",
    errno.EPERM: "run it as a user who may",
    errno.EROFS: "the filesystem is mounted read-only",
    errno.EIO: "the disk or its connection fails: see the system's log",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def explain(error: Exception) -> tuple[int, str]:
    """The exit code of an error, and a line that says what happened, where, and what to do."""
    if isinstance(error, BatchFailed):  # as bad as the first that failed
        first = next(outcome for outcome in error.outcomes if isinstance(outcome, Exception))
        return explain(first)[0], _line(error)
    for kinds, code in _ERRORS:
        if isinstance(error, kinds):
            return code, _line(error)
    return UNEXPECTED, f"{type(error).__name__}: {error}"


def _line(error: Exception) -> str:
    if not isinstance(error, OSError) or error.strerror is None:
        return " ".join(str(error).split())
    text = " ".join(error.strerror.split())
    if error.filename is not None:
        text = f"{error.filename}: {text}"
    advice = _ADVICE.get(error.errno or 0)
    return f"{text}. What to do: {advice}" if advice else text
