"""A program that uses forelog's part for Spark. Type checkers must refuse the lines marked `error:` alone."""

from __future__ import annotations

from forelog import spark as forelog_spark
from forelog.spark import (
    session,
)


def names_that_are_misspelt() -> None:
    from forelog.spark import regster  # error: regster


def options_are_checked() -> None:
    forelog_spark.register(session("local[2]", app_name="orders", spark_driver_memory="4g"))
    session(columnar="yes", spark_driver_memory=[])  # error: "columnar" | "list
    forelog_spark.sesion()  # error: sesion
