"""Gold: how long jobs wait and run, per queue. Computed anew by each run, from all commands."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from forelog.spark.pipeline.jobs import jobs, queue_stats

spark = SparkSession.active()


@dp.temporary_view
def commands() -> DataFrame:
    """A name that isn't there before the run: Spark looks up one that is while gold is being defined, takes it for
    a table of somebody else's, and doesn't wait for silver."""
    return spark.read.table("silver")


@dp.materialized_view(comment="Latencies per queue")
def gold() -> DataFrame:
    return queue_stats(jobs(spark.read.table("commands"), by_log=False), by_log=False)
