"""Numbers the rows of a batch, the same whenever it is written again, so that workers drop what they have had.

Workers take of each client, in each partition, only what has a higher `sequence` than all before. So the rows of a
batch go to a fixed number of writers by their key, and each writer is a client of its own: it sends its rows in the
order of key and `order_by`, numbered in that order, after the number of the batch. All of that follows from the rows
alone, however they come in and however many cores there are; an attempt that ends early has sent the first rows of
each partition, and one that begins again sends these first and then the rest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.wire import columns as names
from spark_integration.publishing.commands import header
from spark_integration.publishing.row_error import failing

ROWS_BITS: Final = 32
"""A batch's number stands above this many bits, a row's number below."""

BATCH_MAX: Final = 2 ** (63 - ROWS_BITS) - 1
"""Highest number of a batch: sequences have 63 bits."""


class Sender(NamedTuple):
    """Who sends a batch."""

    client: str
    """What the names of its writers begin with: never that of another batch with the same number."""
    batch_id: int
    """The number of the batch, higher than of all before it under this name."""


def numbered(rows: DataFrame, sender: Sender, writers: int) -> DataFrame:
    """The rows in the order in which they are to be written, with headers `client` and `sequence`.

    The query ends at rows of one key that differ and have no order.

    Args:
        rows: columns `key` and `value` (binary), `headers`, and `place`, a struct of what orders a key's rows.
        sender: see `Sender`.
        writers: how many share the rows.
    """
    writer = F.pmod(F.xxhash64("key"), F.lit(writers)).cast("int")
    # One shuffle: the window takes the rows as they are divided here. What ends a query at a single row stands before
    # it, so that nothing is written yet; and as many tasks as there are writers, whatever the session's settings.
    divided = rows.withColumn("writer", writer).repartition(writers, "writer")
    in_order = Window.partitionBy("writer").orderBy("key", "place")
    content = F.struct("value", "headers")
    before = F.lag(F.struct("key", "place", content.alias("content"))).over(in_order)
    found = divided.select("*", F.row_number().over(in_order).alias("number"), before.alias("before"))
    first = F.lit(sender.batch_id << ROWS_BITS)
    client = F.concat(F.lit(f"{sender.client}/"), F.col("writer").cast("string"))
    sequence = F.when(_is_unordered(content), _unordered()).otherwise(first + F.col("number"))
    added = F.array(header(names.CLIENT, client), header(names.SEQUENCE, sequence))
    return found.select("key", "value", F.concat("headers", added).alias("headers"))


def _is_unordered(content: Column) -> Column:
    """Whether a row and the one before it are of one key and one place, and not the same."""
    key, place, before = (F.col(f"before.{name}") for name in ("key", "place", "content"))
    return F.coalesce(
        (key == F.col("key")) & place.eqNullSafe(F.col("place")) & ~before.eqNullSafe(content), F.lit(False)
    )


def _unordered() -> Column:
    return failing(
        F.lit("rows of the key "),
        F.col("key").cast("string"),
        F.lit(
            " differ, and nothing says which is the later one; name the columns that do, order_by=[...]. "
            "Other rows of the batch may have been published"
        ),
    )
