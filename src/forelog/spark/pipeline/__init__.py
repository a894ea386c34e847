"""The pipeline over logs: functions on data frames, and the command `forelog pipeline` on top of them.

tables.py    reading what the others need, and no more
jobs.py      the life of every job of a command log, per queue, and what is stuck or poisoned
replay.py    the state as of a position or time: jobs, or the latest record of each key
stats.py     rates, sizes, gaps, duplicates
verify.py    every checksum of a fleet of logs
clean.py     what may be forgotten, decided in Spark, applied by the engine
report.py    tables and plots as one HTML file
failures.py  what went wrong, found in what Spark tells

ingest.py    a log to a table, each row exactly once, with ingest_*.py
"""
