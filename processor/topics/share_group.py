"""The settings of a queue's share group at the brokers, and the problems of those that differ (queues.md, rule 6).

Kafka's defaults would deliver records of rolled-back transactions, and skip the messages that were there before the
first consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.topics.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.config import QueueConfig

ISOLATION: Final = "share.isolation.level"
RESET: Final = "share.auto.offset.reset"
LOCK: Final = "share.record.lock.duration.ms"
DELIVERIES: Final = "share.delivery.count.limit"

DELIVERIES_MAX: Final = 10
"""Kafka's own limit of deliveries, `group.share.max.delivery.count.limit`, as it is unless an operator sets it."""

_SPARE: Final = 5
"""Deliveries beyond `max_deliveries`: the consumer that gets one of them writes the dead letter. After Kafka's own
limit a message is gone, so consumers that die while they write it must not use up all."""

_BATCH_RECORDS: Final = "batch.num.messages"
BATCH_RECORDS_MAX: Final = 1_000
"""Most records of a batch on a queue topic. Kafka 4.3.1 stops at a window that exceeds the limit of leases of a
partition (2,000) by such a batch, and the highest limit that brokers allow (4,000) must be above it: `stall_guard`."""

APPLY: Final = "sowstream topics apply"


def group_settings(queue: QueueConfig) -> dict[str, str]:
    """The settings of the share group of a queue."""
    return {
        ISOLATION: "read_committed",
        RESET: "earliest",
        LOCK: str(queue.lease_ms),
        DELIVERIES: str(min(DELIVERIES_MAX, queue.max_deliveries + _SPARE)),
    }


def queue_writer_properties(kafka: Mapping[str, str]) -> dict[str, str]:
    """The librdkafka properties of a worker that fills queues: the user's, with batches of few enough records."""
    asked = int(kafka.get(_BATCH_RECORDS, BATCH_RECORDS_MAX))
    return {**kafka, _BATCH_RECORDS: str(min(asked, BATCH_RECORDS_MAX))}


def group_problems(group: str, queue: QueueConfig, actual: Mapping[str, str]) -> list[Problem]:
    """The problems of a share group: settings with which no consumer may begin, and others that differ.

    Args:
        group: its name.
        queue: the queue's settings.
        actual: the group's settings in force.
    """
    if ISOLATION not in actual:
        what = "this Kafka has no share groups, which queues need: they came with Kafka 4.2"
        return [
            Problem("refuse", group, what, "upgrade the brokers, and `kafka-features.sh upgrade --release-version`")
        ]
    wanted = group_settings(queue)
    wrong = []
    if (level := actual[ISOLATION]) != wanted[ISOLATION]:
        what = f"{ISOLATION} is {level}: records of rolled-back transactions would be delivered"
        wrong.append(Problem("refuse", group, what, APPLY))
    if (reset := actual.get(RESET)) != wanted[RESET]:
        what = f"{RESET} is {reset}: messages from before the first consumer would be skipped"
        wrong.append(Problem("refuse", group, what, APPLY))
    if (lock := actual.get(LOCK)) != wanted[LOCK]:
        wrong.append(Problem("warn", group, f"{LOCK} is {lock}, and the queue's lease is {wanted[LOCK]} ms", APPLY))
    limit = actual.get(DELIVERIES)
    if limit is None:
        what = f"this Kafka has no {DELIVERIES} of a group (4.3 has): the brokers' own limit holds"
        to_do = f"set group.share.delivery.count.limit={wanted[DELIVERIES]} at the brokers: beyond it messages are gone"
        wrong.append(Problem("warn", group, what, to_do))
    elif int(limit) <= queue.max_deliveries:
        what = f"{DELIVERIES} is {limit}: Kafka drops a message before it is a dead letter"
        wrong.append(Problem("refuse", group, what, APPLY))
    elif limit != wanted[DELIVERIES]:
        wrong.append(Problem("warn", group, f"{DELIVERIES} is {limit}, not {wanted[DELIVERIES]}", APPLY))
    return wrong
