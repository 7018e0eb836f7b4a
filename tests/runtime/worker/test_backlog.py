"""Tests of the backlog watch: what waits in Kafka for partitions that do not run, and of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from processor.kafka.admin.groups import GroupInspector
from processor.runtime.loop.clients import WaitingRecords
from processor.runtime.loop.task_reports import PipelineReport
from processor.runtime.task_state import TaskState
from processor.runtime.worker.watcher import BacklogWatch, WatchedPipeline
from tests.runtime.loop.turned_thread import mock_kafka
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "app.orders"


@pytest.fixture
def kafka() -> Iterator[dict[str, str]]:
    """A broker with four input records and three dead letters, of which groups have taken two and one."""
    with mock_kafka() as kafka:
        producer = Producer(kafka)
        for topic, count in (("orders.publish", 4), ("orders.dlq", 3)):
            for _ in range(count):
                producer.produce(topic, b"{}", b"7", 0)
        assert producer.flush(PATIENCE_S) == 0
        commit(kafka, GROUP, "orders.publish", 2)
        commit(kafka, f"{GROUP}.dlq", "orders.dlq", 1)
        yield kafka


def commit(kafka: dict[str, str], group: str, topic: str, offset: int) -> None:
    """Commit a position of a group."""
    consumer = Consumer(kafka | {"group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def watched(kafka: dict[str, str]) -> tuple[BacklogWatch, WatchedPipeline, PipelineReport]:
    """A watch that was not started, its pipeline, and the report of the pipeline's tasks."""
    report = PipelineReport()
    one = WatchedPipeline(GROUP, "orders.publish", "orders.dlq", f"{GROUP}.dlq", report, WaitingRecords())
    return BacklogWatch(GroupInspector(kafka), [one]), one, report


def test_input_of_a_partition_that_does_not_run_is_counted(kafka: dict[str, str]) -> None:
    """A restoring or held partition has a lag; of a running one the stream thread knows it."""
    watch, one, report = watched(kafka)
    for state in (TaskState.RESTORING, TaskState.HELD):
        report.update({0: state}, {}, {})
        watch.look(one, counts_letters=False)
        assert (one.backlog.input, one.backlog.letters) == ({0: 3}, {})
    report.update({0: TaskState.RUNNING}, {}, {})
    watch.look(one, counts_letters=False)
    assert one.backlog.input == {}


def test_dead_letters_that_were_not_sent_back_are_counted(kafka: dict[str, str]) -> None:
    """Letters before the position of the replay's group do not wait; without a position all do."""
    watch, one, report = watched(kafka)
    report.update({0: TaskState.RUNNING}, {}, {})
    watch.look(one, counts_letters=True)
    assert one.backlog.letters == {0: 2}
    other = one._replace(letters_group="app.other.dlq")
    watch.look(other, counts_letters=True)
    assert other.backlog.letters == {0: 3}


def test_without_an_answer_the_last_figures_stay() -> None:
    """A Kafka that is away is no backlog of zero."""
    watch, one, report = watched({"bootstrap.servers": "127.0.0.1:1"})
    one.backlog.letters = {0: 7}
    report.update({0: TaskState.RUNNING}, {}, {})
    watch.look(one, counts_letters=True)
    assert one.backlog.letters == {0: 7}
