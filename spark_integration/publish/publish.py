"""Publishes DataFrames to a topic as deltas, full records and deletes, from a table or from a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_integration.options import Options
from spark_integration.publish.columns import Nulls, boolean, delta_body, record_body, text_array
from spark_integration.publish.commands import RowMessage, headers_of, text_of_body, with_mask
from spark_integration.publish.sending import Sending, ToRecords
from spark_integration.settings import Settings

WRITERS: Final = 16
"""The default number of tasks that write the rows of a batch concurrently."""


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
    sending = Sending.of(df, topic, key, options, (), client, batch_id, writers, config)
    sending.places(df)

    def rows(batch: DataFrame) -> DataFrame:
        return sending.rows(batch, RowMessage(F.lit(None).cast("string"), headers_of("sow_delete")))

    return sending.send(df, rows)
