"""The figures of a consumer for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from processor.client import QueueMetrics
from processor.client.queue.metrics import FATES
from processor.client.queue.queue import Queue
from tests.client.queue.fake_leases import FakeLeases
from tests.client.queue.test_backlog import backlog_of, values


def test_prometheus_sees_the_messages_of_a_consumer_by_fate():
    """Of three messages one is released and comes again; all are acknowledged, and nothing is held at the end."""
    queue = Queue(backlog_of(FakeLeases(values(1, 2, 3))), timeout_s=0, on_message=None, on_close=lambda _: None)
    registry = CollectorRegistry()
    registry.register(QueueMetrics(queue))

    def figure(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"sowstream_queue_{name}", {"queue": "jobs"} | labels)

    first = queue.next_within(0)
    assert first is not None
    assert figure("leased_messages") == 3
    first.release()
    assert figure("leased_messages") == 2
    for _ in queue:
        pass
    found = {fate: figure("messages_total", fate=fate) for fate in FATES}
    assert found == dict.fromkeys(FATES, 0) | {"delivered": 4, "delivered_again": 1, "acknowledged": 3, "released": 1}
    assert figure("leased_messages") == 0
