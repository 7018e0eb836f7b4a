from prometheus_client import REGISTRY

from processor.runtime.metrics import ThreadMetrics
from processor.runtime.task import TaskState


def test_a_partition_that_left_is_shown_no_more():
    """Neither its state, nor a lag or a restore that from now on are another process' to tell."""
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
