"""A SOW topic as a Spark data source: `spark.read.format("sow")`, and `CREATE TEMP VIEW … USING sow`.

Each task reads one Kafka partition with the processor's own reader, decoder and filter, in Python, so executors need
this package with its dependencies. `read_sow` reads in the JVM, is faster for large topics, and can spill to disk.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StringType, StructField, StructType

from processor.errors import ConfigurationError
from spark_integration.reading.schemas.schema import own_schema, pinned
from spark_integration.source.latest_rows import METADATA, VALUE
from spark_integration.source.reader import SowSourceReader
from spark_integration.source.source_options import parse_source_options

NAME = "sow"
"""The name of the format, for `format(...)` and `USING`."""


def register_source(spark: SparkSession) -> None:
    """Register the data source `sow` in a session; a second call has no effect."""
    spark.dataSource.register(SowSource)


class SowSource(DataSource):
    """The data source `sow`: the latest record of every live key of a topic."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return NAME

    def schema(self) -> StructType | str:
        """The columns of the record, then those of the metadata.

        Raises:
            ConfigurationError: the options cannot be used.
        """
        options = parse_source_options(self.options)
        if options.schema is not None:
            # As text: without a session, DDL cannot be parsed here.
            described = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in METADATA.fields)
            return f"{options.schema}, {described}"
        if options.settings.topic.message_type == "json":
            record = [StructField(VALUE, StringType())]
        else:
            record = own_schema(pinned(options.settings)).fields
        return StructType([*record, *METADATA.fields])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of the topic.

        Raises:
            ConfigurationError: the options cannot be used.
        """
        return SowSourceReader(parse_source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 - Spark's name
        """Refuse a stream.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"format {NAME!r} is a table; for a stream use stream_sow(spark, topic, ...), or stream_deltas"
        )

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002
        """Refuse to be written to.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(f"format {NAME!r} is read only; workers write the topic: use publish_deltas(df, ...)")
