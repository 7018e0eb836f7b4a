"""Merges a history of publishes and deltas into the SOW records of its keys, on as many cores as Spark has."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import ConfigurationError, Stop
from spark_integration.foundation.options import client_properties, with_connection
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.merge.batch.base_state import Base, as_base, from_topics
from spark_integration.merge.batch.deduplicate import Keyless, MergePlan, deduplicate
from spark_integration.merge.batch.fold import COUNT, FOREIGN, KEYLESS, RECORDS, REJECTED, SEQUENCED, Fold
from spark_integration.merge.batch.history import Offsets, as_records, bounds_of, read_topic
from spark_integration.merge.batch.result import Merged
from spark_integration.merge.batch.runs.sequence_log import SEQUENCE
from spark_integration.merge.topic_family import Bounds, TopicFamily

if TYPE_CHECKING:
    from spark_integration.foundation.options import Options


def merge_batch(
    spark: SparkSession,
    topic: str,
    *,
    config: Settings = None,
    options: Options | None = None,
    history: DataFrame | None = None,
    base: DataFrame | Literal["sow"] | None = None,
    since: Offsets | None = None,
    until: Offsets | datetime | None = None,
    as_of: datetime | None = None,
    deltas: bool = False,
    keyless: Keyless = "error",
    partitions: int | None = None,
) -> Merged:
    """Merge a history as a worker would that reads each record at the time of its publish.

    Args:
        spark: a session; with Spark's Kafka connector where topics are read.
        topic: the family's name.
        config: its settings; see `topic_settings`.
        options: options of Spark's Kafka source; needed where topics are read.
        history: rows with the columns of Spark's Kafka source, such as an archive; None: `<topic>.publish` itself.
        base: the state before the history: SOW records with the columns `key`, `value`, `headers` and `partition`, or
            `"sow"` for the topic's own records and marks; then the merge reads the input that the stopped workers have
            not read.
        since: the first offset of each partition to read; None: the oldest kept, or with a base of `"sow"` the offsets
            of the workers.
        until: the offset after the last one of each partition, or a time; None: everything committed now.
        as_of: records due at this time expire at the end; None: now.
        deltas: output every delta too.
        keyless: the treatment of records that a worker forwards: those without a Kafka key, and those of a new key that
            belongs to another partition. `error`: nothing is merged. `skip`: they are left out, because workers have
            read and forwarded them. `merge`: no worker has, and they are merged after all others of their key, the
            place of a worker's copies.
        partitions: the number of tasks that merge; None: `spark.sql.shuffle.partitions`.

    Returns:
        The merged records and counters, persisted on the executors' disks.

    Raises:
        ConfigurationError: settings, options or columns cannot be used, or records have no key.
        Stop: more records were rejected than `dlq_max_ratio` allows; nothing stays persisted.
    """
    settings = topic_settings(topic, config, options=options)
    _refuse(settings, history, base, since, until, as_of, keyless)
    as_of_ms = round((time.time() if as_of is None else as_of.timestamp()) * 1000)
    merge_input = _input(spark, settings, options, history, base, since, until)
    bases = {} if merge_input.base is None else dict(merge_input.base.bases)
    begins = {} if merge_input.bounds is None else merge_input.bounds.begins
    fold = Fold(settings, as_of_ms, deltas, keyless == "merge", merge_input.hashed_over, bases, begins)
    plan = MergePlan(settings, as_records(merge_input.history), merge_input.base, fold, keyless, partitions)
    return _merged(plan, merge_input.bounds)


class _Input(NamedTuple):
    """The input of a merge."""

    history: DataFrame
    """The records, with the columns of Spark's Kafka source."""
    base: Base | None
    """The state before them."""
    bounds: Bounds | None
    """Their offsets; None for a history from elsewhere."""
    hashed_over: int | None
    """The number of partitions that keys are hashed over; None: unknown."""


def _input(
    spark: SparkSession,
    settings: TopicSettings,
    options: Options | None,
    history: DataFrame | None,
    base: DataFrame | Literal["sow"] | None,
    since: Offsets | None,
    until: Offsets | datetime | None,
) -> _Input:
    """Read the history and the base from the topics, where the caller has not given them."""
    bounds: Bounds | None = None
    first = Base(as_base(base), None) if isinstance(base, DataFrame) else None
    # The number of partitions of an archive's topic is only known from the settings.
    hashed_over = settings.topic.partitions if "partitions" in settings.topic.model_fields_set else None
    if history is None or isinstance(base, str):
        with TopicFamily(settings, client_properties(settings.kafka, options)) as family:
            options = with_connection(options, settings.kafka)
            count = hashed_over = family.partitions("publish")
            if isinstance(base, str):
                first, since = from_topics(spark, settings, family, options)
            if history is None:
                bounds = bounds_of(family, count, since, until)
                history = read_topic(spark, settings, "publish", bounds, options)
    return _Input(history, first, bounds, hashed_over)


def _merged(plan: MergePlan, bounds: Bounds | None) -> Merged:
    """Merge, and refuse a result with too many rejected records; then nothing stays persisted."""
    rows, marks, counted, kept = deduplicate(plan)
    counts, rejected_for = _totals(counted)
    try:
        _refuse_many_rejected(plan.settings, counts, rejected_for)
    except Stop:
        for frame in kept:
            frame.unpersist()
        raise
    return Merged(
        settings=plan.settings,
        rows=rows.where(~F.col("topic").isin(COUNT, SEQUENCE)),
        marks=marks,
        counts=counts,
        rejected_for=rejected_for,
        bounds=bounds,
        as_of_ms=plan.fold.as_of_ms,
        has_deltas=plan.fold.deltas,
        has_base=plan.base is not None,
        kept=kept,
    )


def _refuse(
    settings: TopicSettings,
    history: DataFrame | None,
    base: DataFrame | str | None,
    since: Offsets | None,
    until: Offsets | datetime | None,
    as_of: datetime | None,
    keyless: str,
) -> None:
    """Refuse settings that cannot be merged here, and arguments that contradict each other."""
    if isinstance(base, str) and base != "sow":
        raise ConfigurationError(f"base={base!r}: say 'sow', or give a DataFrame of SOW records")
    if history is not None and (since is not None or until is not None or isinstance(base, str)):
        raise ConfigurationError(
            "since, until and base='sow' are for the topic itself; of a `history` filter the rows, and read its base "
            "before"
        )
    if isinstance(base, str) and since is not None:
        raise ConfigurationError("base='sow' begins where the workers stopped; leave `since` out")
    if keyless not in get_args(Keyless):
        raise ConfigurationError(f"keyless={keyless!r}: say one of {', '.join(get_args(Keyless))}")
    for name, moment in (("as_of", as_of), ("until", until)):
        if isinstance(moment, datetime) and moment.utcoffset() is None:
            raise ConfigurationError(f"{name} has no time zone: {moment.isoformat()} could mean several moments")
    if settings.topic.key_format != "text":
        raise ConfigurationError(
            f"{settings.name} has key_format {settings.topic.key_format!r}, which merge_batch does not read; workers "
            "and merge_stream do"
        )


def _totals(counted: Counter[str]) -> tuple[Counter[str], Counter[str]]:
    """Compute the public counters from those of the tasks: of all records, and of the rejected ones by reason."""
    rejected_for = Counter(
        {name.removeprefix(REJECTED): count for name, count in counted.items() if name.startswith(REJECTED)}
    )
    rejected = rejected_for.total()
    counts = Counter({name: count for name, count in counted.items() if not name.startswith(REJECTED)})
    del counts[SEQUENCED]
    counts["rejected"], counts["merged"] = rejected, counts[RECORDS] - rejected - counts["duplicate"]
    counts[RECORDS] += counts[KEYLESS] + counts[FOREIGN]
    return +counts, rejected_for


def _refuse_many_rejected(settings: TopicSettings, counts: Counter[str], rejected_for: Counter[str]) -> None:
    """Refuse a history with too many rejected records: then probably a setting is wrong."""
    topic = settings.topic
    records, rejected = counts[RECORDS], counts["rejected"]
    if records < topic.dlq_window_records or rejected <= topic.dlq_max_ratio * records:
        return
    ((reason, count),) = rejected_for.most_common(1)
    raise Stop(
        f"{settings.name}: {rejected} of {records} records were rejected, {count} as {reason}. If the topic's settings "
        "are wrong (message_type, schema, key), mend them. If the records are, let them pass: raise dlq_max_ratio (now "
        f"{topic.dlq_max_ratio:g}; 1 never stops), and look at `rejected` of what comes out"
    )
