"""Kafka records as rows: the columns of the record itself, then what is known of it."""

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
from spark_integration.reading.columns import refuse_clash
from spark_integration.reading.decode import Decoding, decoded, matched
from spark_integration.reading.metadata_columns import about
from spark_integration.reading.schema import INFER, given_schema, own_schema, pinned
from spark_integration.settings import TopicSettings

CHANGED = "changed"
"""The column that is made with the record."""


@dataclass(frozen=True, slots=True)
class Reader:
    """How the records of one topic become rows."""

    settings: TopicSettings
    struct: StructType | None
    """The record's columns; None: one column `value`, JSON text."""
    metadata: Mapping[str, Column]
    """The columns that follow, by name. One called `changed` is made here, and says that these are deltas."""

    @classmethod
    def of(
        cls,
        settings: TopicSettings,
        schema: StructType | str | None,
        metadata: Mapping[str, Column],
        infer: Callable[[], StructType],
    ) -> Reader:
        """Find the columns.

        Args:
            settings: the topic's.
            schema: a StructType, DDL, `infer`, or None: the JSON text as it is, or what the topic's own schema says.
            metadata: the columns that follow.
            infer: looks what columns the records have.

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
        """Every record as a row.

        A record that does not fit the columns fails the query: a null in its place could not be told from a null or a
        missing field.

        Args:
            records: as Spark's Kafka source has them.
            topic: the Kafka topic that they are of, for errors.
            matching: a filter, of which the records are to be true.

        Raises:
            ConfigurationError: the columns cannot be used.
            FilterError: the filter cannot be meant.
        """
        if self.settings.topic.message_type == "json":
            return self._of_json(records, topic, matching)
        assert self.struct is not None, "only JSON is shown as it is"
        if matching is not None:
            compile_filter(matching)
        before = {name: column for name, column in self.metadata.items() if name != CHANGED}
        decoding = Decoding(self.settings, topic, self.struct, CHANGED in self.metadata, matching)
        known = records.select(F.col("value"), *(column.alias(name) for name, column in before.items()))
        record = F.col("record")
        return decoded(known, decoding).select(
            *self._fields(record), *(about(name, F.col(name)) for name in self.metadata)
        )

    def _of_json(self, records: DataFrame, topic: str, matching: str | None) -> DataFrame:
        """The same in the JVM, save what it has not."""
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
    """Metadata of deltas: the paths that each carries."""
    return changed(F.col("value").cast("string"))
