"""Reads the highest number that workers have taken from a publisher, from the mark topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.client.feeds.snapshot_boundary import SnapshotBoundary
from processor.wire.forwarding import is_mark_of
from processor.wire.publisher_mark import PublisherMark, mark_text

if TYPE_CHECKING:
    from processor.client.topic_lookup import TopicLookup
    from processor.config import Config
    from processor.kafka.admin.admin import Admin


def read_mark(config: Config, admin: Admin, lookup: TopicLookup, topic: str, client: str) -> int | None:
    """Return the highest number of a client that was taken, over all partitions of a topic; None: none was.

    Args:
        config: the settings.
        admin: administration of the cluster.
        lookup: the partitions of its topics.
        topic: a SOW topic.
        client: the publisher's name.

    Raises:
        ConfigurationError: the mark topic does not exist, or this user may not see it.
        BrokerUnavailable: no answer in time.
        Stop: it cannot be read.
    """
    kafka_topic, name = config.kafka_names.topic(topic, "mark"), client.encode()
    boundary = SnapshotBoundary(
        config.kafka,
        admin,
        topic=kafka_topic,
        partitions=range(lookup.partitions(kafka_topic)),
        group=f"{config.group_prefix}.client.{client}",
        follows=False,
        has_marks=False,
    )
    last: dict[tuple[int, bytes], bytes | None] = {}
    try:
        for partition, batch in boundary.between({}, boundary.ends):
            for record in batch:
                if record.key is not None and is_mark_of(record.key, name):
                    last[partition, record.key] = mark_text(record.key, record.value, record.headers)
    finally:
        boundary.close()
    highest = max((PublisherMark(text).highest for text in last.values() if text is not None), default=-1)
    return None if highest < 0 else highest
