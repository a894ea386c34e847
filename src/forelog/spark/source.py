"""The data source `forelog`, as Spark knows it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from forelog.errors import BadOption
from forelog.spark.batch import ForelogReader
from forelog.spark.options import ReadOptions, read_options, write_options
from forelog.spark.planning import Log, check_codec, codec_for, logs_of
from forelog.spark.slices import table_columns
from forelog.spark.stream import ForelogStreamReader
from forelog.spark.types import chosen, ddl
from forelog.spark.writer import ForelogStreamWriter, ForelogWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ForelogDataSource(DataSource):
    """Logs as tables. A user's schema may name fewer columns: the others are not read."""

    @classmethod
    def name(cls) -> str:
        return "forelog"

    def schema(self) -> str:
        options, logs = self._read_options()
        columns, default = table_columns(options)
        # A missing log, or one of another kind, is reported before anything is planned.
        check_codec(logs or logs_of(options), options.codec)
        return ddl(columns, default)

    def reader(self, schema: StructType) -> DataSourceReader:
        options, _ = self._read_options()
        columns, _ = table_columns(options)
        return ForelogReader(options, columns, chosen(schema, columns))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options, _ = self._read_options()
        if options.on_corruption == "stop":
            raise BadOption(
                "onCorruption is 'stop', and a stream doesn't end at damage: expected fail, or skip to continue "
                "after it"
            )
        columns, _ = table_columns(options)
        return ForelogStreamReader(options, columns, chosen(schema, columns))

    def _read_options(self) -> tuple[ReadOptions, list[Log]]:
        """The options of a reader, and the logs that they name where the codec depends on these."""
        options = read_options(self.options)
        if options.codec != "auto":
            return options, []
        logs = logs_of(options)
        return replace(options, codec=codec_for(logs)), logs

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return ForelogWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        return ForelogStreamWriter(write_options(self.options), schema)


class ForelogPythonSource(ForelogDataSource):
    """The source under the name by which the part in Java finds it."""

    @classmethod
    def name(cls) -> str:
        return "forelog_python"
