"""The filesystem: every file operation that matters after a crash goes through here.

protocol.py  what a log needs of a disk: File, Files, Lock, Shared, Watch
system.py    OSFiles: the disk of the operating system
locks.py     locks on files, which processes and threads take turns with
watches.py   noticing that a directory has changed
words.py     words that processes share through memory
modes.py     who may read and write the files of a log
forks.py     what a forked child must let go of
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
    "write_all",
]
