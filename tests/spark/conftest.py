"""One Spark session for all tests."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")


@pytest.fixture(scope="session")
def spark():
    from forelog.spark import session

    spark = session("local[2,2]", spark_sql_shuffle_partitions=2)
    yield spark
    spark.stop()


@pytest.fixture
def read(spark):
    """A log as a data frame."""

    def load(path, schema: str | None = None, **options: object):
        reader = spark.read.format("forelog").options(**{name: str(value) for name, value in options.items()})
        return (reader.schema(schema) if schema else reader).load(str(path))

    return load
