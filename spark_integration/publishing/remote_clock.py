"""Refuses a batch of a stream on Spark Connect that was planned by a clock that went back: workers would drop its rows.

A function that Spark Connect runs for each batch has no access to the checkpoint, which shows the times of the earlier
batches. Their records do: from an earlier batch with a later time they are in the topic, at about that time or later.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from processor.wire import columns as names
from spark_integration.kafka_options import PREFIX
from spark_integration.publishing.sequence import PLANNED_FROM_MS, PLANNED_ROWS_BITS
from spark_integration.reading.metadata_columns import header_number, header_text

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
        .where(F.startswith(header_text(names.CLIENT), F.lit(f"{client}/")))
    )
    row = records.select(F.max(F.shiftright(header_number(names.SEQUENCE), PLANNED_ROWS_BITS))).first()
    return 0 if row is None or row[0] is None else PLANNED_FROM_MS + int(row[0])


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
