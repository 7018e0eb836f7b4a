"""Computes the rows of a view from SOW records, as the view's workers would."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError
from spark_integration.arrow_records import HEADERS_DDL
from spark_integration.options import Options, with_connection
from spark_integration.read.metadata_columns import expires_at
from spark_integration.read.table_part import latest_records, read_latest
from spark_integration.read.view_rows import LEFT_DDL, PARTS_DDL, RIGHT_DDL, ROWS_DDL, ViewTask
from spark_integration.settings import TopicSettings, topic_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.config import Config


def view_batch(
    spark: SparkSession,
    view: str,
    *,
    config: str | Path | Config,
    records: Mapping[str, DataFrame] | None = None,
    options: Options | None = None,
) -> DataFrame:
    """Compute the rows of a view, the same as its workers write, byte for byte.

    Returns:
        One row per row of the view: `key` and `value`, as in its SOW topic.

    Args:
        spark: a session; with Spark's Kafka connector where topics are read.
        view: its name.
        config: the settings, as a file or loaded; the view's section is among them.
        records: SOW records of its inputs by topic, with the columns of Spark's Kafka source, such as an archive; of
            several records of a key the last one counts. None, and topics that are missing: the SOW topics themselves.
        options: options of Spark's Kafka source; needed where topics are read.

    Raises:
        ConfigurationError: the settings cannot be used, or have no such view.
    """
    from processor.config import load  # noqa: PLC0415 - on the driver only
    from processor.config.suggestions import unknown_name  # noqa: PLC0415

    loaded = load(Path(config)) if isinstance(config, str | Path) else config
    if view not in loaded.views:
        raise ConfigurationError(unknown_name("view", view, list(loaded.views)))
    section = loaded.views[view]
    inputs = {topic: topic_settings(topic, loaded, options=options) for topic in section.inputs}
    task = ViewTask(
        underlying=inputs[section.underlying],
        rows=topic_settings(view, loaded, options=options),
        filter=section.filter,
        group_by=section.group_by,
        fields=section.fields,
        having=section.having,
        joins=tuple((inputs[each.topic], each.on) for each in section.join),
        joins_by_key=section.join_method == "same_key",
    )
    frames = {
        topic: _latest(spark, settings, (records or {}).get(topic), options) for topic, settings in inputs.items()
    }
    underlying = frames[section.underlying]
    if section.kind == "projection":
        return underlying.mapInArrow(task.projected, ROWS_DDL)
    if section.kind == "aggregate":
        parts = underlying.mapInArrow(task.contributions, PARTS_DDL)
        return parts.repartition("group").sortWithinPartitions("group").mapInArrow(task.folded, ROWS_DDL)
    rows = underlying.mapInArrow(task.lefts, LEFT_DDL)
    for place, each in enumerate(section.join):
        rights = frames[each.topic].mapInArrow(partial(task.rights, place=place), RIGHT_DDL)
        # Of several partners with one key the one with the least key counts.
        partners = rights.groupBy("join_key").agg(F.min_by("fields", "key").alias(f"partner{place}"))
        rows = rows.join(partners, rows["keys"][place] == partners["join_key"], "left").drop("join_key")
    return rows.mapInArrow(task.joined, ROWS_DDL)


def _latest(
    spark: SparkSession, settings: TopicSettings, given: DataFrame | None, options: Options | None
) -> DataFrame:
    """Return the last SOW record of each live key."""
    if given is None:
        latest = read_latest(spark, settings, with_connection(options, settings.kafka))
    else:
        if "headers" not in given.columns:
            given = given.withColumn("headers", F.lit(None).cast(HEADERS_DDL))
        latest = latest_records(given)
    live = latest.where(expires_at().isNull() | (expires_at() > F.current_timestamp()))
    return live.withColumn("timestamp_ms", F.unix_millis("timestamp"))
