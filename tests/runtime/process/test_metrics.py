from prometheus_client import REGISTRY

from processor.hosting.timing import Timing
from processor.runtime.process.metrics import ThreadMetrics
from processor.runtime.task import Counts
from processor.runtime.task_state import TaskState


def test_a_partition_that_left_is_shown_no_more():
    """State, lag and remaining records of a partition that has left are removed."""
    metrics = ThreadMetrics("leaver")
    metrics.states({0: TaskState.RUNNING, 1: TaskState.RUNNING}, {0: 7, 1: 7})
    metrics.lag({0: 5, 1: 5})
    metrics.rebalanced("revoked", {1: TaskState.RUNNING})

    def shown(name: str, partition: str, **more: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"processor": "leaver", "partition": partition, **more})

    for partition, there in (("0", False), ("1", True)):
        assert (shown("sowstream_task_state", partition, state="running") is not None) is there
        assert (shown("sowstream_consumer_lag_records", partition) is not None) is there
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
