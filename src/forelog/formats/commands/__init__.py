"""The commands in the records of a job server's command log.

commands.py   the eight commands, from and to bytes
fields.py     the fields of a command, from bytes and to bytes
columns.py    commands as Arrow columns
"""
