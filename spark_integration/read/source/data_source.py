"""A topic as a Spark data source: `format("sow")` to read and write, and `CREATE TABLE … USING sow` in SQL.

Each task reads one Kafka partition with the processor's own reader. Options of a table in a catalog are kept next to
its columns, as Spark 4 passes only these to a Python data source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NoReturn

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader
from pyspark.sql.types import StringType, StructField, StructType

from processor.config.secrets import hide_secret
from processor.errors import ConfigurationError
from spark_integration.read.schemas.schema import own_schema, pinned
from spark_integration.read.source.latest_rows import VALUE, metadata_columns
from spark_integration.read.source.row_writer import SowWriter
from spark_integration.read.source.source_options import is_sparks, parse_source_options
from spark_integration.read.source.sow_reader import PushingReader, SowSourceReader
from spark_integration.read.source.write_options import parse_write_options

NAME: Final = "sow"
"""The name of the format, for `format(...)` and `USING`."""

_MARK: Final = "Sowstream "
_COMMENT: Final = "comment"
_CATALOG: Final = "provider"
"""The option that a statement for a catalog has, and a read without one has not."""


def comment_of(options: Mapping[str, str]) -> str | None:
    """The comment with the options, for a table in a catalog; None for a read without one.

    Raises:
        ConfigurationError: an option is a secret, which everyone who sees the table would read.
    """
    if _CATALOG not in options:
        return None
    own = {name: text for name, text in options.items() if not is_sparks(name)}
    if secret := [name for name, text in own.items() if hide_secret(name, text) != text]:
        raise ConfigurationError(
            f"option {secret[0]!r} would be shown with the columns of the table; give credentials in section `kafka` "
            "of the settings, and name their file: config 'sowstream.yaml'"
        )
    return _MARK + json.dumps(own, sort_keys=True)


def all_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a statement, and those that its table's columns have."""
    for field in schema.fields:
        comment = field.metadata.get(_COMMENT, "")
        if comment.startswith(_MARK):
            stored: dict[str, str] = json.loads(comment[len(_MARK) :])
            return stored | dict(options)
    if not options:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        raise ConfigurationError(
            "Spark passes no options to a table that was created with columns, and asks nobody at its creation. Drop "
            f"it, and name the columns in an option: CREATE TABLE … USING {NAME} OPTIONS (topic '…', "
            f"schema '{columns:.500}', `kafka.bootstrap.servers` '…')"
        )
    return dict(options)


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
