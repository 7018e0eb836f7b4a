"""A topic as a Spark data source: `format("sow")` to read and write, and `CREATE TABLE … USING sow` in SQL.

Each task reads one Kafka partition with the processor's own reader, decoder and filter, in Python, so executors need
this package with its dependencies. `read_sow` reads in the JVM, is faster for large topics, and can spill to disk.
"""

from __future__ import annotations

from typing import NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StringType, StructField, StructType

from processor.errors import ConfigurationError
from spark_integration.reading.schemas.schema import own_schema, pinned
from spark_integration.source.latest_rows import VALUE, metadata_columns
from spark_integration.source.pushed_keys import PushingReader
from spark_integration.source.reader import SowSourceReader
from spark_integration.source.source_options import parse_source_options
from spark_integration.source.stored_options import all_options, comment_of
from spark_integration.source.write_options import parse_write_options
from spark_integration.source.writer import SowWriter

NAME = "sow"
"""The name of the format, for `format(...)` and `USING`."""


def register_source(spark: SparkSession) -> None:
    """Register the data source `sow` in a session; no effect where it is known already."""
    try:
        spark.dataSource.register(SowSource)
    except AnalysisException as error:
        # Spark has found package `pyspark_sowstream`, whose source no session may replace.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


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
        metadata = metadata_columns(options.on_misfit, options.metadata)
        comment = comment_of(self.options)
        if options.schema is not None:
            # As text: without a session, DDL cannot be parsed here.
            columns = [options.schema, *(f"`{field.name}` {field.dataType.simpleString()}" for field in metadata)]
            return ", ".join(columns) + ("" if comment is None else f" COMMENT {_quoted(comment)}")
        if options.settings.topic.message_type == "json":
            record = [StructField(VALUE, StringType())]
        else:
            record = own_schema(pinned(options.settings)).fields
        *others, last = [*record, *metadata]
        if comment is not None:
            last = StructField(last.name, last.dataType, metadata={"comment": comment})
        return StructType([*others, last])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create the reader of the topic.

        Raises:
            ConfigurationError: the options cannot be used.
        """
        options = parse_source_options(all_options(self.options, schema))
        return PushingReader(options, schema) if options.pushes_filters else SowSourceReader(options, schema)

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: N802, ARG002 - Spark's name
        """Refuse a stream; Spark asks for it when the query starts, and not before.

        Raises:
            ConfigurationError: always.
        """
        topic = self.options.get("topic", "topic")
        raise ConfigurationError(
            f"format {NAME!r} is a table, so readStream has none; for a stream use stream_sow(spark, {topic!r}, "
            f"schema, options={{...}}), or stream_deltas for the updates alone, both of spark_integration"
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Create the writer that publishes rows, which workers then merge.

        Raises:
            ConfigurationError: the options cannot be used, or the table would have to be emptied first.
        """
        if overwrite:
            raise ConfigurationError(
                f"format {NAME!r} cannot be overwritten: rows are commands that workers merge; use mode('append'), and "
                "command 'delete' to remove records"
            )
        return SowWriter(parse_write_options(all_options(self.options, schema), schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802 - Spark's name
        """Refuse a stream.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"format {NAME!r} is written as a table, so writeStream has none; for a stream use publish_deltas(stream, "
            f"{self.options.get('topic', 'topic')!r}, key=[...], options={{...}}) of spark_integration"
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
