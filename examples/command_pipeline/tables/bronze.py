"""Bronze: the records of the log, as they are. Each run appends what is new since the one before."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from forelog.spark import register

spark = register(SparkSession.active())


@dp.table(comment="The records of the command log")
def bronze() -> DataFrame:
    return spark.readStream.format("forelog").load(spark.conf.get("command_log"))
