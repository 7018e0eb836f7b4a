"""Tests of a processor that pauses its input in front of a record, and takes the record later."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import pytest
from confluent_kafka import Producer

from processor.api import Context, Input, Output, Processor, Record, Settings
from processor.config import TopicConfig
from processor.testing import ProcessorTestDriver
from tests.runtime.loop.turned_thread import TurnedThread, mock_kafka
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import BaseModel

WAIT = b"wait"
_PIECES = 5
_INPUT = 200


class Pausing(Processor):
    """Forwards each record; in front of a record `wait` it does some pieces of work first."""

    settings_type: ClassVar[type[BaseModel]] = Settings
    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("sow"),)

    def init(self, context: Context, settings: BaseModel) -> None:
        """Begin without work."""
        self.context, self.left, self.done_for = context, 0, -1
        self.looks: list[tuple[int, int]] = []

    def process(self, records: Sequence[Record]) -> None:
        """Forward the records up to the first one that has to wait."""
        for record in records:
            if record.value == b"bad":
                raise ValueError("it is bad")
            if record.value == WAIT and self.done_for != record.offset:
                self.left, self.done_for = _PIECES, record.offset
                self.context.pause(record.offset)
                return
            self.context.forward("sow", record.key or b"", record.value, [("version", b"%d" % record.offset)])

    def punctuate(self, now_ms: int) -> bool | None:
        """Do a piece of work, if there is one."""
        self.looks.append((now_ms, self.context.stream_time_ms))
        if not self.left:
            return None
        self.left -= 1
        self.context.forward("sow", b"piece", b"%d" % self.left, [("version", b"1")])
        if not self.left:
            self.context.resume()
        return self.left > 0


@pytest.fixture
def driver() -> ProcessorTestDriver:
    """Create one partition without Kafka."""
    return ProcessorTestDriver(Pausing, {}, name="orders", topic=TopicConfig(dlq_max_ratio=1, partitions=1))


def values(records: list[Record]) -> list[bytes | None]:
    """Return the values of records."""
    return [record.value for record in records]


PIECES = [b"%d" % number for number in reversed(range(_PIECES))]


@pytest.fixture
def kafka() -> Iterator[dict[str, str]]:
    """Create a broker within this process, with one record in the partition."""
    with mock_kafka() as properties:
        yield properties


def test_the_records_behind_are_read_again_after_the_work(kafka: dict[str, str]) -> None:
    """Each record is processed in order and once, although the consumer had fetched it before the pause."""
    turned = TurnedThread(kafka, Pausing, Settings())
    sent: list[tuple[str, bytes | None]] = []
    take_outputs = turned.task.take_outputs

    def taken() -> dict[str, list[tuple[bytes | None, bytes | None, object]]]:
        outputs = take_outputs()
        sent.extend((role, value) for role, records in outputs.items() for _, value, _ in records)
        return outputs  # type: ignore[return-value]

    turned.task.take_outputs = taken  # type: ignore[method-assign,assignment]
    inputs = [WAIT if number in (3, 4, 150) else b"n%d" % number for number in range(_INPUT)]
    producer = Producer(kafka)
    for value in inputs:
        producer.produce("orders.publish", value, b"7", 0)
    assert producer.flush(60) == 0
    turned.thread._consumer.begin(0, 0)
    until(lambda: turned.turn(1) and turned.task.next_offset > _INPUT, "the end of the input", pause_s=0)
    turned.thread._commit()  # As at the end of a run: librdkafka aborts the process now and then where one is open.
    expected = [b"{}"]
    for value in inputs:
        expected += [*PIECES, WAIT] if value == WAIT else [value]
    assert [value for _, value in sent] == expected
    turned.close()


def test_a_task_that_reads_too_late_is_restored_again(kafka: dict[str, str]) -> None:
    """A task goes through the restore, where its state is compared with the input, and reads on."""
    turned = TurnedThread(kafka, Pausing, Settings())
    thread = turned.thread
    thread._restorer._ranges.horizons_ms["orders.sow"] = math.inf  # This broker has no settings of topics.
    producer = Producer(kafka)
    thread._consumer.begin(0, 0)
    until(lambda: turned.turn(1) and turned.task.next_offset == 1, "the first record", pause_s=0)
    former = turned.task.processor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread._restorer.comparison, "lacks_deletes", lambda task: task.processor is former)
        until(lambda: turned.turn(1) and turned.task.processor is not former, "the restore", pause_s=0)
    producer.produce("orders.publish", b"next", b"7", 0)
    assert producer.flush(60) == 0
    until(lambda: turned.turn(1) and turned.task.next_offset == 2, "the next record", pause_s=0)
    thread._commit()
    turned.close()


def test_the_position_stays_in_front_of_the_record_until_it_is_taken(driver: ProcessorTestDriver) -> None:
    """Output of the pieces is committed during the pause, and a crash begins with the paused record."""
    driver.pipe_batch([("7", b"a", None), ("7", WAIT, None), ("7", b"b", None)])
    driver.advance_time(0, punctuations_max=2)
    driver.commit()
    assert (driver.is_paused, driver.committed_offset) == (True, 1)
    assert values(driver.read_output("sow")) == [b"a", *PIECES[:2]]
    driver.crash()
    driver.advance_time(0)
    driver.commit()
    assert (driver.is_paused, driver.committed_offset) == (False, 3)
    assert values(driver.read_output("sow")) == [b"a", *PIECES[:2], *PIECES, WAIT, b"b"]


def test_time_stands_still_at_the_last_record_that_was_taken(driver: ProcessorTestDriver) -> None:
    """Records behind the pause are not seen yet, so stream time must not pass them."""
    driver.pipe_input("7", b"a")
    first_ms = driver.now_ms
    driver.now_ms += 1_000
    driver.pipe_batch([("7", WAIT, None), ("7", b"b", None)])
    driver.advance_time(5_000, punctuations_max=1)
    processor = driver._task.processor
    assert isinstance(processor, Pausing)
    assert processor.looks[-1] == (first_ms + 6_000, first_ms)


def test_a_record_that_raises_behind_a_pause_is_rejected(driver: ProcessorTestDriver) -> None:
    """Records that are processed one by one also end their turn at a pause."""
    driver.pipe_batch([("7", b"bad", None), ("7", WAIT, None), ("7", b"bad", None), ("7", b"b", None)])
    for _ in range(4):
        driver.advance_time(0)
    driver.commit()
    assert values(driver.read_output("dlq")) == [b"bad", b"bad"]
    assert [value for value in values(driver.read_output("sow")) if value not in PIECES] == [WAIT, b"b"]
    assert driver.committed_offset == 4
