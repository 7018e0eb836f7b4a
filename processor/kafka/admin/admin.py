"""Requests to one cluster: brokers, topics and their settings, offsets, consumer groups; creates and deletes topics."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    libversion,
)
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from processor.errors import Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import outage
from processor.kafka.admin.connection import (
    CONNECT_TIMEOUT_S,
    LOOK_TIMEOUT_S,
    PAUSE_S,
    TIMEOUT_S,
    TRY_S,
    AdminConnection,
)
from processor.kafka.admin.groups import NO_OFFSET, CommittedOffsets, ask_groups, ask_offsets, committed_in
from processor.kafka.admin.questions import ASK_TIMEOUT_S, COORDINATOR_TIMEOUT_S, OVERDUE_S, Question, in_time, values
from processor.kafka.admin.rights import grant
from processor.kafka.admin.topic_changes import create_topics, delete_topics
from processor.topics import ActualTopic
from processor.topics.durability import tombstones_kept_ms
from processor.topics.family import copies, durable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from processor.kafka.admin.groups import Committed, ConsumerGroup, OffsetKind
    from processor.kafka.admin.rights import Right
    from processor.topics.family import TopicSpec

_OFFSETS_KEPT_MINUTES = 10_080  # Kafka's default.
_NEW_S = 2.0  # Within this time a new topic has leaders, and the client knows them.
_PAUSE_MAX_S = 0.5


def librdkafka_version() -> str:
    """The version of librdkafka, such as `2.16.1`; the Python package has one of its own."""
    return libversion()[0]


class Admin(AdminConnection):
    """The administration client of one cluster."""

    def __init__(
        self, kafka: Mapping[str, str], connect_timeout_s: float = CONNECT_TIMEOUT_S, *, awaits_names: bool = False
    ) -> None:
        """Create the client; arguments and errors as `AdminConnection`."""
        super().__init__(kafka, connect_timeout_s, awaits_names=awaits_names)
        self._committed = CommittedOffsets(kafka, is_stable=True)

    def _renew(self) -> None:
        super()._renew()
        self._committed.renew()

    def create(self, specs: Iterable[TopicSpec]) -> list[str]:
        """Create the topics that do not exist, replicated if there are several brokers, and return their names.

        If the cluster's policy refuses the settings of a topic, it is created with the necessary ones only.

        Args:
            specs: the topics as they should be.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        brokers = len(self.cluster().brokers)
        by_name = {spec.name: spec for spec in durable(specs, brokers)}
        created = create_topics(self._client, by_name, copies(brokers))
        self._await_leaders({name: by_name[name].partitions for name in created})
        return [name for name in by_name if name in created]

    def _await_leaders(self, created: Mapping[str, int]) -> None:
        """Wait until new topics can be used: brokers learn of them one after the other."""
        deadline = time.monotonic() + TIMEOUT_S
        for name, partitions in created.items():
            while True:
                try:
                    self.end_offsets(name, range(partitions))
                except Stop:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(PAUSE_S)
                else:
                    break

    def delete(self, names: Sequence[str]) -> None:
        """Delete topics; names without a topic are ignored."""
        self._limit_s()
        delete_topics(self._client, names)

    def grant(self, rights: Sequence[Right]) -> list[Right]:
        """Grant rights; returns those that their owners did not have. Errors as `rights.grant`."""
        self._limit_s()
        return grant(self._client, rights)

    def topic_config(
        self, names: Sequence[str], timeout_s: float | None = None, *, shows_hidden: bool = False
    ) -> dict[str, dict[str, str]]:
        """Fetch the settings in force of each topic; those with a missing right are left out if `shows_hidden`.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        settings = {}
        for name, entries in self._ask("settings of", self._ask_config, names, self._limit_s(timeout_s)).items():
            if isinstance(entries, KafkaException):
                if shows_hidden and kafka_errors.is_forbidden(entries):
                    continue
                raise kafka_errors.stop(entries, f"reading the settings of the topic {name}") from entries
            settings[name] = values(entries)
        return settings

    def ask_config(self, name: str) -> Question[dict[str, str]]:
        """Request the settings of a topic; the answer is read later."""
        future, limit_s = self._ask_config([name], ASK_TIMEOUT_S)[name], ASK_TIMEOUT_S + OVERDUE_S
        return Question(f"reading the settings of {name}", future, limit_s, lambda done: values(done.result()))

    def unread_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float | None = None) -> dict[int, int]:
        """The offset of each partition from which a group without members and positions has read nothing, for certain.

        Kafka forgets a position some time after its commit (`offsets.retention.minutes`). Records that are older than
        that, or than the topic's retention, may have been read by such a group.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        # The ends first: a record that arrives meanwhile is behind them.
        ends = self.end_offsets(topic, partitions, timeout_s)
        kept_ms = self._offsets_kept_ms(self._limit_s(timeout_s))
        retention_ms = int(self.topic_config([topic], timeout_s)[topic].get("retention.ms", -1))
        oldest_ms = int(time.time() * 1000) - (kept_ms if retention_ms < 0 else min(kept_ms, retention_ms))
        offsets = self.end_offsets(topic, ends, timeout_s, kind=oldest_ms)
        return {partition: ends[partition] if at == NO_OFFSET else at for partition, at in offsets.items()}

    def _offsets_kept_ms(self, timeout_s: float) -> int:
        """How long Kafka keeps a position of a group without members after its commit, in milliseconds.

        Kafka's default where this user may not see the settings of brokers. Only a broker itself sends its settings, so
        one after the other is asked.
        """
        doing = "reading the settings of a broker"
        cluster: Any = in_time(self._client.describe_cluster(request_timeout=timeout_s), timeout_s)
        if isinstance(cluster, KafkaException):
            raise kafka_errors.stop(cluster, doing) from cluster
        entries: Any = {}
        for broker in (str(node.id) for node in cluster.nodes):
            entries = self._ask("settings of the broker", self._ask_broker, [broker], min(timeout_s, TRY_S))[broker]
            if not isinstance(entries, KafkaException) or not kafka_errors.is_unanswered(entries):
                break
        if isinstance(entries, KafkaException):
            if not kafka_errors.is_forbidden(entries):
                raise kafka_errors.stop(entries, doing) from entries
            entries = {}
        return int(values(entries).get("offsets.retention.minutes", _OFFSETS_KEPT_MINUTES)) * 60_000

    def _ask_broker(self, names: Sequence[str], timeout_s: float) -> dict[str, Future[Any]]:
        return self._ask_config(names, timeout_s, ResourceType.BROKER)

    def _ask_config(
        self, names: Sequence[str], timeout_s: float, kind: ResourceType = ResourceType.TOPIC
    ) -> dict[str, Future[Any]]:
        resources = [ConfigResource(kind, name) for name in names]
        asked = self._client.describe_configs(resources, request_timeout=timeout_s) if resources else {}
        return {resource.name: future for resource, future in asked.items()}

    def _ask_topics(self, names: Sequence[str], timeout_s: float) -> dict[str, Future[Any]]:
        return dict(self._client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s))

    def describe_topics(
        self, names: Sequence[str], timeout_s: float | None = None, *, shows_hidden: bool = False
    ) -> dict[str, ActualTopic]:
        """Fetch the partitions, replicas, ids and settings of topics; those that do not exist are left out.

        Args:
            names: the topics. Asked by name, Kafka reports a missing right; its list of all topics lacks the topic.
            timeout_s: longest wait; None: fifteen seconds, after the first request's wait for a broker.
            shows_hidden: whether topics come with the missing right (`ActualTopic.lacks`) instead of an error.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        topics, hidden = {}, {}
        limit_s = self._limit_s(timeout_s)
        for name, answer in self._ask("look at", self._ask_topics, names, limit_s).items():
            if not isinstance(answer, KafkaException):
                topics[name] = answer
            elif shows_hidden and kafka_errors.is_forbidden(answer):
                hidden[name] = ActualTopic(0, {}, lacks="Describe")
            elif kafka_errors.of(answer).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise kafka_errors.stop(answer, f"looking at the topic {name}") from answer
        config = self.topic_config(list(topics), limit_s, shows_hidden=shows_hidden)
        return hidden | {
            name: ActualTopic(
                partitions=len(topic.partitions),
                config=config.get(name, {}),
                replicas=min((len(partition.replicas) for partition in topic.partitions), default=0),
                topic_id=str(topic.topic_id),
                lacks="" if name in config else "DescribeConfigs",
            )
            for name, topic in topics.items()
        }

    def partitions_of(self, name: str, timeout_s: float | None = None) -> int | None:
        """The number of partitions of a topic; None if it does not exist.

        Raises:
            BrokerUnavailable: no answer in time.
            ConfigurationError: this user has no right to see it.
        """
        try:
            return len(self._topic(name, timeout_s).partitions)
        except Stop as error:
            if kafka_errors.is_unknown(error):
                return None
            raise

    def delete_retention_ms(self, topic: str, timeout_s: float | None = None) -> float:
        """Retention time of tombstones in a compacted topic, in milliseconds: a copy that is older may lack deletes.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        return tombstones_kept_ms(self.topic_config([topic], timeout_s).get(topic, {}))

    def topic_id(self, name: str, timeout_s: float | None = None) -> str:
        """Fetch the id of a topic, which differs from that of a deleted topic of the same name.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        return str(self._topic(name, timeout_s).topic_id)

    def _topic(self, name: str, timeout_s: float | None) -> Any:
        """Fetch the description of a topic."""
        answer = self._ask("look at", self._ask_topics, [name], self._limit_s(timeout_s))[name]
        if isinstance(answer, KafkaException):
            raise kafka_errors.stop(answer, f"looking at the topic {name}") from answer
        return answer

    def ask_topic(self, name: str, timeout_s: float = ASK_TIMEOUT_S) -> Question[tuple[str, int]]:
        """Request the id and the number of partitions of a topic; the answer is read later."""

        def read(done: Future[Any]) -> tuple[str, int]:
            topic = done.result()
            return str(topic.topic_id), len(topic.partitions)

        future = self._ask_topics([name], timeout_s)[name]
        return Question(f"looking at the topic {name}", future, timeout_s + OVERDUE_S, read)

    def ask_group(self, group: str, topic: str, timeout_s: float) -> Question[ConsumerGroup]:
        """Request the members of a consumer group with their partitions of a topic; the answer is read later."""

        def overdue(name: str) -> None:
            self.renewal.unanswered(f"the group {name}")

        return ask_groups(self._client, [group], timeout_s, topic=topic, on_overdue=overdue)[group]

    def set_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a consumer group without members.

        Raises:
            Stop: Kafka refuses, as for a group with members, or does not answer.
        """
        self._limit_s()
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        asked = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=COORDINATOR_TIMEOUT_S
        )
        done: Any = Question(f"setting the offsets of the group {group}", asked[group], TIMEOUT_S + OVERDUE_S).answer()
        for place in done.topic_partitions:
            if place.error is not None:
                raise kafka_errors.stop(
                    place.error, f"setting the offset of the group {group}, partition {place.partition}"
                )

    def end_offsets(
        self, topic: str, partitions: Iterable[int], timeout_s: float | None = None, *, kind: OffsetKind | int = "end"
    ) -> dict[int, int]:
        """Fetch the true end of each partition, open transactions included; or another offset.

        With a time in milliseconds as `kind`, it is the offset of the first record of that time or later, of open
        transactions too, which a consumer of committed records is not told; `groups.NO_OFFSET` if there is none.

        The end that a reader of committed records sees may lie before a transaction that is already committed, if its
        marker has not been written yet (KAFKA-10167). A restore must reach the true end.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        timeout_s = self._limit_s(timeout_s)
        began_s, pause_s = time.monotonic(), PAUSE_S
        ends: dict[int, int] = {}
        left = list(partitions)
        while True:
            try_s = max(PAUSE_S, min(TRY_S, began_s + timeout_s - time.monotonic()))
            errors = []
            for partition, question in self.ask_offsets(topic, left, kind, try_s).items():
                try:
                    ends[partition] = question.result()
                except KafkaException as error:
                    errors.append(error)
            if not errors:
                self.renewal.answered(f"ends of {topic}")
                outage.reached()
                return ends
            left = [partition for partition in left if partition not in ends]
            self._check_ends(topic, errors, time.monotonic() - began_s, timeout_s)
            # librdkafka sends the request with the leader epoch that it has, and does not learn a newer one from the
            # refusal. If it has no leader, as after a broker was away for a moment, it sends nothing for a quarter of
            # an hour. So we have it fetch metadata; of all topics if this one may not exist, as a broker may create a
            # topic that it is asked for.
            is_there = all(map(kafka_errors.is_moved, errors))
            with contextlib.suppress(KafkaException):
                self._client.list_topics(topic if is_there else None, timeout=min(timeout_s, LOOK_TIMEOUT_S))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _check_ends(self, topic: str, errors: Sequence[KafkaException], waited_s: float, timeout_s: float) -> None:
        """Return if the request for ends is to be repeated after these errors.

        Raises:
            Stop: one of the errors is permanent, or has lasted for too long.
        """
        patience_s = timeout_s
        for error in errors:
            if kafka_errors.is_unanswered(error):
                self.renewal.unanswered(f"ends of {topic}")
            elif kafka_errors.is_leaderless(error):
                patience_s = min(timeout_s, _NEW_S)
            elif not kafka_errors.is_moved(error):
                raise kafka_errors.stop(error, f"asking for the ends of {topic}") from error
        if waited_s > patience_s:
            raise kafka_errors.stop(errors[0], f"asking for the ends of {topic}") from errors[0]

    def ask_offsets(
        self, topic: str, partitions: Iterable[int], kind: OffsetKind | int, timeout_s: float = ASK_TIMEOUT_S
    ) -> dict[int, Question[int]]:
        """Request the first or last offsets of partitions, or those of a time; the answers are read later."""
        places = ((topic, partition) for partition in partitions)
        questions = ask_offsets(self._client, places, kind, timeout_s)
        return {partition: question for (_, partition), question in questions.items()}

    def ask_committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, Question[Committed]]:
        """Request the committed offsets of a group; the answers are read later.

        While an undecided transaction holds the offset of a partition, the answer is `UNSTABLE_OFFSET_COMMIT`.
        """
        future = self._committed.ask(group, ((topic, partition) for partition in partitions), ASK_TIMEOUT_S)
        doing, limit_s = f"asking for the offsets of the group {group}", ASK_TIMEOUT_S + OVERDUE_S
        return {number: Question(doing, future, limit_s, partial(committed_in, number)) for number in partitions}
