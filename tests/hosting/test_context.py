"""The context of a processor: state, marks, notes, counts, and timings as the metrics show them."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from processor.api import Context, Input, Output, Processor, RecordProcessor
from processor.codec import load_codec
from processor.config import TopicConfig
from processor.errors import UndeclaredOutput
from processor.hosting.context import BOUNDS_S, TaskContext, Timing
from processor.hosting.pipeline import Pipeline
from processor.record import Record
from processor.runtime.metrics import Timings
from processor.store.layered_state import LayeredState
from processor.store.marks import TransactionalMarks
from processor.store.memory import MemoryStore


class Marking(RecordProcessor):
    """Declares a few outputs, marks among them."""

    input = Input("publish", from_underlying=False)
    outputs = (Output("sow"), Output("publish", repartition=True), Output("mark"))

    def process_record(self, record):
        """Do nothing."""


class Markless(Marking):
    """Declares no marks."""

    outputs = (Output("sow"),)


def a_context(processor_type: type[Processor], noted: str = "") -> TaskContext:
    """Partition 2 of a processor of `orders`."""
    topic = TopicConfig()
    pipeline = Pipeline.of(processor_type, topic, name="orders", topic=topic)
    marks = TransactionalMarks() if pipeline.has_marks else None
    state = LayeredState(MemoryStore(), cache_bytes=0)
    return TaskContext(pipeline, 2, load_codec("json"), state, marks, noted=noted)


@pytest.fixture
def context() -> TaskContext:
    """The context of a processor that declares marks."""
    return a_context(Marking)


def test_a_context_has_the_place_of_its_processor(context):
    """Name, partition, topic and clock are those of the pipeline."""
    assert (context.name, context.partition, context.topic) == ("orders", 2, TopicConfig())
    assert all(hasattr(context, name) for name in Context.__annotations__)


def test_what_is_forwarded_waits_in_order_until_it_is_taken(context):
    """Forwarded records are taken once, by output; an output without records is not listed."""
    context.forward("sow", b"a", b"1", [])
    context.forward_many("sow", [(b"b", None, [("version", b"2")]), (b"a", b"3", [])])
    context.forward("publish", b"c", b"4", [])
    assert context.take_outputs() == {
        "publish": [(b"c", b"4", [])],
        "sow": [(b"a", b"1", []), (b"b", None, [("version", b"2")]), (b"a", b"3", [])],
    }
    assert context.take_outputs() == {}


def test_deletes_wait_to_be_sent_though_they_have_no_bytes(context):
    """The loop sends nothing for a task of which no record waits, and a delete has only a key."""
    context.forward("sow", b"a", None, [])
    assert (context.waiting.records, context.waiting.size_bytes) == (1, 0)
    context.reject(Record(b"k", b"{}", None, 4, 0), "undecodable", "no JSON")
    assert context.waiting.records == 2
    context.take_outputs()
    assert context.waiting.records == 0


def test_later_records_do_not_appear_in_outputs_taken_before(context):
    """The lists that were taken belong to the taker."""
    context.forward("sow", b"a", b"1", [])
    taken = context.take_outputs()
    context.forward("sow", b"b", b"2", [])
    assert taken == {"sow": [(b"a", b"1", [])]}


def test_an_output_that_is_not_declared_is_an_error(context):
    """The error names the processor and the output."""
    with pytest.raises(UndeclaredOutput, match="orders forwards to 'ack', which its `outputs` do not declare"):
        context.forward("ack", b"a", b"1", [])


def test_marks_are_not_forwarded(context):
    """A forwarded mark would escape the list of committed marks; the error names `marks` as the way."""
    with pytest.raises(UndeclaredOutput, match="orders forwards to 'mark', which is written through `marks` alone"):
        context.forward("mark", b"a", b"1", [])


def test_marks_that_are_not_declared_are_an_error_when_they_are_used():
    """A context without marks fails at the first use of them, and not when it is created."""
    context = a_context(Markless)
    said = r"orders uses the mark b'a', and its `outputs` declare no output of role 'mark'"
    with pytest.raises(UndeclaredOutput, match=said):
        context.marks.get(b"a")
    with pytest.raises(UndeclaredOutput, match=said):
        context.marks.put(b"a", b"1")


def test_declared_marks_are_seen_at_once(context):
    """A mark has the last value that was put."""
    context.marks.put(b"a", b"1")
    context.marks.put(b"a", b"2")
    assert (context.marks.get(b"a"), context.marks.get(b"b")) == (b"2", None)


@pytest.mark.parametrize("headers", [None, [], [("command", b"x"), ("dlq_reason", b"of an earlier life"), ("n", None)]])
def test_a_rejected_record_goes_out_whole_with_the_reason_last(context, headers):
    """A dead letter has key, value and headers as they came; ours come last, and of a name the last one counts."""
    context.reject(Record(None, b"\xff", headers, 9, 0), "bad_header", "it says «x»")
    assert context.take_outputs() == {
        "dlq": [
            (
                None,
                b"\xff",
                [
                    *(headers or []),
                    ("dlq_reason", b"bad_header"),
                    ("dlq_detail", "it says «x»".encode()),
                    ("source", b"orders.publish/2/9"),
                ],
            )
        ]
    }
    assert context.rejected == {"bad_header": 1}


@pytest.mark.parametrize("detail", ["é" * 5000, "x" + "é" * 5000, "x" * 5000, "\ud800"])
def test_a_detail_of_any_length_is_text_of_a_bounded_length(context, detail):
    """A long detail is cut between characters, and half a surrogate pair, which is no character, is replaced."""
    context.reject(Record(b"a", b"1", None, 0, 0), "plugin_failed", detail)
    [(_, _, headers)] = context.take_outputs()["dlq"]
    said = dict(headers)["dlq_detail"]
    assert said.decode() == detail[: len(said.decode())] or detail == "\ud800"
    assert len(said) <= 4096
    assert len(said) >= 4095 or detail == "\ud800"


def test_events_add_up_and_the_last_hold_counts(context):
    """Events are summed until they are taken, and a later hold replaces an earlier one."""
    context.count("rekeyed")
    context.count("rekeyed", 2)
    assert context.events == {"rekeyed": 3}
    context.hold(7)
    context.hold(None)
    assert context.held_offset is None


def test_a_note_stands_until_the_next_hold():
    """The committed note stands until the first `hold`; a hold without a text leaves no note."""
    context = a_context(Marking, noted="found")
    assert (context.noted, context.note) == ("found", "found")
    context.hold(7, "x")
    context.hold(None, "y")
    assert (context.noted, context.note, context.held_offset) == ("found", "y", None)
    context.hold(7)
    assert (context.note, context.held_offset) == ("", 7)


def test_a_hold_with_a_note_that_is_too_long_changes_nothing(context):
    """After the error the processor may hold with a shorter note."""
    context.hold(7, "x")
    with pytest.raises(ValueError, match="a note of 1,001 bytes"):
        context.hold(8, "x" * 1001)
    assert (context.note, context.held_offset) == ("x", 7)


def test_the_last_value_of_a_gauge_counts_and_observations_add_up(context):
    """Gauges and timings are kept by name."""
    context.gauge("pending", 3)
    context.gauge("pending", 2)
    context.gauge("interval", 0.5)
    context.observe("sent", 0.5)
    context.observe("sent", 0.25, 4)
    assert context.gauges == {"pending": 2, "interval": 0.5}
    assert {name: (timing.times, timing.seconds) for name, timing in context.observed.items()} == {"sent": (5, 1.5)}


def shown(registry: CollectorRegistry) -> list[str]:
    """Return the served lines, without the creation time of the library's metrics."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_many_at_once_are_shown_as_each_alone_is_by_the_library(random_seed) -> None:
    """Every line is equal, with durations on a bound, of nothing, and above the last bound."""
    rng = random.Random(random_seed)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    timings = Timings("late_seconds", "How late.", ("processor", "timing"))
    ours.register(timings)
    histogram = Histogram("late_seconds", "How late.", ["processor", "timing"], buckets=BOUNDS_S, registry=theirs)
    for _ in range(20):
        timing = Timing()
        for _ in range(rng.randrange(5)):
            # Of a binary fraction, any order of adding comes to the same.
            seconds, times = rng.choice([0.0, 0.5, 1.0, 300.0, 301.0, rng.randrange(1 << 20) / 1024]), rng.randrange(50)
            timing.add(seconds, times)
            for _ in range(times):
                histogram.labels("orders", "sent").observe(seconds)
        timings.add(timing, "orders", "sent")
    assert shown(ours) == shown(theirs)


def test_names_and_processors_have_their_own() -> None:
    """Timings add up by processor and name, and a timing that was added is not shared with its owner."""
    registry = CollectorRegistry()
    timings = Timings("late_seconds", "How late.", ("processor", "timing"))
    registry.register(timings)
    timing = Timing()
    timing.add(0.2, 3)
    for processor, name in (("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")):
        timings.add(timing, processor, name)

    def count(processor: str, name: str) -> float | None:
        return registry.get_sample_value("late_seconds_count", {"processor": processor, "timing": name})

    assert [count("a", "x"), count("a", "y"), count("b", "x"), count("b", "y")] == [6.0, 3.0, 3.0, None]
    assert timing.times == 3


def test_a_clock_that_was_set_back_took_no_time() -> None:
    """A negative duration counts as none, so the sum never falls, which readers would take for a restart."""
    timing = Timing()
    timing.add(-5.0, 2)
    assert (timing.times, timing.seconds, timing.counts[0]) == (2, 0.0, 2)
