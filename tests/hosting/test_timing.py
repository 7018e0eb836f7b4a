"""A histogram of weighted observations shows the same as the library's own histogram of each one alone."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from processor.hosting.context import BOUNDS_S, Timing
from processor.runtime.metrics import Timings


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
