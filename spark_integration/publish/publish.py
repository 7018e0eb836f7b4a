"""Publishes DataFrames to a topic as deltas, full records and deletes, from a table or from a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.topics.family import MESSAGE_MAX_BYTES
from spark_integration.foundation.options import REQUEST_SIZE, Options, refuse_given, sink_options, with_connection
from spark_integration.foundation.pyspark_private import is_remote
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.publish.batch_sender import check_client, recipe, sender
from spark_integration.publish.columns import (
    Nulls,
    boolean,
    delta_body,
    key_places,
    listed,
    order_of,
    record_body,
    text_array,
)
from spark_integration.publish.commands import RowMessage, headers_of, key_of, messages, text_of_body, with_mask
from spark_integration.publish.sequence import numbered, refuse_clock_behind
from spark_integration.read.mask import ColumnPath, row_errors

WRITERS: Final = 16
"""The default number of tasks that write the rows of a batch concurrently."""

WRITERS_MAX = 10_000
_PLANNED: Final = "_sowstream_planned"

ToRecords: TypeAlias = Callable[[DataFrame], DataFrame]
"""Converts the rows of a table, or of one batch of a stream, to records: see `Sending.rows`."""


_WRITTEN_AGAIN: Final = "a record that is missing before ones that are written could not be written again"
_OURS: Final = {
    "kafka.enable.idempotence": f"it is always true: {_WRITTEN_AGAIN}",
    "kafka.acks": f"all replicas have what is written: {_WRITTEN_AGAIN}",
    "kafka.delivery.timeout.ms": f"nothing is given up that waits to be sent: {_WRITTEN_AGAIN}",
    "kafka.retries": f"nothing is given up that waits to be sent: {_WRITTEN_AGAIN}",
    "kafka.transactional.id": "Spark's Kafka sink writes without transactions",
}
_BATCHES: Final = {"kafka.linger.ms": "20", "kafka.batch.size": "262144", "kafka.compression.type": "lz4"}
"""Defaults for writing many rows: the headers of neighbours are nearly the same, and batches as Java's client makes
them would cost the broker more than the rows cost Spark.
"""


def publish_deltas(
    df: DataFrame,
    topic: str,
    key: Sequence[str],
    columns: Sequence[str] | None = None,
    options: Options | None = None,
    *,
    mask: str | None = None,
    nulls: Nulls | None = None,
    removed: str | None = None,
    deleted: str | None = None,
    order_by: Sequence[str] = (),
    client: str | None = None,
    batch_id: int | None = None,
    writers: int = WRITERS,
    config: Settings = None,
) -> DataStreamWriter | None:
    """Publish one delta per row: the key columns, and others that are selected in one of three ways.

    `columns=[...]`: these columns, with their nulls, to which the topic's `null_policy` applies; `nulls="skip"` leaves
    them out. `mask="_sow.changed"`: in each row the fields that this column names, such as `_sow.changed` of
    `stream_deltas`. `nulls="skip"`: every column that is not null, without `_sow` and the other metadata columns of
    `read_sow` and `stream_deltas`.

    Each row carries headers `client` and `sequence`, which are the same each time Spark writes the row, so that workers
    drop repeats. In a streaming query this works as long as its checkpoint exists; elsewhere for repeated tasks of this
    call, and with `client` and `batch_id` also for repeated calls.

    Args:
        df: the rows. Of a stream, each batch is published; it must be the same when it is computed again.
        topic: the family's name; `.publish` is added.
        key: the columns that are the topic's key fields, in the topic's order: strings, whole numbers or booleans.
        columns: the columns to publish; an empty list touches the records.
        options: options of Spark's Kafka sink.
        mask: an array<string> column, or one inside a struct, of names and JSON Pointers; a pointer reaches into
            structs and maps. The named fields are published, null or not; the key columns always are.
        nulls: `keep` or `skip`, at any depth; with `columns`, the default is `keep`.
        removed: an array<string> column of the fields to remove from the record, such as `_sow.removed` of
            `stream_deltas`.
        deleted: a boolean column; a row where it is true deletes its record, and its other columns are ignored.
        order_by: the columns that order the rows of one key, lowest first: they are merged in that order. Without it, a
            key with different rows in one batch is an error.
        client: the prefix of the client names of this publisher; the default is `spark`.
        batch_id: the number of the batch, higher than the earlier ones of this client and the same for the same rows.
            Other rows for the same topic need another client: this call would be taken for a repeat.
        writers: the number of tasks that write, each with its own client name.
        config: the topic's settings, see `topic_settings`; None: a topic of JSON with any key fields.

    Returns:
        For a stream, its writer: give it a checkpoint and start it, `.option("checkpointLocation", ...).start()`.
        For a table None, after all records were written.

    Raises:
        ConfigurationError: an argument cannot be used, or a row has no key or an invalid mask: then nothing was
            written. Or rows of a key have no order: then other rows may have been written.
    """
    sending = Sending.of(df, topic, key, options, order_by, client, batch_id, writers, config)
    return sending.send(df, delta_rows(sending, df, columns, mask, nulls, removed, deleted))


def delta_rows(
    sending: Sending,
    df: DataFrame,
    columns: Sequence[str] | None = None,
    mask: str | None = None,
    nulls: Nulls | None = None,
    removed: str | None = None,
    deleted: str | None = None,
) -> ToRecords:
    """Create the conversion of rows to deltas, with the arguments of `publish_deltas`.

    Raises:
        ConfigurationError: an argument cannot be used.
    """
    body = delta_body(df, sending.places(df), columns, mask, nulls)
    dead = None if deleted is None else F.coalesce(boolean(df, "deleted", deleted), F.lit(False))
    headers = headers_of("delta_publish", dead, None if removed is None else text_array(df, "removed", removed))

    def rows(batch: DataFrame) -> DataFrame:
        text = text_of_body(sending.in_body(batch), body)
        message = RowMessage(text if dead is None else F.when(~dead, text), headers, is_delta=True)
        return sending.rows(with_mask(batch, body), message)

    return rows


def publish_records(
    df: DataFrame,
    topic: str,
    key: Sequence[str],
    columns: Sequence[str] | None = None,
    options: Options | None = None,
    *,
    nulls: Nulls = "keep",
    order_by: Sequence[str] = (),
    client: str | None = None,
    batch_id: int | None = None,
    writers: int = WRITERS,
    config: Settings = None,
) -> DataStreamWriter | None:
    """Publish one full record per row, which replaces the one before: missing fields are removed.

    Args:
        df: as for `publish_deltas`.
        topic: as for `publish_deltas`.
        key: as for `publish_deltas`.
        columns: the columns of the record besides the key; None: every column without the metadata of `read_sow`.
        options: as for `publish_deltas`.
        nulls: `keep` stores them, at any depth; `skip` leaves their fields out.
        order_by: as for `publish_deltas`, and so are the arguments below.
        client: the publisher's name.
        batch_id: the number of the batch.
        writers: the number of tasks that write.
        config: the topic's settings.

    Returns:
        The same as `publish_deltas`.

    Raises:
        ConfigurationError: as in `publish_deltas`.
    """
    sending = Sending.of(df, topic, key, options, order_by, client, batch_id, writers, config, "publish_records")
    body = record_body(df, sending.places(df), columns, nulls)

    def rows(batch: DataFrame) -> DataFrame:
        return sending.rows(batch, RowMessage(text_of_body(sending.in_body(batch), body), headers_of("publish")))

    return sending.send(df, rows)


def delete_records(
    df: DataFrame,
    topic: str,
    key: Sequence[str],
    options: Options | None = None,
    *,
    client: str | None = None,
    batch_id: int | None = None,
    writers: int = WRITERS,
    config: Settings = None,
) -> DataStreamWriter | None:
    """Delete the record of each row's key; a key may be in several rows.

    Deletes have no order relative to the records of other calls; `publish_deltas` with `deleted` writes both in order.

    Args:
        df: rows with the key columns.
        topic: as for `publish_deltas`, and so are the arguments below.
        key: the key columns.
        options: options of Spark's Kafka sink.
        client: the publisher's name.
        batch_id: the number of the batch.
        writers: the number of tasks that write.
        config: the topic's settings.

    Returns:
        The same as `publish_deltas`.

    Raises:
        ConfigurationError: as in `publish_deltas`.
    """
    sending = Sending.of(df, topic, key, options, (), client, batch_id, writers, config, "delete_records")
    sending.places(df)

    def rows(batch: DataFrame) -> DataFrame:
        return sending.rows(batch, RowMessage(F.lit(None).cast("string"), headers_of("sow_delete")))

    return sending.send(df, rows)


def publish_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options of Spark's Kafka sink to publish to a family.

    With an idempotent producer, a partition always has the first records of an attempt, without gaps, as long as the
    producer drops no batch: it would still send the batches after it.

    Raises:
        ConfigurationError: as in `sink_options`, or an option that deduplication depends on.
    """
    refuse_given(options, _OURS)
    settings = sink_options(topic, "publish", options, names)
    size = settings.get(REQUEST_SIZE, "0")
    if not size.isdigit() or int(size) > MESSAGE_MAX_BYTES:
        raise ConfigurationError(
            f"option {REQUEST_SIZE!r} is {size}; the topic takes records of {MESSAGE_MAX_BYTES} bytes, "
            "and what the producer refuses itself is refused in order"
        )
    return _BATCHES | settings | {"kafka.delivery.timeout.ms": str(2**31 - 1)}


@dataclass(frozen=True, slots=True)
class Sending:
    """The arguments that all commands share: the topic, the keys, the client names and the order of the rows."""

    topic: str
    key: list[str]
    settings: dict[str, str] = field(repr=False)
    order_by: list[str]
    client: str | None
    batch_id: int | None
    writers: int
    config: TopicSettings | None
    function: str | None = None
    """The function that was called, apart from `publish_deltas`: one batch of a client may have a call of each."""

    @classmethod
    def of(
        cls,
        df: DataFrame,
        topic: str,
        key: Sequence[str],
        options: Options | None,
        order_by: Sequence[str],
        client: str | None,
        batch_id: int | None,
        writers: int,
        config: Settings,
        function: str | None = None,
    ) -> Sending:
        """Check the arguments of a caller.

        Raises:
            ConfigurationError: an argument cannot be used.
        """
        settings = None if config is None else topic_settings(topic, config, options=options, needs_sow=False)
        check_client(client, batch_id)
        if df.isStreaming and batch_id is not None:
            raise ConfigurationError("a stream numbers its batches itself; leave batch_id out")
        if not 1 <= writers <= WRITERS_MAX:
            raise ConfigurationError(f"writers is {writers}; 1 to {WRITERS_MAX} tasks can share the rows")
        names = listed("key", key)
        with_kafka = options if settings is None else with_connection(options, settings.kafka)
        sink_options = publish_options(topic, with_kafka, None if settings is None else settings.names)
        return cls(
            topic, names, sink_options, listed("order_by", order_by), client, batch_id, writers, settings, function,
        )  # fmt: skip

    def places(self, df: DataFrame) -> list[ColumnPath]:
        """The key columns."""
        return key_places(df, self.key, None if self.config is None else self.config.topic)

    def in_body(self, df: DataFrame) -> list[ColumnPath]:
        """The key columns that belong in the message: none for an explicit key."""
        is_explicit = self.config is not None and not self.config.topic.key_fields
        return [] if is_explicit else self.places(df)

    def rows(self, df: DataFrame, message: RowMessage) -> DataFrame:
        """Build the records: columns `key`, `value`, `headers`, and `place`, which orders those of a key."""
        place = order_of(df, self.order_by).alias("place")
        return messages(df, key_of(self.places(df)), place, message, self.config)

    def send(self, df: DataFrame, rows: ToRecords) -> DataStreamWriter | None:
        """Write a table now, a stream batch by batch."""
        if not df.isStreaming:
            self.write(df, rows)
            return None
        if not is_remote(df.sparkSession):
            return df.writeStream.foreachBatch(lambda batch, _: self.write(batch, rows))
        if self.client is None:
            raise ConfigurationError(
                "on Spark Connect, a stream that is published needs a name of its own for each checkpoint: client='...'"
            )
        # The time of a batch in the checkpoint, which a repeated batch has again.
        timed = df.withColumn(_PLANNED, F.current_timestamp())
        return timed.writeStream.foreachBatch(lambda batch, number: self._write_remotely(batch, number, rows))

    def _write_remotely(self, batch: DataFrame, number: int, rows: ToRecords) -> None:
        first = batch.select(F.unix_millis(_PLANNED)).first()
        if first is not None:
            refuse_clock_behind(batch.sparkSession, self.settings, f"{self.client}/{self._way}", number, first[0])
            self.write(batch.drop(_PLANNED), rows, planned_ms=first[0])

    @property
    def _way(self) -> str:
        # A query counts the calls of its batches, and keeps the names that it had.
        return recipe(self.key, self.order_by, self.writers, None if self.batch_id is None else self.function)

    def write(self, df: DataFrame, rows: ToRecords, planned_ms: int | None = None) -> None:
        """Write a table or a batch now.

        Args:
            df: the rows.
            rows: converts them to records.
            planned_ms: the time by which a batch with a `client` is numbered, in Unix milliseconds: see
                `Sender.planned`. None: the number of the caller, of the query, or of this process.
        """
        records, way = rows(df), self._way
        with row_errors(), sender(df.sparkSession, self.topic, way, self.client, self.batch_id, planned_ms) as by:
            numbered(records, by, self.writers).write.format("kafka").options(**self.settings).save()
