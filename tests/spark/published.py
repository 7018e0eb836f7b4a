"""Collects the records that a DataFrame would publish, without a broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spark_integration.publish.publish import Sending, delta_rows
from spark_integration.publish.sequence import PLANNED_FROM_MS, PLANNED_ROWS_BITS, Sender, numbered
from spark_integration.read.mask import row_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Message
    from pyspark.sql import DataFrame

NOWHERE = {"kafka.bootstrap.servers": "localhost:1"}

Sent = tuple[str, bytes | None, dict[str, str]]


def sent(
    df: DataFrame,
    key: Sequence[str] = ("id",),
    *,
    order_by: Sequence[str] = (),
    batch_id: int = 0,
    writers: int = 2,
    config: Any = None,
    **arguments: Any,
) -> list[Sent]:
    """Key, value and headers of each delta, task by task in the order of writing."""
    sending = Sending.of(df, "orders", list(key), NOWHERE, order_by, None, None, writers, config)
    with row_errors():
        rows = numbered(delta_rows(sending, df, **arguments)(df), Sender("test", batch_id), writers).collect()
    return [
        (
            row["key"].decode(),
            None if row["value"] is None else bytes(row["value"]),
            {header["key"]: header["value"].decode() for header in row["headers"]},
        )
        for row in rows
    ]


def bodies(df: DataFrame, key: Sequence[str] = ("id",), **arguments: Any) -> list[Any]:
    """The parsed body of each record."""
    return [None if value is None else json.loads(value) for _, value, _ in sent(df, key, **arguments)]


def planned_ms(message: Message) -> int:
    """The time when the batch of a streamed record was planned, in Unix milliseconds."""
    return PLANNED_FROM_MS + (int(dict(message.headers() or ())["sequence"]) >> PLANNED_ROWS_BITS)
