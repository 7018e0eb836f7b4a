"""Figures of queues' consumers for Prometheus: `prometheus_client.REGISTRY.register(QueueMetrics(queue))`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from processor.client.queue.queue import Queue

FATES: Final = (
    "delivered", "delivered_again", "acknowledged", "released", "rejected", "dead", "lapsed", "lost",
)  # fmt: skip
"""The values of the label `fate`; `Backlog.counts` describes them."""


class QueueMetrics:
    """A collector of Prometheus with the figures of the given queues, each with the label of its name."""

    def __init__(self, *queues: Queue) -> None:
        """Collect from these queues, also when they have ended.

        Args:
            queues: consumers of this process, one of each queue.
        """
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """The metrics now; called by the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - with Prometheus only

        messages = CounterMetricFamily(
            "sowstream_queue_messages", "Messages of this consumer by fate", labels=("queue", "fate")
        )
        leased = GaugeMetricFamily(
            "sowstream_queue_leased_messages", "Messages leased to this consumer, without an outcome", labels=("queue",)
        )
        for queue in self._queues:
            counts = queue.counts
            for fate in FATES:
                messages.add_metric((queue.name, fate), counts.get(fate, 0))
            leased.add_metric((queue.name,), queue.leased)
        yield messages
        yield leased
