"""Tests of transactions: counts of a commit, and the pause after failures."""

from __future__ import annotations

from typing import Any, cast

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ProcessorFailed, ProducerLost, TransactionAborted
from processor.hosting.commit_metadata import CommitMetadata
from processor.hosting.pipeline import Pipeline
from processor.kafka.partitioner import partition_for
from processor.record import Outgoing
from processor.runtime.task import Counts, Prepared
from processor.runtime.transactions import Transactions, back_off_s


class KeepingProducer:
    """A producer that keeps the committed offsets."""

    offsets: dict[int, int]

    def begin_commit(self, _topic: str, offsets: dict[int, int], _group: object, **_: object) -> None:
        """Keep the offsets."""
        self.offsets = offsets

    def finish_commit(self) -> float:
        """Finish at once."""
        return 0.0


class KeepingMetrics:
    """Metrics that keep the counted events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def committed(self, _seconds: float) -> None:
        """Count a commit."""

    def counts(self, counts: Counts) -> None:
        """Keep the counts of a task."""
        self.events += counts.events


class OneTask:
    """A task with one event in a transaction."""

    marks = None

    def __init__(self, partition: int, error: Exception | None = None) -> None:
        self.partition, self._error = partition, error

    def prepare(self) -> Prepared:
        """Prepare the event and a position."""
        return Prepared(self.partition + 10, CommitMetadata(None, ""), Counts({f"event {self.partition}": 1}, {}, {}))

    def committed(self) -> None:
        """Commit, or raise for a missing delivery report."""
        if self._error is not None:
            raise self._error


def test_a_commit_is_counted_even_if_a_state_is_read_back():
    """The events of all tasks are counted, as their records are not repeated."""
    producer, metrics = KeepingProducer(), KeepingMetrics()
    pipeline = Pipeline.of(DeltaMerge, TopicConfig(), name="orders", topic=TopicConfig())
    transactions = Transactions(pipeline, cast("Any", producer), cast("Any", metrics))
    tasks = [OneTask(0), OneTask(1, TransactionAborted("committed without a delivery report")), OneTask(2)]
    transactions.begin_commit(cast("Any", tasks), None, None)
    with pytest.raises(TransactionAborted, match="delivery report"):
        transactions.finish()
    assert producer.offsets == {0: 10, 1: 11, 2: 12}
    assert metrics.events == ["event 0", "event 1", "event 2"]
    assert not transactions.finish(), "nothing is under way any more"


class SendingProducer:
    """A producer that keeps what was sent: topic, partition and keys."""

    is_open = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None, list[bytes | None]]] = []

    def send(self, topic: str, partition: int | None, records: list[Outgoing]) -> int:
        """Keep a batch."""
        self.sent.append((topic, partition, [key for key, _, _ in records]))
        return 0


def test_a_repartitioned_record_goes_to_the_home_of_its_key_by_the_settings():
    """Not by the partitions that the topic has: where it has grown, workers would send a record back and forth."""
    keys = [b"%d" % number for number in range(20)]

    class Task:
        partition = 1

        def take_places(self) -> dict[str, list[int]]:
            return {}

        def take_outputs(self) -> dict[str, list[Outgoing]]:
            return {"publish": [(key, b"", []) for key in keys], "ack": [(b"a", b"", [])]}

    producer = SendingProducer()
    topic = TopicConfig(partitions=3)
    pipeline = Pipeline.of(DeltaMerge, topic, name="orders", topic=topic)
    metrics = type("Metrics", (), {"emitted": lambda *_: None})()
    Transactions(pipeline, cast("Any", producer), metrics).send(cast("Any", Task()))
    assert ("orders.ack", 1, [b"a"]) in producer.sent
    homes = {key: partition for topic, partition, each in producer.sent for key in each if topic == "orders.publish"}
    assert homes == {key: partition_for(key, 3) for key in keys}


def test_the_pause_grows_with_each_transaction_that_fails_in_a_row():
    """There is no pause after the first failure, and never more than two seconds."""
    for error in (TransactionAborted("x"), ProducerLost("x")):
        assert [back_off_s(error, failures) for failures in (0, 1, 2, 3, 4, 99)] == [0.0, 0.1, 0.5, 2.0, 2.0, 2.0]


def test_there_is_no_pause_after_an_error_of_a_processor():
    """With a pause each, a thousand failing records in a row would take half an hour to reach the reject limit."""
    assert [back_off_s(ProcessorFailed("x"), failures) for failures in (0, 3, 1000)] == [0.0, 0.0, 0.0]
