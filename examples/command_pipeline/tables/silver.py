"""Silver: what the records say, a row for each command. Decoded batch by batch, no Python object per row."""

import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf
from pyspark.sql.types import StructType

from forelog.formats.commands.columns import COLUMNS, decode_batch
from forelog.spark.codecs import codec_of
from forelog.spark.types import ddl

spark = SparkSession.active()
told = StructType.fromDDL(ddl(codec_of("commands").columns, list(COLUMNS)))  # asked of Spark while it may be asked


@arrow_udf(told)
def decoded(payload: pa.Array) -> pa.Array:
    columns = decode_batch(payload)
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


@dp.table(comment="The commands, in columns")
def silver() -> DataFrame:
    bronze = spark.readStream.table("bronze")
    return bronze.select("segment", "offset", "time", decoded("payload").alias("told")).select(
        "segment", "offset", "time", "told.*"
    )
