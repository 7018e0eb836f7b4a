"""Tests of the periodic jobs: when they run, when a changed topic ends a pipeline, how long Kafka keeps the input."""

from __future__ import annotations

import math
from typing import Any, cast

from structlog.testing import capture_logs

from processor.config.kafka_names import KafkaNames
from processor.runtime.loop.clients import RetentionHeadroom
from processor.runtime.worker.watcher import _LOOKS, Job, UnconfirmedChanges, Watcher
from processor.topics import Problem, recreated

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
