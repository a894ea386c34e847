"""Find out what is in a directory, so that nothing starts a log inside something else.

Each face looks for files of its own only. Without this check, a job server that is started in a broker's
directory would begin a second log there, and a reader would find one or the other. So every face asks here
before it creates anything:

::

    orders.log/   000000001.log ...                a log; its magic number says whose
    bus/          messages/  sessions/             a broker
    metrics/      commitlogs/commitlog-0-0.db      a commit log in M3's format
    copy/         identity  a/  b/                 the copies of a state log
    copies/       bank/identity  bank/a/ ...       the folder of a replica server
    bucket/       manifest-...json  segments/      a copy of a state log, as objects
    orders/       _forelog/commits/                a table that was ingested from logs
    out/          batch-.../part-...               logs that Spark has written

>>> import forelog, tempfile
>>> from forelog.files import OSFiles
>>> place = tempfile.mkdtemp()
>>> tenant_of(OSFiles(), place) is None
True
>>> forelog.Stream(place).appender().close()
>>> tenant_of(OSFiles(), place).what
'a log of records'
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from forelog.errors import LogNotFound, UnknownFormat
from forelog.files import Files
from forelog.formats import FORMATS, Format, named_format
from forelog.formats.captain import MAGIC, VERSION
from forelog.formats.state import MAGIC as STATE_MAGIC
from forelog.log.directory.directory import Directory
from forelog.log.directory.place import if_there, read_exactly

Kind = Literal["log", "broker", "m3", "copies", "slot", "replica", "objects", "table", "batches"]

JOBS_MAGIC = 0x77717771  # "wqwq": forelog.jobs
ANNEX_MAGIC = 0x7771616E  # "wqan": what forelog.jobs has beyond workq
_SLOTS = ("a", "b")
_NAMES_LOOKED_AT = 100
_HEADERS_LOOKED_AT = 16


class Tenant(NamedTuple):
    """What is in a directory."""

    kind: Kind
    """The kind of tenant, for a program."""
    what: str
    """The kind in words: `a state log`."""
    use: str
    """What a user should do with the directory."""


_KNOWN = {
    "broker": Tenant("broker", "a broker's directory", "serve it with `forelog broker serve` or Broker"),
    "m3": Tenant("m3", "a commit log in M3's format", "open it with CommitLog.open"),
    "copies": Tenant("copies", "a folder of copies of a state log", "open it with StateLog(promote=True)"),
    "slot": Tenant("slot", "a place for one of the copies of a state log", "open the folder that it is in"),
    "replica": Tenant("replica", "a replica server's folder", "serve it with `forelog replica serve`"),
    "objects": Tenant("objects", "a copy of a state log as objects", "get it with forelog.state.restoration"),
    "table": Tenant("table", "a table that was ingested from logs", "go on with `forelog pipeline ingest`"),
    "batches": Tenant("batches", "a folder of logs that Spark has written", 'read it with the option "recursive"'),
}


def tenant_of(files: Files, path: str) -> Tenant | None:
    """What is in a directory; None if there is nothing that forelog knows, or no directory."""
    names = _names(files, path)
    if names is None:
        return None
    found = log_of(files, path)
    if found is None:
        kind = _kind_by_folders(files, path, names)
        found = None if kind is None else _KNOWN[kind]
    if found is None and _is_slot(files, path):
        return _KNOWN["slot"]
    return found


def log_of(files: Files, path: str) -> Tenant | None:
    """The log whose segments are in a directory, if there is one."""
    for name in FORMATS:
        directory = Directory(files, path, named_format(name))
        try:
            numbers = directory.numbers()
        except LogNotFound:
            return None
        if numbers and directory.format.signature:
            return _signed_log(directory, numbers)
        if numbers:
            what = f"a log of {name}" if name == "messages" else f"a log in {name.upper()}'s format"
            return Tenant("log", what, f'open it with Stream(..., format="{name}")')
    return None


def _signed_log(directory: Directory, numbers: list[int]) -> Tenant:
    """A log whose segments have headers, by the first complete header."""
    for number in numbers[:_HEADERS_LOOKED_AT]:
        with if_there(directory.open_segment, number) as file:
            head = b"" if file is None else read_exactly(file, directory.format.header_bytes, 0)
        if len(head) == directory.format.header_bytes and any(head):
            return described(directory.format.of_header(head))
    return described(directory.format)


def described(fmt: Format) -> Tenant:
    """A log of records with this format's magic number and version."""
    magic, version = fmt.signature or (MAGIC, VERSION)
    if magic == STATE_MAGIC:
        return Tenant("log", "a state log", "open it with StateLog or PersistentDict")
    if magic == JOBS_MAGIC:
        return Tenant("log", "the command log of a job server", "serve it with `forelog jobs serve`")
    if magic == ANNEX_MAGIC:
        return Tenant(
            "log", "the annex of a command log", "serve the folder that it is in with `forelog jobs serve`"
        )
    if (magic, version) == (MAGIC, VERSION):
        return Tenant("log", "a log of records", "open it with Stream")
    what = f"a log with magic {magic:#010x} and version {version}"
    return Tenant("log", what, "open it with Stream.open")


def refuse_others(files: Files, path: str, mine: str, *, kind: Kind = "log", fmt: Format | None = None) -> None:
    """Raise UnknownFormat if something is at `path` other than `mine`, which is about to be created there.

    `kind` is the kind of `mine`. A log of the format `fmt` is allowed: opening it shows whether it is the right
    one.
    """
    try:
        if fmt is not None and Directory(files, path, fmt).numbers():
            return
    except LogNotFound:
        return
    found = tenant_of(files, path)
    if found is not None and (found.kind != kind or kind == "log"):
        raise UnknownFormat(
            f"{path} is {found.what}, and {mine} would begin beside it: {found.use}, or choose another directory"
        )


def what_it_is(directory: Directory) -> str:
    """A sentence about a log whose header isn't the expected one; empty if that header is only damaged."""
    found = log_of(directory.files, directory.path)
    own = described(directory.format) if directory.format.signature else None
    return "" if found is None or found == own else f". It is {found.what}: {found.use}"


def _names(files: Files, path: str) -> list[str] | None:
    try:
        return files.list_dir(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kind_by_folders(files: Files, path: str, names: list[str]) -> Kind | None:
    """What is in a directory, by the folders inside it."""
    if _has_log(files, f"{path}/messages", named_format("messages")) and _has_log(
        files, f"{path}/sessions", named_format(magic=STATE_MAGIC)
    ):
        return "broker"
    m3 = named_format("m3")
    if _has_log(files, f"{path}/{m3.folder}", m3):
        return "m3"
    if _has_copies(files, path):
        return "copies"
    if any(name.startswith("manifest-") for name in names) and _names(files, f"{path}/segments") is not None:
        return "objects"
    if _names(files, f"{path}/_forelog/commits") is not None:
        return "table"
    looked_at = sorted(names)[:_NAMES_LOOKED_AT]
    if any(name.startswith("batch-") and _has_parts(files, f"{path}/{name}") for name in looked_at):
        return "batches"
    return "replica" if any(_has_copies(files, f"{path}/{name}") for name in looked_at) else None


def _has_log(files: Files, path: str, fmt: Format) -> bool:
    try:
        return bool(Directory(files, path, fmt).numbers())
    except LogNotFound:
        return False


def _has_copies(files: Files, path: str) -> bool:
    if "identity" not in (_names(files, path) or ()):
        return False
    return any(_names(files, f"{path}/{slot}") is not None for slot in _SLOTS)


def _has_parts(files: Files, path: str) -> bool:
    return any(name.startswith("part-") or "=" in name for name in _names(files, path) or ())


def _is_slot(files: Files, path: str) -> bool:
    parent, name = os.path.split(path.rstrip("/"))
    return name in _SLOTS and _has_copies(files, parent or ".")
