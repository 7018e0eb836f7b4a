"""Numbers the rows of a batch, with the same numbers in every attempt, so that workers drop repeats.

Workers accept only records with a higher `sequence` than all earlier ones of the client in the partition. So the rows
of a batch are divided by key among a fixed number of writers, and each writer is its own client: it sends its rows in
the order of key and `order_by`, numbered in that order after the number of the batch. The numbers depend on the rows
alone, not on their input order or the number of cores. An attempt that fails has sent the first rows of each partition,
and the next attempt sends these first, then the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.wire import columns as names
from spark_integration.foundation.kafka_options import PREFIX
from spark_integration.foundation.sql import literal
from spark_integration.publish.commands import header
from spark_integration.read.mask import failing
from spark_integration.read.metadata_columns import header_number, header_text

ROWS_BITS: Final = 32
"""Bits of a sequence for the number of a row; the number of the batch is above them."""

PLANNED_ROWS_BITS: Final = 21
"""These bits where the number of the batch is a time: 2^42 ms end in the year 2159."""

PLANNED_FROM_MS: Final = 1_577_836_800_000
"""The beginning of these times: 2020-01-01 UTC, in Unix milliseconds."""

BATCH_MAX: Final = 2 ** (63 - ROWS_BITS) - 1
"""Highest number of a batch: sequences have 63 bits."""


class Sender(NamedTuple):
    """The client and the number of a batch."""

    client: str
    """The prefix of its writers' client names, unique among batches with the same number."""
    batch_id: int
    """The number of the batch, higher than all earlier ones of this client."""
    rows_bits: int = ROWS_BITS
    """Bits of a sequence for the number of a row; a writer with more rows has several client names."""

    @classmethod
    def planned(cls, client: str, planned_ms: int) -> Sender:
        """The sender of a batch that is numbered by the time when it was planned.

        Args:
            client: the prefix of the client names.
            planned_ms: the time of planning, in Unix milliseconds; the same whenever the batch is repeated.
        """
        return cls(client, planned_ms - PLANNED_FROM_MS, PLANNED_ROWS_BITS)


def numbered(rows: DataFrame, sender: Sender, writers: int) -> DataFrame:
    """Sort the rows in the order of writing, and add headers `client` and `sequence`.

    The query fails at different rows of one key without an order.

    Args:
        rows: columns `key` and `value` (binary), `headers`, and `place`, a struct that orders the rows of a key.
        sender: the client and the number of the batch.
        writers: the number of writers.
    """
    writer = F.pmod(F.xxhash64("key"), F.lit(writers)).cast("int")
    # One shuffle: the window uses this partitioning. Errors of single rows happen before it, when nothing is written
    # yet; and the number of tasks is that of the writers, not of the session's settings.
    divided = rows.withColumn("writer", writer).repartition(writers, "writer")
    in_order = Window.partitionBy("writer").orderBy("key", "place")
    # A hash: the window copies what it compares, and copies of the contents took a fifth of the time. Two rows that
    # differ and have one hash, one pair in 2^64, are not noticed.
    content = F.xxhash64("value", "headers")
    before = F.lag(F.struct("key", "place", content.alias("content"))).over(in_order)
    ordered = divided.select("*", F.row_number().over(in_order).alias("number"), before.alias("before"))
    # From 1, as sequences always were; a part is the rows that one client name has numbers for.
    part = F.shiftright("number", sender.rows_bits) if sender.rows_bits < ROWS_BITS else F.lit(0)
    first = F.lit(sender.batch_id << sender.rows_bits)
    row = F.col("number").cast("long").bitwiseAND(F.lit((1 << sender.rows_bits) - 1))
    suffix = F.when(part > 0, F.concat(F.lit("."), part.cast("string"))).otherwise("")
    client = F.concat(F.lit(f"{sender.client}/"), F.col("writer").cast("string"), suffix)
    sequence = F.when(_is_unordered(content), _unordered()).otherwise(first + row)
    added = F.array(header(names.CLIENT, client), header(names.SEQUENCE, sequence))
    return ordered.select("key", "value", F.concat("headers", added).alias("headers"))


def _is_unordered(content: Column) -> Column:
    """Return whether a row differs from the one before it, with the same key and place."""
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


_SKEW_MS: Final = 10_000
"""Largest difference between the clocks of the driver and the executors, which give records their time."""

# This process runs the batches of one query.
_latest: Final[dict[str, tuple[int, int]]] = {}


def refuse_clock_behind(
    spark: SparkSession, sink: Mapping[str, str], client: str, batch_id: int, planned_ms: int
) -> None:
    """Make sure that a batch was planned later than all earlier ones of its client.

    The first batch in this process reads the publish topic from the time of the batch on.

    Args:
        spark: the session of the batch.
        sink: the options of the sink.
        client: the prefix of the client names.
        batch_id: the number of the batch.
        planned_ms: the time when it was planned, in Unix milliseconds.

    Raises:
        ConfigurationError: it was not.
    """
    latest_ms, number = _latest.get(client) or (_latest_on_topic(spark, sink, client, planned_ms), batch_id)
    if planned_ms < latest_ms or (planned_ms == latest_ms and batch_id != number):
        raise ConfigurationError(
            f"the clock of Spark's driver is behind: the batch was planned at {_shown(planned_ms)}, and an earlier one "
            f"of client {client.partition('/')[0]!r} at {_shown(latest_ms)}: workers would take its rows for repeated "
            "ones. Correct the clock or wait until then and start the query again, or give it another client"
        )
    _latest[client] = planned_ms, batch_id


def _latest_on_topic(spark: SparkSession, sink: Mapping[str, str], client: str, planned_ms: int) -> int:
    """The latest time of a batch in the records of a client; 0 without a record."""
    source = {name: text for name, text in sink.items() if name.lower().startswith(PREFIX)}
    records = (
        spark.read.format("kafka")
        .options(**source, subscribe=sink["topic"], includeHeaders="true")
        .options(startingTimestamp=str(planned_ms - _SKEW_MS), startingOffsetsByTimestampStrategy="latest")
        .load()
        .where(f"startswith({header_text(names.CLIENT)}, {literal(f'{client}/')})")
    )
    row = records.select(F.max(F.expr(f"shiftright({header_number(names.SEQUENCE)}, {PLANNED_ROWS_BITS})"))).first()
    return 0 if row is None or row[0] is None else PLANNED_FROM_MS + int(row[0])


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
