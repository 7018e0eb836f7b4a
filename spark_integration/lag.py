"""Reports the lag of Spark's queries: Spark commits no offsets, so Kafka's own tools cannot measure it."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        SourceProgress,
    )

log = logging.getLogger("sowstream.spark")


class PartitionLag(NamedTuple):
    """The lag of a query in one partition."""

    query: str
    """The name of the query, else its id."""
    topic: str
    """The Kafka topic."""
    partition: int
    """The partition number."""
    offsets: int
    """Offsets between the query's position and the end; transaction markers and compacted records count."""


class LagListener(StreamingQueryListener):
    """Reports the lag after every batch of a session's queries: `spark.streams.addListener(LagListener(...))`.

    Its errors are logged and never reach the queries.
    """

    def __init__(
        self,
        on_lag: Callable[[Sequence[PartitionLag]], None] | None = None,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        """Create a listener.

        Args:
            on_lag: called after each batch with every partition that the query reads.
            registry: the registry of the gauges, such as `prometheus_client.REGISTRY`; its server is
                `prometheus_client.start_http_server(port)`. `sowstream_spark_lag_offsets` is by query, topic and
                partition; `sowstream_spark_progress_timestamp_seconds` by query is the time of its last event, as the
                lag of a query that hangs does not change.
        """
        self._on_lag = on_lag
        self._gauges = None if registry is None else _Gauges(registry)
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Store the name of the query."""
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - as above
        """Report the lag after a batch."""
        try:
            progress = event.progress
            query = progress.name or str(progress.id)
            self._names[str(progress.id)] = query
            lags = [lag for source in progress.sources for lag in _lags(query, source)]
            if self._gauges is not None:
                self._gauges.set_lags(query, lags)
            if self._on_lag is not None:
                self._on_lag(lags)
        except Exception:
            log.exception("reporting the lag of a query failed; the query goes on")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - as above
        """Record that a query without new input is alive."""
        if self._gauges is not None and (query := self._names.get(str(event.id))) is not None:
            self._gauges.mark_alive(query)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - as above
        """Remove the gauges of a query that has ended."""
        query = self._names.pop(str(event.id), None)
        if self._gauges is not None and query is not None:
            self._gauges.forget(query)


class _Gauges:
    """The gauges for Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Gauge  # noqa: PLC0415 - an optional package

        self._lag = Gauge(
            "sowstream_spark_lag_offsets",
            "Offsets between what a streaming query has done and the end of the partition.",
            ("query", "topic", "partition"),
            registry=registry,
        )
        self._progress = Gauge(
            "sowstream_spark_progress_timestamp_seconds",
            "When a streaming query was last heard of, seconds since the epoch.",
            ("query",),
            registry=registry,
        )
        self._labels: dict[str, set[tuple[str, str, str]]] = {}

    def set_lags(self, query: str, lags: Sequence[PartitionLag]) -> None:
        """Set the lag of a query's partitions, and remove those that it no longer reads."""
        labels = {(query, lag.topic, str(lag.partition)): lag.offsets for lag in lags}
        for gone in self._labels.get(query, set()) - labels.keys():
            self._lag.remove(*gone)
        for label, offsets in labels.items():
            self._lag.labels(*label).set(offsets)
        self._labels[query] = set(labels)
        self.mark_alive(query)

    def mark_alive(self, query: str) -> None:
        """Set the time of the last event of a query to now."""
        self._progress.labels(query).set(time.time())

    def forget(self, query: str) -> None:
        """Remove all gauges of a query."""
        if query not in self._labels:
            return
        for label in self._labels.pop(query):
            self._lag.remove(*label)
        self._progress.remove(query)


def _lags(query: str, source: SourceProgress) -> list[PartitionLag]:
    """The lag of each partition of one source; empty for a source other than Kafka."""
    done, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
    if not done:
        return []  # Nothing yet.
    return [
        PartitionLag(query, topic, int(partition), max(0, end - done.get(topic, {}).get(partition, 0)))
        for topic, ends in latest.items()
        for partition, end in ends.items()
    ]


def _offsets(text: str | None) -> dict[str, dict[str, int]]:
    """Offsets by topic and partition, as Spark's Kafka source writes them."""
    try:
        offsets = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(offsets, dict) or not all(isinstance(ends, dict) for ends in offsets.values()):
        return {}
    return offsets
