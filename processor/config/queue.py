"""The settings of a queue over a SOW topic: `queues.<name>` (queues.md)."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pydantic import Field

from processor.config.section import IntervalS, Properties, Section, TopicName

_DAY_S: Final = 86_400.0

MAX_DELIVERIES_MAX: Final = 9
"""Most deliveries of a message: Kafka counts ten at most, and one must be left to bring it to the dead letters."""

QueueKafkaTopics: TypeAlias = dict[Literal["queue", "dlq"], str]
"""The Kafka names of a queue's topics that have names of their own, by role."""


class QueueConfig(Section):
    """One queue: `queues.<name>`."""

    underlying: TopicName
    """The topic whose merged records it has: one of `topics`, with a SOW."""
    filter: str | None = None
    """The merged records that become messages, in the filter language; none: all of them."""
    lease: IntervalS = Field(default=30.0, ge=1, le=3600)
    """Time for which a message belongs to the consumer that received it; afterwards any consumer may receive it.
    Kafka's own limits, `group.share.min.record.lock.duration.ms` and `…max…`, are 15 and 60 seconds.
    """
    max_deliveries: int = Field(default=5, ge=1, le=MAX_DELIVERIES_MAX)
    """Deliveries of a message that is not acknowledged, after which it becomes a dead letter."""
    retention: IntervalS = Field(default=7 * _DAY_S, ge=60)
    """Time for which Kafka keeps a message, also one that no consumer has received."""
    config: Properties = Field(default_factory=dict)
    """Kafka topic settings for both topics of the queue, such as `min.insync.replicas`."""
    kafka_topics: QueueKafkaTopics = Field(default_factory=dict)
    """Kafka topics of the queue that have names of their own, by role, `queue` or `dlq`; the others are
    `<topic_prefix><name>.<role>`.
    """

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return round(self.lease * 1000)
