"""Logs as Spark tables, in batch and in streaming.

from forelog import spark as forelog_spark

spark = forelog_spark.session()                       # or forelog_spark.register(your_session)
spark.read.format("forelog").load("orders.log").show()

options.py      the options of readers and writers, checked
remote.py       reading logs on other file systems, through fsspec
planning.py     which logs there are, and how they are cut into tasks; without Spark
ranges.py       which part of a table the filters of a query leave
pruning.py      which segments that needs, and which parts of them
totals.py       what indexes tell of whole segments: how many rows, and the least and greatest time
tasks.py        the tasks of a query, and what Java has to know of them
continuity.py   whether a reader that resumes has missed nothing
lag.py          how far a reader is behind the end of a log
codecs.py       the columns of records, and those that each kind of payload adds
events.py       the events of a state log as rows
texts.py        ids, tags and units of datapoints as texts
types.py        Spark's types and Arrow's
slices.py       the rows of a slice, and of its defects; without Spark
batch.py        reading logs as tables
stream.py       reading logs as streams
writer.py       data frames to logs
source.py       the data source `forelog`, which Spark calls
java.py         which Java there is
columnar.py     the part of the source that runs in Java
daemon.py       the process that starts the Python workers of a local session
workers.py      settings of the Python workers
session.py      a well-configured local session; registering the source with any session
cluster.py      what executors of a cluster need, as an archive and settings
package.py      the package as a zip, for executors that don't have it
tables/         tables of Parquet files that grow by commits, also as Delta and Iceberg tables
pipeline/       ingest, verify, replay, jobs, stats and clean on Spark
"""

from forelog.spark.cluster import cluster_conf, environment_archive
from forelog.spark.codecs import Codec, codec_names, register_codec
from forelog.spark.columnar import columnar_jar
from forelog.spark.session import register, session

__all__ = [
    "Codec",
    "cluster_conf",
    "codec_names",
    "columnar_jar",
    "environment_archive",
    "register",
    "register_codec",
    "session",
]
