"""Looks at a cluster and its topics, and creates topics."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from processor.errors import ConfigurationError, Stop
from processor.kafka import failure, properties
from processor.kafka.group_description import GroupQuestion
from processor.kafka.topic_question import TopicQuestion
from processor.topic_problems import FoundTopic
from processor.topics import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from confluent_kafka.admin._metadata import ClusterMetadata

    from processor.topics import TopicSpec

_TIMEOUT_S = 15.0
_NEW_S = 2.0  # Within it a topic that was just made has leaders, and the client has heard of them.
_PAUSE_S, _PAUSE_MAX_S = 0.05, 0.5  # Between two questions: to list all topics is much to ask of a large cluster.
_SILENCE_S = 2.0  # Whoever waits for longer is told what for.


class Cluster(NamedTuple):
    """What a look at the cluster tells."""

    brokers: list[str]
    """`host:port` of each broker."""
    topics: dict[str, int]
    """Each topic's number of partitions."""


class Admin:
    """Administration of one cluster."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Make one; every process makes it first, so it is here that wrong properties come to light.

        Raises:
            ConfigurationError: librdkafka does not take a property.
        """
        self._bootstrap = kafka.get("bootstrap.servers", "")
        try:
            self._client = AdminClient(properties.common(kafka))
        except KafkaException as error:
            raise ConfigurationError(f"the section `kafka` of the settings: {failure.of(error).str()}") from None

    def cluster(self, timeout_s: float = _TIMEOUT_S) -> Cluster:
        """Look at the cluster.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        try:
            metadata = self._metadata(timeout_s)
        except KafkaException as error:
            raise failure.stop(error, f"looking at the cluster at {self._bootstrap}") from error
        return Cluster(
            [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()],
            {name: len(topic.partitions) for name, topic in metadata.topics.items()},
        )

    def _metadata(self, timeout_s: float) -> ClusterMetadata:
        """Ask any broker; whoever waits long is told what for."""
        if timeout_s > _SILENCE_S:
            try:
                return self._client.list_topics(timeout=_SILENCE_S)
            except KafkaException as error:
                if not failure.is_unreachable(error):
                    raise
            properties.log.warning("waiting for Kafka at %s, up to %g s", self._bootstrap, timeout_s)
            timeout_s -= _SILENCE_S
        return self._client.list_topics(timeout=timeout_s)

    def create(self, specs: Iterable[TopicSpec], *, replication: int = -1) -> list[str]:
        """Create topics that do not exist; the names of those it created.

        Where the cluster's policy refuses the settings of a topic, it is created with those alone that it needs.

        Args:
            specs: the topics as they should be.
            replication: copies of each; -1 is the broker's default.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        wanted = {spec.name: spec for spec in specs}
        created, refused = self._try_to_create(list(wanted.values()), replication)
        for name, error in refused.items():
            if not wanted[name].least or wanted[name].least == wanted[name].config:
                raise failure.stop(error, f"creating the topic {name}") from error
        lesser = [wanted[name]._replace(config=wanted[name].least) for name in refused]
        more, refused = self._try_to_create(lesser, replication)
        for name, error in refused.items():
            raise failure.stop(error, f"creating the topic {name}") from error
        created += more
        self._await_leaders({name: wanted[name].partitions for name in created})
        return [name for name in wanted if name in created]

    def _try_to_create(
        self, specs: Sequence[TopicSpec], replication: int
    ) -> tuple[list[str], dict[str, KafkaException]]:
        """Create topics; those it created, and those whose settings are refused."""
        wanted = [
            NewTopic(
                spec.name, num_partitions=spec.partitions, replication_factor=replication, config=dict(spec.config)
            )
            for spec in specs
        ]
        created: list[str] = []
        refused: dict[str, KafkaException] = {}
        for name, future in self._client.create_topics(wanted, operation_timeout=_TIMEOUT_S).items() if wanted else ():
            try:
                future.result()
            except KafkaException as error:
                code = failure.of(error).code()
                if code in (KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG):
                    refused[name] = error
                elif code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise failure.stop(error, f"creating the topic {name}") from error
            else:
                created.append(name)
        return created, refused

    def _await_leaders(self, created: Mapping[str, int]) -> None:
        """Wait until new topics can be used: the brokers hear of them one after the other."""
        deadline = time.monotonic() + _TIMEOUT_S
        for name, partitions in created.items():
            while True:
                try:
                    self.end_offsets(name, range(partitions))
                except Stop:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                else:
                    break

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics; those that do not exist are passed over."""
        for name, future in self._client.delete_topics(list(names), operation_timeout=_TIMEOUT_S).items():
            try:
                future.result()
            except KafkaException as error:
                if failure.of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise failure.stop(error, f"deleting the topic {name}") from error

    def topic_config(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings in force of each topic."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found = {}
        for resource, future in self._client.describe_configs(resources).items() if resources else ():
            try:
                entries = future.result()
            except KafkaException as error:
                raise failure.stop(error, f"reading the settings of the topic {resource.name}") from error
            found[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        return found

    def found(self, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, FoundTopic]:
        """Topics as they are; those that do not exist are left out.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka does not let us look.
        """
        asked = self._client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s) if names else {}
        there = {}
        for name, future in asked.items():
            try:
                there[name] = future.result()
            except KafkaException as error:
                if failure.of(error).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise failure.stop(error, f"looking at the topic {name}") from error
        config = self.topic_config(list(there))
        return {
            name: FoundTopic(
                partitions=len(topic.partitions),
                config=config[name],
                replicas=min((len(partition.replicas) for partition in topic.partitions), default=0),
                topic_id=str(topic.topic_id),
            )
            for name, topic in there.items()
        }

    def delete_retention_ms(self, topic: str) -> float:
        """How long deletes stay in a compacted topic: a copy that is older may lack some.

        Raises:
            Stop: Kafka does not answer, or refuses.
        """
        return float(self.topic_config([topic]).get(topic, {}).get("delete.retention.ms", DAY_MS))

    def topic_id(self, name: str, timeout_s: float = _TIMEOUT_S) -> str:
        """What tells a topic from another one that had its name before.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        asked = self._client.describe_topics(TopicCollection([name]), request_timeout=timeout_s)
        try:
            return str(asked[name].result().topic_id)
        except KafkaException as error:
            raise failure.stop(error, f"looking at the topic {name}") from error

    def ask_topic(self, name: str, timeout_s: float) -> TopicQuestion:
        """Ask what a topic is; the answer is to be looked for."""
        return TopicQuestion(self._client.describe_topics(TopicCollection([name]), request_timeout=timeout_s)[name])

    def ask_group(self, group: str, topic: str, timeout_s: float) -> GroupQuestion:
        """Ask who is in a consumer group and which partitions of a topic they have; the answer is to be looked for."""
        return GroupQuestion(self._client.describe_consumer_groups([group], request_timeout=timeout_s)[group], topic)

    def set_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a consumer group that nobody is a member of.

        Raises:
            Stop: Kafka refuses, as it does where somebody is, or does not answer.
        """
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        asked = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=_TIMEOUT_S
        )
        try:
            set_ = asked[group].result().topic_partitions
        except KafkaException as error:
            raise failure.stop(error, f"setting the offsets of the group {group}") from error
        for place in set_:
            if place.error is not None:
                raise failure.stop(place.error, f"setting the offset of the group {group}, partition {place.partition}")

    def end_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float = _TIMEOUT_S) -> dict[int, int]:
        """The true end of each partition, open transactions included.

        A committed reader's own idea of the end may lie before a transaction that is committed already but whose
        marker has not arrived (KAFKA-10167): a restore must aim here.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        began_s, pause_s = time.monotonic(), _PAUSE_S
        wanted = list(partitions)
        while True:
            answers = self._ask_ends(topic, wanted, timeout_s)
            moved = [error for error in answers.values() if isinstance(error, KafkaException)]
            if not moved:
                return {partition: end for partition, end in answers.items() if isinstance(end, int)}
            is_there = all(map(failure.is_moved, moved))
            patience_s = timeout_s if is_there else min(timeout_s, _NEW_S)
            if time.monotonic() > began_s + patience_s:
                raise failure.stop(moved[0], f"asking for the ends of {topic}")
            # librdkafka asks with the epoch of the leader it knows, and learns no newer one from the refusal. Where it
            # saw no leader, as of a broker that was away for a moment, it asks nobody for a quarter of an hour. So we
            # have it look; at all topics, if this one may not be there, as a broker may make what it is asked for.
            with contextlib.suppress(KafkaException):
                self._client.list_topics(topic if is_there else None, timeout=timeout_s)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _ask_ends(self, topic: str, partitions: Sequence[int], timeout_s: float) -> dict[int, int | KafkaException]:
        """Ask once: the end of each partition, or that its leader is another one now, or not known yet."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, partition): latest for partition in partitions}
        futures = self._client.list_offsets(
            asked, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
        )
        found: dict[int, int | KafkaException] = {}
        for position, future in futures.items():
            try:
                found[position.partition] = future.result().offset
            except KafkaException as error:
                if not failure.is_moved(error) and not failure.is_leaderless(error):
                    raise failure.stop(
                        error, f"asking for the end of {topic} partition {position.partition}"
                    ) from error
                found[position.partition] = error
        return found
