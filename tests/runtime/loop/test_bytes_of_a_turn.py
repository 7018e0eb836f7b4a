"""The bytes of a turn: large batches and large outputs are divided."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from processor.api import Input, Output, Processor, Record, RecordProcessor
from processor.builtin.delta_merge.delta_merge import READ_BYTES_MAX, DeltaMerge
from processor.builtin.pass_through import PassThrough
from processor.config import TopicConfig
from processor.errors import OutputTooLarge, PartitionHeld, RecordRejected
from processor.hosting.output_limits import TURN_S, OutputLimits, WaitingOutput
from processor.hosting.pipeline import Pipeline
from processor.kafka.properties import PRODUCED_BYTES_MAX
from processor.record import Stored
from processor.runtime.rejections import Suspects
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.testing import ProcessorTestDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Outgoing
    from processor.topics.family import Role


BATCH_BYTES = 64 * 1024
LARGE = 20_000
RECORDS = 100


class Emitting(ProcessorTestDriver):
    """A driver that notes the bytes of each send to the producer."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.emitted: list[int] = []
        super().__init__(*given, name="orders", batch_bytes_max=BATCH_BYTES, **named)

    def _emit(self) -> None:
        self._bytes = 0
        super()._emit()
        if self._bytes:
            self.emitted.append(self._bytes)

    def _send(self, role: Role, outgoing: Sequence[Outgoing]) -> None:
        if role != "mark":
            self._bytes += sum(len(value or b"") for _, value, _ in outgoing)
        super()._send(role, outgoing)


class Doubling(RecordProcessor):
    """Forwards each message twice."""

    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("delta"),)

    def process_record(self, record: Record) -> None:
        """Forward a record twice."""
        for _ in range(2):
            self.context.forward("delta", record.key or b"", record.value, [])


class Heedless(Processor):
    """A processor that takes complete batches and never asks whether enough output waits."""

    input: ClassVar[Input] = Input("publish", from_underlying=False)
    outputs: ClassVar[tuple[Output, ...]] = (Output("delta"),)

    def init(self, context: Any, settings: Any) -> None:
        """Keep the context."""
        self.context = context

    def process(self, records: Sequence[Record]) -> None:
        """Forward a large record for each input record."""
        for record in records:
            self.context.forward("delta", record.key, b"x" * LARGE, [])


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "in Python"])
@pytest.mark.parametrize("command", [None, {"command": "delta_publish"}], ids=["plain", "with headers"])
def test_deltas_on_a_large_record_come_out_in_parts(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, command: dict[str, str] | None
) -> None:
    """Each send exceeds the limit by one record's outputs at most, and all outputs are those of one batch."""
    if not compiled:
        monkeypatch.setattr("processor.builtin.delta_merge.plain.has_compiled", False)
    driver = Emitting(DeltaMerge, TopicConfig())
    driver.pipe_input("7", {"id": 7, "n": -1, "text": "x" * LARGE})
    driver.emitted.clear()
    driver.pipe_batch([("7", {"id": 7, "n": n}, command) for n in range(RECORDS)])
    assert max(driver.emitted) < BATCH_BYTES + 16 * (LARGE + 200)  # It is asked after so many records, or 256 KiB.
    assert len(driver.emitted) >= 4
    driver.commit()
    assert [record.headers for record in driver.read_output("sow")] == [
        [("version", b"1"), ("kind", b"insert")],
        *([("version", b"%d" % n)] for n in range(2, RECORDS + 2)),
    ]


@pytest.mark.parametrize("processor_type", [PassThrough, Doubling], ids=lambda kind: kind.__name__)
def test_record_processors_stop_when_enough_output_waits(processor_type: type[Processor]) -> None:
    """Each record is processed once."""
    settings = TopicConfig(sow=False) if processor_type is PassThrough else {}
    driver = Emitting(processor_type, settings)
    driver.pipe_batch([(str(n), {"id": n, "text": "x" * LARGE}, None) for n in range(RECORDS)])
    assert max(driver.emitted) < BATCH_BYTES + 2 * (LARGE + 100)
    keys = Counter(record.key for record in driver.pending_output("delta"))
    assert set(keys.values()) == {1 if processor_type is PassThrough else 2}
    assert len(keys) == RECORDS


def test_a_processor_that_does_not_ask_gets_fewer_records() -> None:
    """A batch with too much output is rolled back and repeated in smaller slices; each output appears once."""
    driver = Emitting(Heedless, {})
    driver.pipe_batch([(str(n), {"id": n}, None) for n in range(RECORDS)])
    assert max(driver.emitted) <= 2 * BATCH_BYTES + LARGE
    driver.commit()
    assert [record.key for record in driver.read_output("delta")] == [b"%d" % n for n in range(RECORDS)]
    assert driver.read_output("dlq") == []


def test_unreadable_keys_behind_the_stop_are_rejected_once() -> None:
    """The keys of a batch are read before its records are merged."""
    driver = Emitting(DeltaMerge, TopicConfig(key_format="int"))
    text = {"text": "x" * LARGE}
    records = [(n.to_bytes(4, "big") if n % 2 else b"a bad one", {"id": n, **text}, None) for n in range(RECORDS)]
    driver.pipe_batch(records)
    driver.commit()
    assert len(driver.emitted) > 4
    assert len(driver.read_output("sow")) == len(driver.read_output("dlq")) == RECORDS // 2


def test_states_are_read_as_far_as_they_fit() -> None:
    """Records whose states were not read are processed later, also with repeated keys."""
    store = MemoryStore()
    state = LayeredState(store, cache_bytes=0)
    keys = [b"%03d" % n for n in range(200)]
    state.restore({key: Stored(1, b"x" * 1000) for key in keys}, 200, 1)
    asked = [*keys[:100], keys[0], b"none", *keys[100:]]
    found, count = state.get_some(asked, 100_000)
    assert count == 102 + 27  # Two pieces of 64 keys, one of them of the key without a state; and the repeat.
    assert all(found[key] is not None for key in keys[:100])
    assert state.get_some(asked, READ_BYTES_MAX) == (state.get_many(asked), len(asked))


def test_a_slow_processor_gets_fewer_records() -> None:
    """A slice that takes longer than a turn halves the next one, which grows again with fast slices."""
    now_s = [0.0]
    waiting = WaitingOutput(1000, lambda: now_s[0])
    waiting.begin_turn()
    assert waiting.begin_slice(10_000) == 64
    now_s[0] += 4 * TURN_S
    assert waiting.is_enough()
    waiting.end_slice()
    assert waiting.begin_slice(10_000) == 16
    waiting.end_slice()
    assert waiting.begin_slice(10_000) == 32
    waiting.add(900)
    waiting.end_slice()
    assert waiting.begin_slice(10_000) == 16
    waiting.begin_turn()
    assert waiting.is_enough(100)
    assert not waiting.is_enough(99)


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
