"""The filesystem: every file operation that matters after a crash goes through here.

protocol.py  what a log needs of a disk: File, Files, Lock, Shared, Watch
system.py    OSFiles: the disk of the operating system
locks.py     locks on files, which processes and threads take turns with
watches.py   noticing that a directory has changed
words.py     words that processes share through memory
modes.py     who may read and write the files of a log
forks.py     what a forked child must let go of

A test checks that no other module renames, removes or syncs files. Two things go past the protocol:

- The kernel writes what is appended to `File.descriptor()` by itself, with the same write(2) that `File.write` is,
  and treats short and failed writes alike. `CrashDisk` has no descriptors (-1), so there every append is a call of
  `File.write`, with the same code around it. Syncs, cuts and renames always come through here.
- Words of an open `Shared` are stored in memory. Nothing relies on them after a power loss.

Caches, temporary folders, and the files that Spark and its table formats write don't go through here. Before a
log or a table relies on one of these files, `sync_file` syncs it.
"""

from forelog.files.protocol import (
    BLOCK_BYTES,
    File,
    Files,
    Lock,
    Shared,
    Watch,
    built_beside,
    in_the_way,
    removed_on_failure,
    replace_file,
    sync_file,
    write_all,
)
from forelog.files.system import OSFile, OSFiles, disk

__all__ = [
    "BLOCK_BYTES",
    "File",
    "Files",
    "Lock",
    "OSFile",
    "OSFiles",
    "Shared",
    "Watch",
    "built_beside",
    "disk",
    "in_the_way",
    "removed_on_failure",
    "replace_file",
    "sync_file",
    "write_all",
]
