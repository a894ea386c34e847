"""The job server: its memory is a command log.

commands.py   the eight commands, from and to bytes
columns.py    the same as Arrow columns
reading.py    a command log, command by command
limits.py     what a job may be
replay.py     from commands to jobs
"""
