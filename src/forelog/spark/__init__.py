"""Logs as Spark tables, in batch and in streaming.

    from forelog import spark as forelog_spark

    spark = forelog_spark.session()                       # or forelog_spark.register(your_session)
    spark.read.format("forelog").load("orders.log").show()

What is where, each importing only from those before it:

    java.py       which Java there is
    columnar.py   the part of the source that runs in Java, for columns instead of rows
    daemon.py     what starts a local session's Python workers, quietly
    workers.py    how these are spoken to
    session.py    a quiet, well-configured local session; registering the source with any session
    options.py    what a reader or writer was asked for, checked
    remote.py     logs on other filesystems, through fsspec
    planning.py   which logs there are, and how they are cut into tasks; knows no Spark
    standing.py   where a reader stands, and whether what comes after is still there
    codecs.py     the columns of records, and what payloads add to them
    batch.py      reading, and the table of defects
    stream.py     reading what comes in
    writing.py    data frames to logs
    source.py     the data source, which is all of that to Spark
    shipping.py   the package for executors that don't have it
    pipeline/     what is done with logs on Spark: ingest, verify, replay, jobs, stats, clean
"""

from forelog.spark.codecs import Codec, codec_names, register_codec
from forelog.spark.columnar import columnar_jar
from forelog.spark.session import register, session

__all__ = ["Codec", "codec_names", "columnar_jar", "register", "register_codec", "session"]
