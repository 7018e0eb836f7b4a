"""Tests of outputs that are too large for their topic: only the record that made them is rejected."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from processor.api import Input, Output, Record, RecordProcessor
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import OutputTooLarge, PartitionHeld, RecordRejected
from processor.hosting.output_limits import OutputLimits
from processor.hosting.pipeline import Pipeline
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.runtime.rejections import Suspects
from processor.testing import ProcessorTestDriver

PIPELINE = Pipeline.of(DeltaMerge, TopicConfig(), name="orders", topic=TopicConfig())


class Blowing(RecordProcessor):
    """Forwards as many bytes as the number in a message."""

    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("delta"),)

    def process_record(self, record: Record) -> None:
        """Forward one record."""
        self.context.forward("delta", record.key or b"", b"x" * int(record.value or b"0"), [])


class Ticking(Blowing):
    """Forwards a record that is too large at each punctuation."""

    def process_record(self, record: Record) -> None:
        """Do nothing."""

    def punctuate(self, now_ms: int) -> None:
        """Forward a record that stems from no input record."""
        self.context.forward("delta", b"k", b"x" * (PRODUCED_BYTES_MAX + 1), [])


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one by one"])
def test_a_third_partys_output_that_is_too_large_rejects_its_record(together: bool) -> None:
    """The record is rejected once as `too_large`; outputs of other records appear once."""
    driver = ProcessorTestDriver(Blowing, {}, name="orders")
    large = b"%d" % (PRODUCED_BYTES_MAX + 1)
    records: list[tuple[Any, Any, Any]] = [
        ("a", b"1", None),
        ("b", large, {"trace": "1"}),
        ("c", b"3", None),
        ("d", large, None),
    ]
    for batch in [records] if together else [[record] for record in records]:
        driver.pipe_batch(batch)
    driver.commit()
    assert [record.key for record in driver.read_output("delta")] == [b"a", b"c"]
    letters = driver.read_output("dlq")
    assert [record.key for record in letters] == [b"b", b"d"]
    headers = dict(letters[0].headers or ())
    assert (headers["dlq_reason"], headers["trace"]) == (b"too_large", b"1")
    assert b"orders.delta" in (headers["dlq_detail"] or b"")
    assert driver.rejections == {"too_large": 2}


def test_a_large_output_of_a_punctuation_holds_the_partition() -> None:
    """No record is at fault: the second time the output is measured before it is sent."""
    driver = ProcessorTestDriver(Ticking, {}, name="orders")
    driver.pipe_input("a", b"1")
    driver.advance_time(1, punctuations_max=1)
    with pytest.raises(PartitionHeld, match=r"orders\.delta partition 0") as held:
        driver.advance_time(1, punctuations_max=1)
    assert held.value.reason == "plugin_failed"


def test_a_mark_that_is_refused_holds_the_partition() -> None:
    """The partition is held once the limit is known: before, several marks in one batch may be too large together."""
    driver = ProcessorTestDriver(DeltaMerge, TopicConfig(), name="orders")
    driver._task.refused("mark", OutputTooLarge("no", "orders.mark", 0), is_learnt=True)
    driver.pipe_input("1", {"id": 1})
    driver._task.refused("mark", OutputTooLarge("no", "orders.mark", 0), is_learnt=False)
    with pytest.raises(PartitionHeld, match=r"orders\.mark does not take"):
        driver.pipe_input("1", {"id": 1})


def test_a_suspect_is_alone_in_a_transaction_and_the_others_are_not() -> None:
    """Records before a suspect are committed first; it is rejected only if Kafka refuses it alone."""
    suspects, records = Suspects(), [Record(b"k", b"v", None, offset, 0) for offset in range(10, 20)]
    suspects.refused(20, "no")
    assert suspects.is_measured
    assert suspects.until == 19
    assert suspects.share(records, 200) == 200
    suspects.isolate(14)
    assert suspects.share(records, 200) == 4
    suspects.committed(14)
    assert suspects.share(records[4:], 200) == 1
    suspects.refused(14, "what came before it")
    assert suspects.verdict(14) is None
    suspects.refused(15, "no")
    verdict = suspects.verdict(14)
    assert isinstance(verdict, RecordRejected)
    assert verdict.reason == "too_large"
    suspects.committed(15)
    assert suspects.verdict(14) is None
    assert not suspects.is_isolated(14)


def test_limits_are_learnt_from_kafka_and_never_grow_by_a_refusal() -> None:
    """A dead letter can be shortened, so half of its size is tried if Kafka reports no smaller limit."""
    configs = {"orders.sow": {"max.message.bytes": "100000"}, "orders.dlq": {"max.message.bytes": "99999999"}}
    limits = OutputLimits(PIPELINE, ask=lambda topics: {topic: configs[topic] for topic in topics})
    assert limits.refused("orders.sow")
    assert (limits.of("sow"), limits.smallest) == (100_000, 100_000)
    assert not limits.refused("orders.sow")
    first = limits.of("dlq")
    assert limits.refused("orders.dlq")
    assert limits.of("dlq") == first // 2
    assert not limits.refused("another.topic")
    large = limits.largest({"sow": [(b"k", b"x" * 100_000, [])], "delta": [(b"k", b"x" * 100_000, [])]})
    assert large is not None
    assert (large.role, large.limit_bytes) == ("sow", 100_000)
    limits.forget("sow")
    assert limits.of("sow") == PRODUCED_BYTES_MAX
