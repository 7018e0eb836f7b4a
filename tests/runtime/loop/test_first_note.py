"""Tests of a group without offset metadata, which begins with a commit, on librdkafka's mock cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Producer

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.config.runtime import RuntimeConfig
from processor.hosting.pipeline import Pipeline
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.kafka.clients.log_reader import LogReader
from processor.kafka.clients.staged_producer import StagedProducer
from processor.runtime.loop.clients import Clients
from processor.runtime.loop.committer import StagedCommitter
from processor.runtime.loop.stream_thread import StreamThread
from processor.runtime.recovery.input_position import InputPositions, Start
from processor.runtime.recovery.restore_range import RestoreRange, RestoreRanges
from processor.runtime.recovery.restorer import Restorer
from processor.runtime.task import Task
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from tests.runtime.loop.turned_thread import Assigned
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

_SESSION_S = 60.0


@pytest.fixture
def kafka() -> Iterator[dict[str, str]]:
    """Create a broker within this process, with one input record."""
    mock = {"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0}
    owner = Producer(mock)
    brokers = owner.list_topics(timeout=PATIENCE_S).brokers.values()
    owner.produce("orders.publish", b"{}", b"7", 0)
    assert owner.flush(PATIENCE_S) == 0
    yield {"bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}
    owner.flush(0)


def _found(kafka: dict[str, str]) -> Start:
    """Ask for the start of the partition as a restore does."""
    positions = InputPositions("a", "orders", "orders.publish")
    positions.topic_id = "of the mock, which does not tell"
    ranges = RestoreRanges(
        Admin(kafka),
        positions,
        group="g",
        source="orders.publish",
        sow=None,
        mark=None,
    )
    ranges.add(0)
    outcome = until(ranges.turn, "an answer")[0]
    assert isinstance(outcome, RestoreRange)
    return outcome.start


def test_older_sow_records_are_not_taken_for_redelivered_ones(kafka: dict[str, str]) -> None:
    """Before a record is read, the end of SOW is committed as metadata."""
    topic = TopicConfig(source_header=True)
    pipeline = Pipeline.of(DeltaMerge, topic, name="orders", topic=topic)
    reader = LogReader(kafka, group="g")
    restorer = Restorer(
        reader=reader, admin=Admin(kafka), source="orders.publish", sow="orders.sow", mark="orders.mark",
        open_state=lambda _: LayeredState(MemoryStore(), cache_bytes=1_000), stall_timeout_s=60,
    )  # fmt: skip
    first = _found(kafka)
    assert (first.offset, first.redelivered, first.metadata, first.is_new) == (0, None, None, True)

    producer = StagedProducer(kafka, later=[["orders.sow"], ["orders.mark", "orders.ack"]], session_timeout_s=60)
    unused = cast("Any", None)
    clients = Clients(unused, StagedCommitter(producer, pipeline), restorer, unused, unused)
    thread = StreamThread(pipeline, clients, RuntimeConfig(), load_codec("json"))
    assigned = Assigned()
    thread._consumer = GroupConsumer(
        kafka, group="g", topic="orders.publish", session_timeout_s=_SESSION_S, listener=assigned
    )
    consumer = thread._consumer
    until(lambda: consumer.poll(1, 0.1) or 0 in assigned.partitions, "an assignment", pause_s=0)
    task = thread._tasks[0] = Task(pipeline, 0, load_codec("json"))
    state = LayeredState(MemoryStore(), cache_bytes=1_000)
    state.restore({}, 60, 1)
    task.open(state)
    thread._start(task, 0)
    assert reader.committed_with_note("orders.publish", 0, PATIENCE_S) == (0, "sow 60 mark 0")
    second = _found(kafka)
    assert second.redelivered is not None
    assert (second.offset, second.redelivered.position, second.is_new) == (0, 60, False)
    thread._consumer.close()
    reader.close()
