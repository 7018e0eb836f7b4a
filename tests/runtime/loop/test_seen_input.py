"""Tests of the time up to which a thread knows its input: records expire by it, however long a turn takes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaError, Producer

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.runtime.loop.clients import SeenInput
from tests.kafka.test_partition_questions import Kafka
from tests.runtime.loop.turned_thread import TurnedThread, mock_kafka
from tests.runtime.test_task import a_task
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.kafka.admin.admin import Admin
    from processor.runtime.task import Task

_KEY = b"8"


class Orders:
    """The merge of a topic whose records live for a minute, on a clock that the test moves."""

    def __init__(self, kafka: dict[str, str]) -> None:
        """Begin with one record, and read the input to its end."""
        self.now_ms = int(time.time() * 1000)
        self._producer = Producer(kafka)
        self.turned = TurnedThread(
            kafka, DeltaMerge, TopicConfig(key=("/id",), partitions=1, expiration=60), clock_ms=lambda: self.now_ms
        )
        self.publish(b'{"id":"8","qty":5}')
        self.turned.thread._consumer.begin(0, 1)  # The first record of the topic is none of ours.
        self.turn_until(lambda: self.record is not None and self.turned.task.seen_ms >= self.now_ms)

    def publish(self, value: bytes) -> None:
        """Publish a command, and wait until Kafka has it."""
        self._producer.produce("orders.publish", value, _KEY, 0, timestamp=self.now_ms)
        assert self._producer.flush(60) == 0

    @property
    def record(self) -> bytes | None:
        """The record in the state."""
        stored = self.turned.task.state.get_many([_KEY])[_KEY]
        return None if stored is None else stored.value

    def turn_until(self, reached: Callable[[], bool]) -> None:
        """Turn the loop until a condition holds."""
        until(lambda: self.turned.turn(1) and reached(), lambda: self.turned.task.seen_ms - self.now_ms, pause_s=0)


@pytest.fixture
def orders() -> Iterator[Orders]:
    """Create the merge on a broker within this process."""
    with mock_kafka() as kafka:
        orders = Orders(kafka)
        yield orders
        orders.turned.thread._commit()
        orders.turned.close()


def test_a_record_that_was_renewed_during_a_slow_turn_does_not_expire(orders: Orders) -> None:
    """A delta that reaches Kafka in time finds its record, although the turn after the poll ends after the due time."""
    thread, emit = orders.turned.thread, orders.turned.thread._emit

    def slow_emit(*, is_last: bool = False) -> float:
        if not is_last and orders.now_ms - began_ms < 60_000:
            orders.now_ms += 59_000
            orders.publish(b'{"id":"8","hb":1}')
            orders.now_ms += 2_000
        return emit(is_last=is_last)

    began_ms = orders.now_ms
    thread._emit = slow_emit  # type: ignore[method-assign]
    orders.turn_until(lambda: orders.turned.task.next_offset == 3)
    assert orders.record == b'{"id":"8","qty":5,"hb":1}'


def test_a_record_that_was_not_renewed_expires(orders: Orders) -> None:
    """Without input the loop asks for the end of the partition again, and a due record ends."""
    orders.now_ms += 59_000
    orders.turn_until(lambda: orders.turned.task.seen_ms >= orders.now_ms)
    assert orders.record is not None
    orders.now_ms += 1_000
    orders.turn_until(lambda: orders.record is None)


def test_a_partition_that_has_left_is_not_asked_for_its_end() -> None:
    """A revoked partition, whose leader may be away for long, costs no further requests."""
    kafka, clock = Kafka(), [1_000_000]
    seen, task = asking(kafka, clock)
    seen.look([task], {})
    seen.look([task], {})
    assert len(kafka.tries) == 1
    seen.look([], {})
    kafka.fail(3, KafkaError.NOT_LEADER_FOR_PARTITION)
    seen.look([], {})
    assert seen._question.unanswered(3) is None
    assert len(kafka.tries) == 1


def test_an_end_that_is_never_reached_is_asked_for_again() -> None:
    """A log that was truncated ends before a former answer; a later answer of a longer log changes nothing."""
    kafka, clock = Kafka(), [1_000_000]
    seen, task = asking(kafka, clock)
    for end, reached in ((7, False), (9, False), (5, True)):
        asked_ms = clock[0]
        for _ in range(2):
            seen.look([task], {3: 5})
        kafka.answer(3, end)
        seen.look([task], {3: 5})
        assert (task.seen_ms == asked_ms) is reached
        clock[0] += 10_000
    assert len(kafka.tries) == 3


def asking(kafka: Kafka, clock: list[int]) -> tuple[SeenInput, Task]:
    """Create the questions of one running task."""
    admin = SimpleNamespace(renewal=kafka.renewal, ask_offsets=lambda _topic, partitions, _kind: kafka.ask(partitions))
    task = a_task(clock=clock)
    task.start(0)
    return SeenInput(cast("Admin", admin), "orders.publish", lambda: clock[0]), task
