"""What the records of a job server's command log say.

commands.py   the eight commands, from and to bytes
encoding.py   the fields of a command as bytes
columns.py    commands as Arrow columns
"""
