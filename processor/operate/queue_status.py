"""Looks at a queue from outside: its share group, its messages and its dead letters. Changes nothing."""

from __future__ import annotations

from typing import NamedTuple

from processor.config import Config
from processor.kafka.admin.admin import Admin
from processor.kafka.admin.groups import GroupInspector
from processor.kafka.admin.topic_lookup import TopicLookup
from processor.kafka.clients.record_offsets import record_offsets
from processor.operate.waiting_letters import WaitingLetters
from processor.queues.share_groups import ShareGroups, group_problems
from processor.queues.transport.share_offsets import share_positions
from processor.topics import Problem


class QueueStatus(NamedTuple):
    """The state of a queue."""

    waiting: int
    """Messages that no consumer has acknowledged, leased ones included. Behind more than 10,000 offsets the markers of
    transactions count as well."""
    dead: int
    """Dead letters that wait."""
    problems: list[Problem]
    """The settings of the share group that differ from those of the queue."""

    @property
    def lines(self) -> list[str]:
        """Lines for people and scripts: a name, a tab, a value."""
        return [f"waiting\t{self.waiting}", f"dead\t{self.dead}"]


def queue_status(config: Config, name: str) -> QueueStatus:
    """Look at a queue.

    Raises:
        ConfigurationError: no such queue, or its topics do not exist.
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses.
    """
    queue, admin = config.queue(name), Admin(config.kafka, config.connect_timeout_s)
    group, topic = config.share_group(name), config.kafka_names.topic(name, "queue")
    partitions = range(TopicLookup(admin).partitions(topic))
    settings = ShareGroups(config.kafka).settings(group)
    positions = share_positions(config.kafka, group, topic, partitions)
    ends = admin.end_offsets(topic, partitions)
    oldest = GroupInspector(config.kafka).bounds(((topic, partition) for partition in partitions), "oldest")
    waiting, ranges = 0, {}
    for partition in partitions:
        position = positions.get(partition)
        first = oldest[topic, partition]
        begin = position.start if position is not None and position.start >= 0 else first
        if isinstance(begin, int):
            ranges[topic, partition] = begin, ends[partition]
        if position is not None and position.lag >= 0:
            waiting += position.lag
        else:
            waiting += max(0, ends[partition] - begin) if isinstance(begin, int) else 0
    for place, offsets in record_offsets(config.kafka, config.letters_group(name), ranges).items():
        begin, end = ranges[place]
        waiting -= end - begin - len(offsets)  # The markers.
    with WaitingLetters(config, name) as letters:
        dead = sum(len(batch) for _, batch in letters.letters())
    return QueueStatus(max(0, waiting), dead, group_problems(group, queue, settings))
