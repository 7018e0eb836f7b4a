import math
import shutil
import subprocess
import time

import pytest
from prometheus_client import REGISTRY, generate_latest

from processor.hosting.context import Timing
from processor.runtime.metrics import _OWN_GAUGES, ThreadMetrics, show_process
from processor.runtime.task import Counts
from processor.runtime.task_state import TaskState


def test_a_partition_that_left_is_shown_no_more():
    """State, lag and remaining records of a partition that has left are removed."""
    metrics = ThreadMetrics("leaver")
    metrics.states({0: TaskState.RUNNING, 1: TaskState.RUNNING}, {0: 7, 1: 7})
    metrics.lag({0: 5, 1: 5}, {})
    metrics.rebalanced("revoked", {1: TaskState.RUNNING})

    def shown(name: str, partition: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"processor": "leaver", "partition": partition, **more})

    for partition, there in (("0", False), ("1", True)):
        assert (shown("sowstream_task_state", partition, state="running") is not None) is there
        assert (shown("sowstream_consumer_lag_records", partition) is not None) is there
        assert (shown("sowstream_partition_lag_records", partition) is not None) is there
        assert (shown("sowstream_partition_assigned_timestamp_seconds", partition) is not None) is there
        assert (shown("sowstream_restore_remaining_records", partition) is not None) is there


def test_a_gauge_shows_its_last_value_until_its_partition_leaves():
    """A gauge that a new processor does not set is removed: the value would be its predecessor's."""
    metrics = ThreadMetrics("gauging")

    def shown(partition: int, gauge: str) -> float | None:
        labels = {"processor": "gauging", "partition": str(partition), "gauge": gauge}
        return REGISTRY.get_sample_value("sowstream_gauge", labels)

    metrics.gauges({0: {"pending": 3, "interval": 0.5}, 1: {"pending": 4}})
    metrics.gauges({0: {"pending": 7, "interval": 0.5}, 1: {"pending": 4}})
    assert [shown(0, "pending"), shown(0, "interval"), shown(1, "pending")] == [7.0, 0.5, 4.0]
    metrics.gauges({0: {"pending": 8}})
    assert [shown(0, "pending"), shown(0, "interval"), shown(1, "pending")] == [8.0, None, None]
    metrics.gauges({})
    assert shown(0, "pending") is None


def test_events_of_a_processor_are_shown_with_its_name():
    """Events, rejections and durations are labelled with the processor."""
    timing = Timing()
    timing.add(0.2, 5)
    ThreadMetrics("counting").counts(Counts({"folded": 2}, {"missing_key": 1}, {"sent": timing}))
    value = REGISTRY.get_sample_value
    assert value("sowstream_events_total", {"processor": "counting", "event": "folded"}) == 2
    assert value("sowstream_records_rejected_total", {"processor": "counting", "reason": "missing_key"}) == 1
    assert value("sowstream_observed_seconds_count", {"processor": "counting", "timing": "sent"}) == 5


def test_gauges_and_timings_of_our_own_processors_have_metrics_of_their_own():
    """A figure of conflation is a metric with one quantity, and is removed with its partition."""
    metrics = ThreadMetrics("figures_1s")  # The registry is the process's, and other tests have copies of orders.
    value = REGISTRY.get_sample_value
    where = {"processor": "figures_1s", "partition": "0"}
    metrics.gauges({0: {"pending_keys": 3, "pending_bytes": 70, "oldest_pending_seconds": 0.5}})
    assert value("sowstream_conflation_pending_keys", where) == 3
    assert value("sowstream_conflation_pending_bytes", where) == 70
    assert value("sowstream_conflation_oldest_pending_seconds", where) == 0.5
    metrics.gauges({})
    assert value("sowstream_conflation_pending_keys", where) is None
    timing = Timing()
    timing.add(0.2, 5)
    metrics.counts(Counts({}, {}, {"lateness": timing, "own": timing}))
    assert value("sowstream_conflation_lateness_seconds_count", {"processor": "figures_1s"}) == 5


def test_latency_is_the_age_of_records_at_their_commit():
    """Each batch counts with all its records, by the timestamp of its first."""
    metrics = ThreadMetrics("latency")
    before_s = time.time()
    metrics.committed(0.01)
    stamp_s = REGISTRY.get_sample_value("sowstream_last_commit_timestamp_seconds", {"processor": "latency"})
    assert before_s <= stamp_s <= time.time()
    taken = [(int(stamp_s * 1000) - 200, 10), (int(stamp_s * 1000) - 4000, 1)]
    metrics.counts(Counts({}, {}, {}, taken))

    def below(bound: str) -> float | None:
        name = "sowstream_end_to_end_latency_seconds_bucket"
        return REGISTRY.get_sample_value(name, {"processor": "latency", "le": bound})

    assert [below("0.1"), below("0.25"), below("2.5"), below("5.0"), below("+Inf")] == [0, 10, 10, 11, 11]


def test_a_partition_that_does_not_run_shows_its_lag_too():
    """The lag of a partition that is restored or held is known; the one of a running partition is the thread's own."""
    metrics = ThreadMetrics("behind")
    metrics.lag({0: 5}, {0: 900, 1: 800})

    def lag(name: str, partition: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"processor": "behind", "partition": partition})

    assert [lag("sowstream_partition_lag_records", partition) for partition in "01"] == [5, 800]
    assert [lag("sowstream_consumer_lag_records", partition) for partition in "01"] == [5, None]


def test_dead_letters_of_a_partition_that_left_are_its_new_owners():
    """The number of waiting dead letters is removed with its partition."""
    metrics = ThreadMetrics("letters")

    def waiting(partition: str) -> float | None:
        labels = {"processor": "letters", "partition": partition}
        return REGISTRY.get_sample_value("sowstream_dlq_waiting_records", labels)

    metrics.dead_letters({0: 2, 1: 0})
    assert [waiting("0"), waiting("1")] == [2, 0]
    metrics.dead_letters({1: 1})
    assert [waiting("0"), waiting("1")] == [None, 1]


def test_a_process_shows_its_versions_and_its_disk(tmp_path):
    """A disk that cannot be asked is no number, and costs no other metric."""
    show_process("1.2.3", tmp_path)
    [info] = [
        sample
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == "sowstream_build_info" and sample.labels["version"] == "1.2.3"
    ]
    assert info.value == 1
    assert set(info.labels) == {"version", "python", "librdkafka"}
    assert REGISTRY.get_sample_value("sowstream_state_disk_free_bytes") > 0
    show_process("1.2.3", tmp_path / "none")
    assert math.isnan(REGISTRY.get_sample_value("sowstream_state_disk_free_bytes"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)")
def test_prometheus_finds_nothing_wrong_with_the_metrics():
    """Names, units, types and help texts follow Prometheus' conventions."""
    metrics = ThreadMetrics("linted")
    metrics.committed(0.1)
    metrics.gauges({0: dict.fromkeys(_OWN_GAUGES, 1.0)})
    text = generate_latest(REGISTRY)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=150, check=False)
    # The API of plug-ins promises this name.
    known = "sowstream_gauge metric name should not include type 'gauge'"
    assert [line for line in (done.stdout + done.stderr).decode().splitlines() if line != known] == []
