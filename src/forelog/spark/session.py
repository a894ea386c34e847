"""A Spark session for logs."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forelog.errors import MissingExtra
from forelog.spark.columnar import columnar_jar
from forelog.spark.java import java_home
from forelog.spark.workers import workers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": "8",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_CATALOG = "spark.sql.catalog.forelog"

_LOG4J = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.util.name = org.apache.spark.util
logger.util.level = error
"""


def session(
    master: str = "local[*,4]",
    *,
    app_name: str = "forelog",
    columnar: bool = True,
    **config: str | int | float | bool,
) -> SparkSession:
    """Start a local session that logs only errors, retries tasks, and has the source `forelog`.

    `config` are more settings, with underscores for dots: `spark_driver_memory="4g"`. If there is a session
    already, it is returned, with only those settings changed that still can be. With `columnar=False`, Python
    alone reads logs, row by row, as in a session without the jar of `columnar_jar()`.
    """
    builder = _load_pyspark().builder.master(master).appName(app_name)
    home = java_home()
    if home is not None:
        os.environ["JAVA_HOME"] = home
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    python, near = workers_of(master)
    settings = {**_QUIET, **near, **{name.replace("_", "."): str(value) for name, value in config.items()}}
    settings.setdefault(
        "spark.driver.extraJavaOptions", f"-XX:+UseParallelGC -Dlog4j2.configurationFile={_log4j_file()}"
    )
    jar = columnar_jar() if columnar else None
    if jar is not None:
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), jar]))
    for name, value in settings.items():
        builder = builder.config(name, value)
    # Both are read once, when Spark starts.
    with _environment(
        PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=os.environ.get("PYSPARK_DRIVER_PYTHON", python)
    ):
        spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return register(spark)


def register(spark: SparkSession) -> SparkSession:
    """Register the source `forelog` with a session, a classic one or one of Spark Connect.

    In a session that has the jar of `columnar_jar()`, the part in Java has the name already.
    """
    from forelog.spark.source import ForelogDataSource, ForelogPythonSource

    try:
        spark.dataSource.register(ForelogDataSource)
    except Exception as error:  # its class is another one in Spark Connect
        if getattr(error, "getCondition", str)() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        spark.dataSource.register(ForelogPythonSource)
        _name_logs_in_sql(spark)
    return spark


def _name_logs_in_sql(spark: SparkSession) -> None:
    """Let SQL read a log by its path: ``SELECT * FROM forelog.`/logs/orders.log` ``."""
    if spark.conf.get(_CATALOG, None) is None:  # else the user has a catalog of this name
        spark.conf.set(_CATALOG, "forelog.spark.ForelogCatalog")


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _load_pyspark() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra.needed("pyspark", by="forelog.spark", extra="spark") from error
    return SparkSession


@functools.cache
def _log4j_file() -> str:
    """Without this file Spark logs warnings while it starts, before a level can be set."""
    # In a private directory: nobody else can write a file there that configures Spark.
    folder = tempfile.mkdtemp(prefix="forelog-log4j2-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "log4j2.properties"
    path.write_text(_LOG4J)
    return str(path)
