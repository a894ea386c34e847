"""The commands in the records of a job server's command log, and the notes in the log beside it.

commands.py   the eight commands, from and to bytes
fields.py     the fields of a command, from bytes and to bytes
columns.py    commands as Arrow columns
notes.py      notes: what the commands of workq have no word for
"""
