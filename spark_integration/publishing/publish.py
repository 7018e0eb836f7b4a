"""DataFrames as commands of a topic: deltas, whole records and deletes, of a table or of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_integration.options import Options
from spark_integration.publishing.columns import Nulls, boolean, delta_body, record_body, text_array
from spark_integration.publishing.commands import headers_of, text_of_body, with_mask
from spark_integration.publishing.row_codec import RowMessage
from spark_integration.publishing.sending import Sending, ToRecords
from spark_integration.settings import Settings

WRITERS: Final = 16
"""How many share the rows of a batch, unless a caller says otherwise: tasks that write at the same time."""


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
    """Publish one delta per row: the key columns, and of the others what the caller says in one of three ways.

    `columns=[...]`: these, their nulls too, which the topic's `null_policy` deals with (`nulls="skip"`: without them).
    `mask="changed"`: in each row those that this column names, such as column `changed` of `stream_deltas`.
    `nulls="skip"`: every column that is not null, without those that `read_sow` and `stream_deltas` add to a record.

    Each row carries headers `client` and `sequence` that are the same whenever Spark writes the row again, and workers
    drop what they have had. Within a streaming query that holds for as long as its checkpoint; elsewhere for the tasks
    of this call, and with `client` and `batch_id` also for calls that are made again.

    Args:
        df: the rows. Of a stream, each batch is published; it must come out the same when it is computed again.
        topic: the family's name; `.publish` is added.
        key: the columns that are the topic's key fields, in the topic's order: strings, whole numbers or booleans.
        columns: the columns that change; may be empty, which touches the records.
        options: of Spark's Kafka sink.
        mask: an array<string> column of names and JSON Pointers; a pointer reaches into structs and maps. What it names
            is published, null or not; the key columns are always, named or not.
        nulls: `keep` or `skip`, at any depth; with `columns`, `keep` unless given.
        removed: an array<string> column of the fields that the record is to lose, such as `stream_deltas` has.
        deleted: a boolean column; a row where it is true deletes its record, and nothing else of it counts.
        order_by: the columns that order rows of one key, lowest first: they are merged in that order. Without, a key
            with rows that differ within one batch is an error.
        client: what the names of this publisher begin with; `spark` unless given.
        batch_id: the number of the batch, higher than those before under this client and the same for the same rows.
        writers: how many tasks write, each a client of its own.
        config: the topic's settings, see `topic_settings`; without them it has JSON, whatever its key is.

    Returns:
        Of a stream its writer: give it a checkpoint and start it, `.option("checkpointLocation", ...).start()`.
        Otherwise None: everything is on the topic.

    Raises:
        ConfigurationError: an argument cannot be used, or a row has no key or a mask that cannot be used: nothing was
            written. Or rows have no order: then others may have been.
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
    """What makes deltas of rows; its arguments are those of `publish_deltas`.

    Raises:
        ConfigurationError: they cannot be used.
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
    """Publish one whole record per row, in the place of the one before: fields that it lacks are gone.

    Args:
        df: as `publish_deltas`.
        topic: as there.
        key: as there.
        columns: what the record has beside the key; without, every column but those that `read_sow` adds.
        options: as there.
        nulls: `keep` stores them, at any depth; `skip` leaves their fields out.
        order_by: as there, and so are the others.
        client: the publisher's name.
        batch_id: the number of the batch.
        writers: how many tasks write.
        config: the topic's settings.

    Returns:
        As `publish_deltas`.

    Raises:
        ConfigurationError: as `publish_deltas`.
    """
    sending = Sending.of(df, topic, key, options, order_by, client, batch_id, writers, config)
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
    """Delete the record of each row's key. A key in several rows is deleted once for each, which changes nothing.

    Deletes are not ordered with what other calls publish; `publish_deltas` takes both, with `deleted`.

    Args:
        df: rows that have the key columns.
        topic: as `publish_deltas`, and so are the others.
        key: the key columns.
        options: of Spark's Kafka sink.
        client: the publisher's name.
        batch_id: the number of the batch.
        writers: how many tasks write.
        config: the topic's settings.

    Returns:
        As `publish_deltas`.

    Raises:
        ConfigurationError: as `publish_deltas`.
    """
    sending = Sending.of(df, topic, key, options, (), client, batch_id, writers, config)
    sending.places(df)

    def rows(batch: DataFrame) -> DataFrame:
        return sending.rows(batch, RowMessage(F.lit(None).cast("string"), headers_of("sow_delete")))

    return sending.send(df, rows)
