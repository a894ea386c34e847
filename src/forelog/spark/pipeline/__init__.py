"""The pipeline over logs: functions on data frames, and the command `forelog pipeline` on top of them.

input.py          reading only the columns that the others need
jobs.py           the life of every job of a command log, per queue, and stuck or poisoned jobs
replay.py         the state as of a position or time: jobs, or the latest record of each key
stats.py          rates, sizes, gaps, duplicates
verify.py         every checksum of many logs
clean.py          what can be removed: decided in Spark, removed by the engine
report.py         tables and plots as one HTML file
failures.py       the error of forelog in what Spark reports
ingest_plan.py    what an ingest reads next
ingest_files.py   records to Parquet files
ingest_run.py     running the tasks of an ingest, here or on Spark
ingest.py         a log to a table, each row exactly once
"""
