"""The counters of a streaming merge: observed by Spark with each micro-batch, and reported by a listener."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryListener

from processor.record import RejectReason
from spark_integration.merge.streaming.chunks import RECORDS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

log = logging.getLogger("sowstream.spark")

_OBSERVATION: Final = "sowstream_merge/"
_OTHER: Final = "other"
_ROLES: Final = ("sow", "delta", "publish", "ack", "mark", "dlq")
_EVENTS: Final = (
    "conflict",
    "delete_of_nothing",
    "duplicate",
    "expired",
    "moved",
    "redelivered",
    "rekeyed",
    "stale_group",
    "unreadable_replaced",
)
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "emitted": _ROLES,
    "event": _EVENTS,
    "rejected": get_args(RejectReason),
}


class MergeCounts(NamedTuple):
    """The counters of one micro-batch of one topic."""

    topic: str
    """The family's name."""
    records: int
    """Input records that were merged, rejected, forwarded or duplicates."""
    emitted: Mapping[str, int]
    """Records for each output, by role; an ack counts when it is made, one micro-batch before it is sent."""
    rejected: Mapping[str, int]
    """Records in the dead-letter topic, by reason; those of plug-ins have the reason `other`."""
    events: Mapping[str, int]
    """The events that workers count as `sowstream_events_total`."""


def observation(topic: str) -> str:
    """The name of the observation in a query's progress."""
    return f"{_OBSERVATION}{topic}"


def observed() -> list[Column]:
    """The expressions that sum the counters of a micro-batch: those of `OUTPUT_DDL`."""
    names = [RECORDS, *(f"{kind}/{name}" for kind, names in _KINDS.items() for name in names)]
    sums = [F.sum(F.when(F.col("name") == name, F.col("count"))).alias(name) for name in names]
    is_other = F.col("name").startswith("rejected/") & ~F.col("name").isin(names)
    return [*sums, F.sum(F.when(is_other, F.col("count"))).alias(f"rejected/{_OTHER}")]


def counts_of(topic: str, row: Mapping[str, int | None]) -> MergeCounts:
    """Read an observation of a query's progress."""
    kinds: dict[str, dict[str, int]] = {kind: {} for kind in _KINDS}
    for name, count in row.items():
        kind, _, rest = name.partition("/")
        if rest and count:
            kinds[kind][rest] = count
    return MergeCounts(topic, row[RECORDS] or 0, kinds["emitted"], kinds["rejected"], kinds["event"])


class MergeListener(StreamingQueryListener):
    """Reports the counters of `merge_stream` after every micro-batch: `spark.streams.addListener(MergeListener(...))`.

    Its errors are logged and never reach the queries.
    """

    def __init__(
        self,
        on_counts: Callable[[MergeCounts], None] | None = None,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Create a listener.

        Args:
            on_counts: called after each micro-batch of each query that merges.
            registry: the registry of the metrics, such as `prometheus_client.REGISTRY`: the workers'
                `sowstream_records_consumed_total`, `sowstream_records_emitted_total`,
                `sowstream_records_rejected_total` and `sowstream_events_total`, with the workers' labels.
        """
        self._on_counts = on_counts
        self._metrics = None if registry is None else _Metrics(registry)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - as above
        """Report the counters of a micro-batch."""
        try:
            for name, row in event.progress.observedMetrics.items():
                if not name.startswith(_OBSERVATION):
                    continue
                counts = counts_of(name.removeprefix(_OBSERVATION), row.asDict())
                if self._metrics is not None:
                    self._metrics.add(counts)
                if self._on_counts is not None:
                    self._on_counts(counts)
        except Exception:
            log.exception("reporting the counters of a merge failed; the query goes on")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - as above
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - as above
        """Do nothing."""


class _Metrics:
    """The workers' metrics, of a merge on Spark."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter  # noqa: PLC0415 - an optional package

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"sowstream_{name}_total", text, ("processor", *labels), registry=registry)

        self._consumed = counter("records_consumed", "Input records given to a processor.")
        self._emitted = counter("records_emitted", "Records forwarded to an output.", "output")
        self._rejected = counter("records_rejected", "Input records sent to the DLQ.", "reason")
        self._events = counter("events", "What a processor counts itself.", "event")

    def add(self, counts: MergeCounts) -> None:
        """Add the counters of a micro-batch."""
        self._consumed.labels(counts.topic).inc(counts.records)
        for metric, values in (
            (self._emitted, counts.emitted),
            (self._rejected, counts.rejected),
            (self._events, counts.events),
        ):
            for name, count in values.items():
                metric.labels(counts.topic, name).inc(count)
