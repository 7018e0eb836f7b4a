"""The metrics of a gateway process, in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from processor.gateway.feeds.kafka_feed import KafkaFeed
    from processor.gateway.sessions.frames import FrameEncoder
    from processor.gateway.sessions.session import Session


class GatewayMetrics:
    """Counts of one process, collected when they are asked for."""

    def __init__(self, sessions: set[Session], encoder: FrameEncoder, feeds: Mapping[str, KafkaFeed]) -> None:
        """Begin to count.

        Args:
            sessions: the sessions of all connected clients.
            encoder: counts the messages that it encodes.
            feeds: the feed of each topic.
        """
        self.messages = 0
        """Messages delivered by sessions that have ended."""
        self.frames = 0
        """Frames sent."""
        self.sent_bytes = 0
        """Bytes of these frames."""
        self.publishes = 0
        """Commands published for clients."""
        self.refused_publishes = 0
        """Commands refused for want of a right."""
        self.refused_logons = 0
        """Tokens that were refused."""
        self.refused_connections = 0
        """Connections refused: too many, or from an origin that is not allowed."""
        self.closed_slow = 0
        """Clients closed because they took nothing."""
        self.resumes: dict[str, int] = {}
        """Requests to resume by outcome: `resumed` or `refetched`."""
        self._sessions, self._encoder, self._feeds_by_topic = sessions, encoder, feeds
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """All metrics."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """The metrics of now."""
        sessions = list(self._sessions)
        yield GaugeMetricFamily("sowstream_gateway_connections", "Connected clients.", len(sessions))
        yield GaugeMetricFamily(
            "sowstream_gateway_subscriptions", "Subscriptions.", sum(session.subscriptions for session in sessions)
        )
        yield GaugeMetricFamily(
            "sowstream_gateway_queue_bytes",
            "Records whose messages wait for clients, bytes.",
            sum(session.waiting_bytes for session in sessions),
        )
        sent = self.messages + sum(session.sent for session in sessions)
        yield CounterMetricFamily("sowstream_gateway_messages", "Messages sent to clients.", sent)
        yield CounterMetricFamily("sowstream_gateway_frames", "Frames sent to clients.", self.frames)
        yield CounterMetricFamily("sowstream_gateway_bytes", "Bytes of these frames.", self.sent_bytes)
        yield CounterMetricFamily(
            "sowstream_gateway_encoded", "Messages encoded, once for all their clients.", self._encoder.messages
        )
        yield CounterMetricFamily("sowstream_gateway_publishes", "Commands published for clients.", self.publishes)
        refused = CounterMetricFamily("sowstream_gateway_refused", "Refusals.", labels=["what"])
        refused.add_metric(["publish"], self.refused_publishes)
        refused.add_metric(["logon"], self.refused_logons)
        refused.add_metric(["connection"], self.refused_connections)
        refused.add_metric(["slow"], self.closed_slow)
        yield refused
        resumes = CounterMetricFamily("sowstream_gateway_resumes", "Requests to resume.", labels=["outcome"])
        for outcome in ("resumed", "refetched"):
            resumes.add_metric([outcome], self.resumes.get(outcome, 0))
        yield resumes
        yield from self._feeds()

    def _feeds(self) -> Iterable[Metric]:
        ready = GaugeMetricFamily("sowstream_gateway_topic_ready", "1: the view has caught up.", labels=["topic"])
        updates = CounterMetricFamily("sowstream_gateway_updates", "Records taken from Kafka.", labels=["topic"])
        lag = GaugeMetricFamily(
            "sowstream_gateway_waiting_records", "Records read and not delivered yet.", labels=["topic"]
        )
        age = GaugeMetricFamily(
            "sowstream_gateway_last_update_age_seconds", "Age of the record taken last.", labels=["topic"]
        )
        for name, feed in self._feeds_by_topic.items():
            ready.add_metric([name], int(feed.is_ready))
            updates.add_metric([name], feed.updates)
            lag.add_metric([name], feed.lag_records)
            if feed.last_update_ms:
                age.add_metric([name], max(0.0, time.time() - feed.last_update_ms / 1000))
        yield from (ready, updates, lag, age)
