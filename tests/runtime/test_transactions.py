"""What a commit that Kafka has done is told to metrics and tasks, whatever the tasks make of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ProcessorFailed, ProducerLost, TransactionAborted
from processor.hosting.commit_metadata import CommitMetadata
from processor.hosting.pipeline import Pipeline
from processor.runtime.task import Counts, Prepared
from processor.runtime.transactions import Transactions, back_off_s


class KeepingProducer:
    """Commits whatever it is asked to."""

    offsets: dict[int, int]

    def begin_commit(self, _topic: str, offsets: dict[int, int], _group: object, **_: object) -> None:
        """Kafka has it."""
        self.offsets = offsets

    def finish_commit(self) -> float:
        """At once."""
        return 0.0


class KeepingMetrics:
    """What was counted."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def committed(self, _seconds: float) -> None:
        """One more."""

    def counts(self, counts: Counts) -> None:
        """Of one task."""
        self.events += counts.events


class OneTask:
    """A task with one event in a transaction."""

    marks = None

    def __init__(self, partition: int, error: Exception | None = None) -> None:
        self.partition, self._error = partition, error

    def prepare(self) -> Prepared:
        """The event, and a position."""
        return Prepared(self.partition + 10, CommitMetadata(None, ""), Counts({f"event {self.partition}": 1}, {}, {}))

    def committed(self) -> None:
        """It may have heard of no delivery."""
        if self._error is not None:
            raise self._error


def test_what_kafka_has_is_counted_though_a_state_has_to_be_read_back():
    """Of every task: those behind it are rewound, too, and their records do not come again."""
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


def test_the_pause_grows_with_each_transaction_that_fails_in_a_row():
    """There is no pause after the first failure, and never more than two seconds."""
    for error in (TransactionAborted("x"), ProducerLost("x")):
        assert [back_off_s(error, failures) for failures in (0, 1, 2, 3, 4, 99)] == [0.0, 0.1, 0.5, 2.0, 2.0, 2.0]


def test_there_is_no_pause_after_an_error_of_a_processor():
    """With a pause each, a thousand failing records in a row would take half an hour to reach the reject limit."""
    assert [back_off_s(ProcessorFailed("x"), failures) for failures in (0, 3, 1000)] == [0.0, 0.0, 0.0]
