"""The command log of the job server.

    commandlog.py   the log under a server: opened, replayed, written, reopened after an error
    annex.py        the log beside it, for what workq's commands have no word for
    replay.py       from commands to jobs
    loader.py       blocks of a log into the machine, without an object for each command
    cleaner.py      drops what no job needs
    notecleaner.py  drops notes that nobody needs
    reader.py       a log, command by command

`loader` is compiled, with the types in its .pxd file.
"""
