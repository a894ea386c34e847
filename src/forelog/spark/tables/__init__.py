"""Tables of Parquet files that grow by commits, in a folder or a bucket, and how Delta and Iceberg know them.

layout.py          the names of a table's own folders
commits.py         a commit, and the state of a table as its commits say
storage.py         what a table needs of the place where it is
folder.py          a folder
bucket.py          a bucket, by conditional writes
format.py          what a table needs of a table format
parquet.py         no format but the files
delta.py           commits as versions of a Delta table
iceberg.py         commits as snapshots of an Iceberg table
iceberg_files.py   Iceberg's own files, synced
formats.py         a format by its name
table.py           Table: a commit, step by step
"""
