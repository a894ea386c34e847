"""Tables of Parquet files that grow by commits, and how Delta and Iceberg know them.

commits.py         a commit, and the state of a table as its commits say
format.py          what a table needs of a table format
parquet.py         no format but the files
delta.py           commits as versions of a Delta table
iceberg.py         commits as snapshots of an Iceberg table
iceberg_files.py   Iceberg's own files, synced
formats.py         a format by its name
table.py           Table: a commit, step by step
"""
