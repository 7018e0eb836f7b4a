"""Rejected records and counters of the streaming merge, without Spark."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'sowstream[spark]'")
pytest.importorskip("pandas", reason="pandas is not installed: pip install 'sowstream[spark]'")

from prometheus_client import CollectorRegistry

from processor.errors import Stop
from processor.record import Record
from processor.store.marks import TransactionalMarks
from spark_integration.foundation.settings import topic_settings
from spark_integration.merge.partition_merge import KeyedState, PartitionMerge
from spark_integration.merge.streaming.merge_counts import MergeCounts, MergeListener, observation
from spark_integration.merge.streaming.processor import MergeProcessor
from spark_integration.merge.streaming.state import RejectWindow
from tests.spark.micro_batches import MicroBatches

NOW_MS = 1_700_000_000_000


def _settings(**config):
    return topic_settings("orders", {"foreign_partition": "accept", **config})


def _records(values, first=0):
    return [Record(b"1", value, None, first + number, NOW_MS) for number, value in enumerate(values)]


def test_a_query_stops_when_too_many_records_in_a_row_are_rejected() -> None:
    """Above `dlq_max_ratio` of a window that goes on over micro-batches, the merge stops with an example."""
    settings = _settings(dlq_max_ratio=0.5, dlq_window_records=10)
    query = MicroBatches(lambda: MergeProcessor(settings), random.Random(1))
    query.run({0: _records([b'{"id":1}'] * 50 + [b"{"] * 3)}, NOW_MS)
    query.run({0: _records([b"{"] * 2, 53)}, NOW_MS)
    with pytest.raises(Stop, match=r"orders.publish partition 0: 6 of 6 .* as undecodable, such as offset 55") as stop:
        query.run({0: _records([b"{"], 55)}, NOW_MS, fails=True)
    assert "topics.orders.dlq_max_ratio (now 0.5; 1 stops nothing)" in str(stop.value)
    query.run({0: _records([b'{"id":1}'] * 5 + [b"{"] * 5, 55)}, NOW_MS)  # The next window began in between.


@pytest.mark.parametrize("seed", range(5))
def test_a_window_stops_at_a_worker_s_windows_at_the_latest(seed) -> None:
    """A window stops the stream if a worker's windows would hold a partition; a limit of `1` stops nothing."""
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        is_rejected = [rng.random() < rng.choice([0.3, 0.9]) for _ in range(60)]
        windows = [is_rejected[at : at + 10] for at in range(0, 60, 10)]
        if max(map(sum, windows)) > 9:
            with pytest.raises(Stop):
                _took(rng, is_rejected, dlq_max_ratio=0.45)
        _took(rng, is_rejected, dlq_max_ratio=1)


def _took(rng, is_rejected, **config):
    settings, kept, at = _settings(dlq_window_records=10, **config), None, 0
    records = _records([b""] * len(is_rejected))
    while at < len(records):
        size = rng.randrange(1, 20)
        window = RejectWindow(settings, 0, kept)
        for record in records[at : at + size]:
            if is_rejected[record.offset]:
                window.rejected(record, "undecodable", "")
                window.rejected(record, "undecodable", "")  # As after an error of its batch.
        window.took(records[at : at + size])
        kept, at = window.value, at + size


def test_an_output_that_its_topic_does_not_accept_is_a_dead_letter() -> None:
    """A record whose merged form is larger than its topic accepts is rejected as `too_large`; others are merged."""
    bytes_max = {"sow": 70_000, "delta": 70_000}
    merge = PartitionMerge(_settings(), 0, KeyedState(), TransactionalMarks(), bytes_max=bytes_max)
    headers = [("client", b"c"), ("sequence", b"1"), ("x", b"y" * 70_000)]
    records = [
        Record(b"1", b'{"id":1,"a":"%s"}' % (b"a" * 40_000), None, 0, NOW_MS),
        Record(b"1", b'{"id":1,"b":"%s"}' % (b"b" * 40_000), None, 1, NOW_MS),
        Record(b"1", b'{"id":1,"c":1}', headers, 2, NOW_MS),
        Record(b"1", b'{"id":1,"d":1}', [("client", b"c"), ("sequence", b"1")], 3, NOW_MS),
    ]
    merge.process(records, NOW_MS)
    sent = merge.take()
    assert [len(value) for _, value, _ in sent["sow"]] == [40_015, 40_021]
    assert [dict(letter)["dlq_reason"] for _, _, letter in sent["dlq"]] == [b"too_large"] * 2
    assert [dict(letter)["version"] for _, _, letter in sent["sow"]] == [b"1", b"2"]
    assert merge.rejected == {"too_large": 2}


def test_a_micro_batch_counts_as_a_worker() -> None:
    """The counters of a micro-batch are records, outputs by role, rejected records by reason, and events."""
    query = MicroBatches(lambda: MergeProcessor(_settings()), random.Random(1))
    twice = [("client", b"c"), ("sequence", b"1"), ("ack_type", b"persisted")]
    records = [
        Record(b"1", b'{"id":1}', twice, 0, NOW_MS),
        Record(b"1", b'{"id":1}', twice, 1, NOW_MS),
        Record(b"1", b"{", None, 2, NOW_MS),
        Record(b"2", None, None, 3, NOW_MS),
    ]
    query.run({0: records}, NOW_MS)
    assert query.counts == {
        "records": 4,
        "emitted/sow": 1,
        "emitted/delta": 1,
        "emitted/dlq": 1,
        "emitted/mark": 2,  # The mark of the publisher, and that of lives.
        "emitted/ack": 2,
        "event/duplicate": 1,
        "event/delete_of_nothing": 1,
        "rejected/undecodable": 1,
    }


def test_a_listener_reports_the_counters_of_merges_only() -> None:
    """Counters of a query's progress become the workers' metrics and reach the callback; other observations do not."""
    registry, told = CollectorRegistry(), []
    listener = MergeListener(told.append, registry=registry)
    row = {"records": 3, "emitted/sow": 2, "rejected/bad_header": 1, "event/duplicate": None}
    rows = {observation("orders"): SimpleNamespace(asDict=lambda: row), "theirs": SimpleNamespace(asDict=dict)}
    for _ in range(2):
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(observedMetrics=rows)))
    assert told == [MergeCounts("orders", 3, {"sow": 2}, {"bad_header": 1}, {})] * 2
    labels = {"processor": "orders"}
    assert registry.get_sample_value("sowstream_records_consumed_total", labels) == 6
    assert registry.get_sample_value("sowstream_records_emitted_total", {**labels, "output": "sow"}) == 4
    assert registry.get_sample_value("sowstream_records_rejected_total", {**labels, "reason": "bad_header"}) == 2
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(observedMetrics=None)))  # Logged, not raised.
