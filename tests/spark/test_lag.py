from __future__ import annotations

import json
import logging
import uuid

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress

from spark_integration import stream_sow
from spark_integration.lag import LagListener, PartitionLag

ID = str(uuid.UUID(int=7))


def progress(done, latest, name="book"):
    """The event of a batch; offsets by topic and partition, or any text."""
    source = {
        "description": "KafkaV2[Subscribe[orders.sow]]",
        "startOffset": None,
        "endOffset": done if isinstance(done, str) else json.dumps(done),
        "latestOffset": latest if isinstance(latest, str) else json.dumps(latest),
        "numInputRows": 0,
        "inputRowsPerSecond": 0.0,
        "processedRowsPerSecond": 0.0,
    }
    told = {
        "id": ID,
        "runId": ID,
        "name": name,
        "timestamp": "2026-01-31T12:00:00.000Z",
        "batchId": 1,
        "batchDuration": 1,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "x", "numOutputRows": 0, "metrics": {}},
        "observedMetrics": {},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(told))


def test_lag_is_the_distance_to_the_end() -> None:
    """The lag is the distance from the query's position to the end; all records of a new partition count."""
    told = []
    listener = LagListener(told.append)
    listener.onQueryProgress(progress({"orders.sow": {"0": 5, "1": 7}}, {"orders.sow": {"0": 9, "1": 7, "2": 3}}))
    assert told == [
        [
            PartitionLag("book", "orders.sow", 0, 4),
            PartitionLag("book", "orders.sow", 1, 0),
            PartitionLag("book", "orders.sow", 2, 3),
        ]
    ]


@pytest.mark.parametrize("offsets", ["None", "17", "[1]", '{"seconds": 3}', "not JSON"])
def test_other_sources_are_passed_over(offsets) -> None:
    """Sources other than Kafka, with other kinds of offsets, have no lag."""
    told = []
    LagListener(told.append).onQueryProgress(progress(offsets, offsets))
    assert told == [[]]


def test_gauges_are_there_as_long_as_the_query() -> None:
    """Gauges have the name or id of the query, the topic and the partition, and are removed when the query ends."""
    registry = CollectorRegistry()
    listener = LagListener(registry=registry)
    listener.onQueryProgress(progress({"a.sow": {"0": 5, "1": 1}}, {"a.sow": {"0": 9, "1": 1}}, name=None))
    labels = {"query": ID, "topic": "a.sow", "partition": "0"}
    assert registry.get_sample_value("sowstream_spark_lag_offsets", labels) == 4
    assert registry.get_sample_value("sowstream_spark_progress_timestamp_seconds", {"query": ID}) > 1e9
    listener.onQueryProgress(progress({"a.sow": {"1": 1}}, {"a.sow": {"1": 1}}, name=None))
    assert registry.get_sample_value("sowstream_spark_lag_offsets", labels) is None
    for _ in range(2):
        listener.onQueryTerminated(QueryTerminatedEvent(uuid.UUID(ID), uuid.UUID(ID), None, None))
    assert [sample for metric in registry.collect() for sample in metric.samples] == []


def test_errors_of_the_listener_are_logged(caplog) -> None:
    """An error in the listener is logged and does not reach the query."""

    def fail(lags):
        raise RuntimeError("the pager is out of order")

    registry = CollectorRegistry()
    with caplog.at_level(logging.ERROR, "sowstream.spark"):
        LagListener(fail, registry=registry).onQueryProgress(progress({"a": {"0": 5}}, {"a": {"0": 9}}))
    assert "the query goes on" in caplog.text
    assert "the pager is out of order" in caplog.text
    assert (
        registry.get_sample_value("sowstream_spark_lag_offsets", {"query": "book", "topic": "a", "partition": "0"}) == 4
    )


@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_real_query_catches_up(spark, family) -> None:
    """The lag of a query with small batches falls to 0, and a callback that always raises does not end the query."""
    family.create("sow")
    with family.transaction("sow") as write:
        for i in range(12):
            write(str(i), "{}", version="1")
    seen: list[int] = []

    def on_lag(lags):
        seen.append(sum(lag.offsets for lag in lags))
        raise RuntimeError("never mind")

    listener = LagListener(on_lag)
    spark.streams.addListener(listener)
    try:
        options = family.options | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "6"}
        stream = stream_sow(spark, family.name, options=options)
        query = stream.writeStream.format("noop").queryName(f"{family.name}_lag").trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        # Spark tells its listeners a little later.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)
    finally:
        spark.streams.removeListener(listener)
    assert query.exception() is None
    assert len(seen) >= 2
    assert seen[0] > 0
    assert seen[-1] == 0
    assert seen == sorted(seen, reverse=True)
