"""Converts Kafka records to rows: the columns of the record, then those of its metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from spark_integration.filter import filter_column
from spark_integration.reading.changed import changed
from spark_integration.reading.decode import Decoding, decoded, matched
from spark_integration.reading.metadata_columns import about, refuse_clash
from spark_integration.reading.schemas.schema import INFER, given_schema, own_schema, pinned
from spark_integration.settings import TopicSettings

CHANGED = "changed"
"""The metadata column that is computed when the record is decoded."""


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Converts the records of one topic to rows."""

    settings: TopicSettings
    struct: StructType | None
    """The columns of the record; None: one column `value` with its JSON text."""
    metadata: Mapping[str, Column]
    """The metadata columns, by name. With `changed`, the records are deltas, and the column is computed here."""

    @classmethod
    def of(
        cls,
        settings: TopicSettings,
        schema: StructType | str | None,
        metadata: Mapping[str, Column],
        infer: Callable[[], StructType],
    ) -> TopicReader:
        """Find the columns of a topic, and create its reader.

        Args:
            settings: the settings of the topic.
            schema: a StructType, DDL, `infer`, or None: the JSON text, or the columns of the topic's own schema.
            metadata: the metadata columns.
            infer: infers the columns from the records.

        Raises:
            ConfigurationError: the schema cannot be used.
            Stop: the schema registry does not answer.
        """
        is_json = settings.topic.message_type == "json"
        settings = pinned(settings)
        if isinstance(schema, str) and schema.strip().lower() == INFER:
            if not is_json:
                raise ConfigurationError(
                    f"schema={schema!r} is for JSON, and {settings.name!r} is of message type "
                    f"{settings.topic.message_type}; give its columns, or for Avro leave the schema out"
                )
            struct: StructType | None = infer()
        elif schema is not None:
            struct = given_schema(schema)
        elif is_json:
            struct = None
        else:
            struct = own_schema(settings)
        if struct is not None:
            refuse_clash(struct, metadata)
        return cls(settings, struct, metadata)

    def rows(self, records: DataFrame, topic: str, *, matching: str | None = None) -> DataFrame:
        """Convert every record to a row.

        A record that does not fit the columns fails the query: a null would look like a null or missing field of it.

        Args:
            records: rows of Spark's Kafka source.
            topic: their Kafka topic, for error messages.
            matching: a filter for the records; None: all records.

        Raises:
            ConfigurationError: the columns cannot be used.
            FilterError: the filter is invalid.
        """
        if self.settings.topic.message_type == "json":
            return self._of_json(records, topic, matching)
        assert self.struct is not None, "only JSON is shown as it is"
        if matching is not None:
            compile_filter(matching)
        before = {name: column for name, column in self.metadata.items() if name != CHANGED}
        decoding = Decoding(self.settings, topic, self.struct, CHANGED in self.metadata, matching)
        columns = records.select(F.col("value"), *(column.alias(name) for name, column in before.items()))
        record = F.col("record")
        return decoded(columns, decoding).select(
            *self._fields(record), *(about(name, F.col(name)) for name in self.metadata)
        )

    def _of_json(self, records: DataFrame, topic: str, matching: str | None) -> DataFrame:
        """Convert records of JSON, in the JVM as far as it can evaluate the filter."""
        text = F.col("value").cast("string")
        record = None if self.struct is None else F.from_json(text, self.struct, {"mode": "FAILFAST"})
        if matching is not None and compile_filter(matching).uses_metadata:
            keyed = records.withColumn("sow_key", F.col("key").cast("string"))
            records = matched(keyed, Decoding(self.settings, topic, None, CHANGED in self.metadata, matching))
        elif matching is not None:
            records = records.where(filter_column(matching, self.struct, record=record, value=text))
        fields = [text.alias("value")] if record is None else self._fields(record)
        return records.select(*fields, *(about(name, column) for name, column in self.metadata.items()))

    def _fields(self, record: Column) -> list[Column]:
        assert self.struct is not None, "a record as it is has no fields"
        return [record.getField(name).alias(name) for name in self.struct.names]


def changed_paths_column() -> Column:
    """The metadata column `changed` of deltas: the paths of each."""
    return changed(F.col("value").cast("string"))
