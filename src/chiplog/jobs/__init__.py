"""The job server: its memory is a command log.

The log
    commands.py     the eight commands, from and to bytes
    encoding.py     their fields
    columns.py      commands as Arrow columns
    reading.py      a command log, command by command
    replay.py       from commands to jobs

The rules
    limits.py       what a job may be
    wheel.py        timers by the million
    queue.py        jobs, and the queues in which they wait
    machine.py      what becomes of jobs
    loading.py      a block of a log into the machine

The server
    words.py        the words of a command line
    replies.py      answers, as bytes
    inspecting.py   what a client can look at
    protocol.py     a connection: bytes in, bytes out
    journal.py      the command log under the server
    cleaning.py     forgetting what no job needs
    server.py       sockets, turns, and what happens when the log can't be written

Modules with a .pxd file beside them are compiled, as they are, where there is a C compiler.
"""

from __future__ import annotations

import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

from chiplog import kernel

if not kernel.COMPILED:  # then nothing else that is compiled is used either
    _here = __path__[0]
    sys.path_importer_cache[_here] = FileFinder(_here, (SourceFileLoader, SOURCE_SUFFIXES))
