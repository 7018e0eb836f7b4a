"""The share groups of queues: the settings that they must have at the brokers are read, checked and set (queues.md).

Kafka's defaults would deliver records of rolled-back transactions, and skip the messages that were there before the
first consumer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from processor.errors import ConfigurationError
from processor.kafka import errors as kafka_errors
from processor.kafka import properties
from processor.kafka.admin.questions import in_time, values
from processor.topics.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.config import Config, QueueConfig


ISOLATION: Final = "share.isolation.level"
RESET: Final = "share.auto.offset.reset"
LOCK: Final = "share.record.lock.duration.ms"
DELIVERIES: Final = "share.delivery.count.limit"

LOCKS: Final = "share.partition.max.record.locks"
_LOCKS_MAX: Final = 2_000
"""Kafka's default; a higher one was left by a consumer that had raised it (`stall_guard`) and was killed."""

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


def settings_in_force(queue: QueueConfig, actual: Mapping[str, str]) -> QueueConfig:
    """Return a queue's settings with the lease that the group has, if that is shorter: Kafka ends it then.

    Args:
        queue: its settings.
        actual: the group's settings in force.
    """
    lock_s = int(actual.get(LOCK, queue.lease_ms)) / 1000
    return queue.model_copy(update={"lease": min(queue.lease, lock_s)})


_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.1


class ShareGroups:
    """Requests about the settings of share groups."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Connect with the first request."""
        self._client = AdminClient(properties.admin(kafka))

    def settings(self, group: str) -> dict[str, str]:
        """Fetch the settings in force of a group, also of one that does not exist yet.

        A Kafka that knows no settings of groups gives none.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        resource = ConfigResource(ResourceType.GROUP, group)
        asked = self._client.describe_configs([resource], request_timeout=_TIMEOUT_S)
        answer = in_time(asked[resource], _TIMEOUT_S)
        if not isinstance(answer, KafkaException):
            return values(answer)
        if kafka_errors.of(answer).code() in (KafkaError.INVALID_REQUEST, KafkaError.UNSUPPORTED_VERSION):
            return {}
        raise kafka_errors.stop(answer, f"reading the settings of the share group {group}") from answer

    def set(self, group: str, wanted: Mapping[str, str]) -> list[str]:
        """Set those settings of a group that differ, wait until they are in force, and return their names.

        Raises:
            ConfigurationError: Kafka does not allow a value.
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        actual = self.settings(group)
        changes = {name: value for name, value in wanted.items() if name in actual and actual[name] != value}
        if not changes:
            return []
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in changes.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        asked = self._client.incremental_alter_configs([resource], request_timeout=_TIMEOUT_S)
        answer = in_time(asked[resource], _TIMEOUT_S)
        if isinstance(answer, KafkaException):
            error = kafka_errors.of(answer)
            if error.code() == KafkaError.INVALID_CONFIG:
                raise ConfigurationError(f"the share group {group}: {error.str()}") from answer
            raise kafka_errors.stop(answer, f"setting up the share group {group}") from answer
        until_s = time.monotonic() + _TIMEOUT_S
        # The brokers learn of it from the controller, a moment later.
        while any(self.settings(group).get(name) != value for name, value in changes.items()):
            if time.monotonic() > until_s:
                raise kafka_errors.stop(
                    KafkaError(KafkaError._TIMED_OUT, "the brokers do not show them"),
                    f"setting up the share group {group}",
                )
            time.sleep(_PAUSE_S)
        return sorted(changes)


def share_group_problems(config: Config) -> list[Problem]:
    """The problems of the share groups of all queues.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    if not config.queues:
        return []
    groups = ShareGroups(config.kafka)
    named = {config.share_group(name): queue for name, queue in config.queues.items()}
    return [
        problem for group, queue in named.items() for problem in group_problems(group, queue, groups.settings(group))
    ]


def set_share_groups(config: Config) -> dict[str, list[str]]:
    """Set what differs in the share groups of all queues; return the names of these settings, by group.

    Raises:
        ConfigurationError: Kafka does not allow a value, such as a lease beyond the brokers' maximum.
        Stop: Kafka does not answer, or refuses.
    """
    if not config.queues:
        return {}
    groups = ShareGroups(config.kafka)
    changed = {}
    for name, queue in config.queues.items():
        group, wanted = config.share_group(name), group_settings(queue)
        if int(groups.settings(group).get(LOCKS, 0)) > _LOCKS_MAX:
            wanted[LOCKS] = str(_LOCKS_MAX)
        changed[group] = groups.set(group, wanted)
    return {group: names for group, names in changed.items() if names}
