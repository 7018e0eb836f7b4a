"""A worker's watcher of its topics, its disk, and its group's backlog."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from structlog.testing import capture_logs

from processor.config.kafka_names import KafkaNames
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import GroupInspector
from processor.runtime.loop.clients import RetentionHeadroom, WaitingRecords
from processor.runtime.loop.task_reports import PipelineReport
from processor.runtime.task_state import TaskState
from processor.runtime.worker.watcher import _LOOKS, BacklogWatch, Job, UnconfirmedChanges, WatchedPipeline, Watcher
from processor.topics import Problem, recreated
from tests.runtime.loop.turned_thread import mock_kafka
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator


GONE = Problem("refuse", "orders.publish", "was deleted", "")
RECREATED = recreated(KafkaNames(), "orders", "sow")
NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000


def test_a_change_counts_once_all_looks_in_a_row_agree():
    """A starting broker may report a wrong change several times: a change counts only after enough looks in a row."""
    changes = UnconfirmedChanges()
    for _ in range(_LOOKS - 1):
        assert changes.confirm([GONE, RECREATED]) == []
    assert changes.confirm([RECREATED]) == [RECREATED], "all looks agree on this one"
    for _ in range(_LOOKS - 1):
        assert changes.confirm([GONE]) == [], "counted from the start again"
    assert changes.confirm([GONE]) == [GONE]


def test_after_a_silence_the_count_begins_again():
    """A broker that did not answer may have been starting: its earlier answers do not confirm later ones."""
    changes = UnconfirmedChanges()
    for _ in range(_LOOKS - 1):
        changes.confirm([GONE])
    assert changes.confirm([]) == []
    assert changes.confirm([GONE]) == []


def headroom_s(retention_ms: int | None, lag: int, time_ms: int) -> dict[int, float]:
    """Compute the headroom of one partition."""
    headroom = RetentionHeadroom()
    headroom.set_retention("orders.publish", retention_ms)
    return headroom.of_partitions("orders.publish", {0: lag}, {0: time_ms}, NOW_MS)


def test_a_lagging_partition_has_the_retention_less_the_age_of_its_last_record():
    """With an hour of retention, ten minutes of lag leave fifty minutes, and two hours of lag leave minus one hour."""
    assert headroom_s(HOUR_MS, 5, NOW_MS - 600_000) == {0: 3000.0}
    assert headroom_s(HOUR_MS, 5, NOW_MS - 7_200_000) == {0: -3600.0}
    assert headroom_s(HOUR_MS, 5, NOW_MS + 600_000) == {0: 3600.0}


def test_a_partition_without_lag_has_the_full_retention():
    """The age of the last record does not count: the next record is not written yet."""
    assert headroom_s(HOUR_MS, 0, 1) == {0: 3600.0}


def test_a_topic_without_retention_limit_has_infinite_headroom():
    """Prometheus writes it as +Inf."""
    assert headroom_s(None, 5, 1) == {0: math.inf}


def test_unknown_headroom_is_left_out():
    """It is unknown before the first look at the topic, and before the first record of a lagging partition."""
    assert RetentionHeadroom().of_partitions("orders.publish", {0: 0}, {0: 0}, NOW_MS) == {}
    assert headroom_s(HOUR_MS, 5, 0) == {}
    assert headroom_s(HOUR_MS, 0, 0) == {0: 3600.0}


class Clock:
    """A clock that is also the event that ends a watcher, once an hour has passed: waiting moves it on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def wait(self, pause_s: float) -> bool:
        """Wait; returns whether the watcher is to end."""
        self.now_s += pause_s
        return self.now_s >= 3600.0


def test_each_job_runs_when_it_is_due():
    """A job chooses its next time itself, and the first time is its own, too."""
    clock = Clock()
    runs: list[tuple[str, float]] = []

    def job(name: str, pause_s: float, first_s: float = 0.0) -> Job:
        def run() -> float:
            runs.append((name, clock.now_s))
            return pause_s

        return Job(name, run, first_s)

    Watcher([job("often", 1000.0), job("late", 2000.0, first_s=1500.0)], cast("Any", clock), clock_s=clock).run()
    assert runs == [
        ("often", 0.0), ("often", 1000.0), ("late", 1500.0), ("often", 2000.0), ("often", 3000.0), ("late", 3500.0)
    ]  # fmt: skip


def test_a_job_that_raises_ends_no_other_and_is_tried_again():
    """The error is logged."""
    clock = Clock()
    tries: list[float] = []

    def failing() -> float:
        tries.append(clock.now_s)
        raise OSError("no space left")

    with capture_logs() as logs:
        Watcher([Job("failing", failing)], cast("Any", clock), clock_s=clock).run()
    assert tries[:3] == [0.0, 10.0, 20.0]
    assert logs[0]["job"] == "failing"


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
    return BacklogWatch(Admin(kafka), GroupInspector(kafka), [one]), one, report


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
    """Letters before the position of the replay's group do not wait."""
    watch, one, report = watched(kafka)
    report.update({0: TaskState.RUNNING}, {}, {})
    watch.look(one, counts_letters=True)
    assert one.backlog.letters == {0: 2}


def test_without_an_answer_the_last_figures_stay() -> None:
    """A Kafka that is away is no backlog of zero."""
    watch, one, report = watched({"bootstrap.servers": "127.0.0.1:1"})
    one.backlog.letters = {0: 7}
    report.update({0: TaskState.RUNNING}, {}, {})
    watch.look(one, counts_letters=True)
    assert one.backlog.letters == {0: 7}
