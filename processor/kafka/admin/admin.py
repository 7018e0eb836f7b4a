"""Looks at a cluster and its topics, and creates topics."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
    libversion,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType

from processor.errors import ConfigurationError, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.admin.answers import (
    ASK_TIMEOUT_S,
    COORDINATOR_TIMEOUT_S,
    Answers,
    Committed,
    committed_of,
    in_time,
    offset_of,
    retained_ms,
    values,
)
from processor.kafka.admin.descriptions import GroupQuestion, TopicQuestion, ask_groups
from processor.kafka.admin.topic_creation import create_topics, delete_topics
from processor.kafka.refusals import Refusals
from processor.kafka.renewal import InBackground, Renewal, leave
from processor.topics import FoundTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from confluent_kafka.admin._metadata import ClusterMetadata

    from processor.topics.family import TopicSpec

Place: TypeAlias = Literal["oldest", "end", "stable_end"]
"""The oldest offset kept, the true end, or the last stable offset: the end that readers of committed records see."""

_TIMEOUT_S = 15.0
_TRY_S = 4.0  # Longest for one try: the broker that it went to may be dead.
_LOOK_TIMEOUT_S = 2.0
_NEW_S = 2.0  # Within it a topic that was just made has leaders, and the client has heard of them.
_PAUSE_S, _PAUSE_MAX_S = 0.05, 0.5  # Between two questions: to list all topics is much to ask of a large cluster.
_SILENCE_S = 2.0  # Whoever waits for longer is told what for.


def librdkafka_version() -> str:
    """The version of librdkafka, such as `2.16.1`; the Python package has one of its own."""
    return libversion()[0]


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
        self._refusals = Refusals()
        self._properties = self._refusals.listening(properties.common(kafka))
        try:
            self._client = AdminClient(self._properties)
        except KafkaException as error:
            raise ConfigurationError(f"the section `kafka` of the settings: {kafka_errors.of(error).str()}") from None
        self._looking = InBackground("looking for brokers", self._look)
        self.renewal = Renewal(self.refresh, self._renew)  # Gives the client up when a question stays unanswered.
        self.looked_s = 0.0  # When a broker last answered `refresh`, on the monotonic clock.

    def cluster(self, timeout_s: float = _TIMEOUT_S) -> Cluster:
        """Look at the cluster.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        doing = f"looking at the cluster at {self._bootstrap}"
        try:
            metadata = self._metadata(timeout_s)
        except KafkaException as error:
            self._client.poll(0)  # Why it was refused, if it was.
            if kafka_errors.is_unreachable(error) and self._refusals.error is None:
                outage.unreachable(doing)
            raise kafka_errors.stop(self._refusals.error or error, doing) from error
        outage.reached()
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
                if not kafka_errors.is_unreachable(error):
                    raise
            self._client.poll(0)
            if self._refusals.error is not None:
                raise KafkaException(self._refusals.error)
            if not outage.is_away():  # Else there is a line a minute.
                properties.log.warning("waiting for Kafka at %s, up to %g s", self._bootstrap, timeout_s)
            timeout_s -= _SILENCE_S
        return self._client.list_topics(timeout=timeout_s)

    def refresh(self) -> None:
        """Have the client look who leads and coordinates what; returns at once."""
        self._looking.start()

    def _look(self) -> None:
        try:
            self._client.list_topics(timeout=_LOOK_TIMEOUT_S)
        except KafkaException as error:
            if kafka_errors.is_unreachable(error):
                outage.unreachable("asking for brokers and leaders")
        else:
            self.looked_s = time.monotonic()
            outage.reached()

    def _renew(self) -> None:
        """Make the client anew: the one there is may wait for a broker that is dead."""
        properties.log.warning("no answer from Kafka; connecting anew")
        leave(self._swap(AdminClient(self._properties)))

    def _swap(self, client: AdminClient) -> AdminClient:
        former, self._client = self._client, client
        return former

    def _ask(
        self, question: str, ask: Callable[[Sequence[str], float], Mapping[str, Future[Any]]], names: Sequence[str],
        timeout_s: float,
    ) -> dict[str, Any]:  # fmt: skip
        """Ask about topics until each has an answer, and wait for them.

        Args:
            question: what is asked, for people.
            ask: tries once, for so many seconds.
            names: the topics.
            timeout_s: longest wait.

        Returns:
            The answer, or Kafka's error, by topic.
        """
        deadline_s = time.monotonic() + timeout_s
        answers: dict[str, Any] = {}
        while left := [name for name in names if name not in answers]:
            try_s = max(_PAUSE_S, min(_TRY_S, deadline_s - time.monotonic()))
            for name, future in ask(left, try_s).items():
                answer = in_time(future, try_s)
                if not isinstance(answer, KafkaException) or not kafka_errors.is_unanswered(answer):
                    self.renewal.answered(f"{question} {name}")
                    outage.reached()
                    answers[name] = answer
                else:
                    self.renewal.unanswered(f"{question} {name}")
                    if time.monotonic() >= deadline_s:
                        answers[name] = answer
            if len(answers) < len(names):
                time.sleep(_PAUSE_S)
        return answers

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
        created = create_topics(self._client, wanted, replication)
        self._await_leaders({name: wanted[name].partitions for name in created})
        return [name for name in wanted if name in created]

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
        delete_topics(self._client, names)

    def topic_config(self, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, dict[str, str]]:
        """The settings in force of each topic.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        found = {}
        for name, entries in self._ask("settings of", self._ask_config, names, timeout_s).items():
            if isinstance(entries, KafkaException):
                raise kafka_errors.stop(entries, f"reading the settings of the topic {name}") from entries
            found[name] = values(entries)
        return found

    def ask_config(self, name: str) -> Answers[dict[str, str]]:
        """Ask for the settings of a topic, under the number 0; the answer is to be looked for."""
        return Answers({0: self._ask_config([name], ASK_TIMEOUT_S)[name]}, lambda _, entries: values(entries))

    def _ask_config(self, names: Sequence[str], timeout_s: float) -> dict[str, Future[Any]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        asked = self._client.describe_configs(resources, request_timeout=timeout_s) if resources else {}
        return {resource.name: future for resource, future in asked.items()}

    def _ask_topics(self, names: Sequence[str], timeout_s: float) -> dict[str, Future[Any]]:
        return dict(self._client.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s))

    def found(self, names: Sequence[str], timeout_s: float = _TIMEOUT_S) -> dict[str, FoundTopic]:
        """Topics as they are; those that do not exist are left out.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka does not let us look.
        """
        there = {}
        for name, answer in self._ask("look at", self._ask_topics, names, timeout_s).items():
            if not isinstance(answer, KafkaException):
                there[name] = answer
            elif kafka_errors.of(answer).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise kafka_errors.stop(answer, f"looking at the topic {name}") from answer
        config = self.topic_config(list(there), timeout_s)
        return {
            name: FoundTopic(
                partitions=len(topic.partitions),
                config=config[name],
                replicas=min((len(partition.replicas) for partition in topic.partitions), default=0),
                topic_id=str(topic.topic_id),
            )
            for name, topic in there.items()
        }

    def delete_retention_ms(self, topic: str, timeout_s: float = _TIMEOUT_S) -> float:
        """How long deletes stay in a compacted topic: a copy that is older may lack some.

        Raises:
            BrokerUnavailable: no answer in time.
            Stop: Kafka refuses.
        """
        return retained_ms(self.topic_config([topic], timeout_s).get(topic, {}))

    def topic_id(self, name: str, timeout_s: float = _TIMEOUT_S) -> str:
        """What tells a topic from another one that had its name before.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        answer = self._ask("look at", self._ask_topics, [name], timeout_s)[name]
        if isinstance(answer, KafkaException):
            raise kafka_errors.stop(answer, f"looking at the topic {name}") from answer
        return str(answer.topic_id)

    def ask_topic_id(self, name: str) -> Answers[str]:
        """Ask what tells a topic from its namesakes, under the number 0; the answer is to be looked for."""
        return Answers({0: self._ask_topics([name], ASK_TIMEOUT_S)[name]}, lambda _, topic: str(topic.topic_id))

    def ask_topic(self, name: str, timeout_s: float) -> TopicQuestion:
        """Ask what a topic is; the answer is to be looked for."""
        return TopicQuestion(self._client.describe_topics(TopicCollection([name]), request_timeout=timeout_s)[name])

    def ask_group(self, group: str, topic: str, timeout_s: float) -> GroupQuestion:
        """Ask who is in a consumer group and which partitions of a topic they have; the answer is to be looked for."""

        def overdue(name: str) -> None:
            self.renewal.unanswered(f"the group {name}")

        return ask_groups(self._client, [group], timeout_s, topic=topic, on_overdue=overdue)[group]

    def set_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a consumer group that nobody is a member of.

        Raises:
            Stop: Kafka refuses, as it does where somebody is, or does not answer.
        """
        places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        asked = self._client.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], request_timeout=COORDINATOR_TIMEOUT_S
        )
        done = in_time(asked[group], _TIMEOUT_S)
        if isinstance(done, KafkaException):
            raise kafka_errors.stop(done, f"setting the offsets of the group {group}") from done
        for place in done.topic_partitions:
            if place.error is not None:
                raise kafka_errors.stop(
                    place.error, f"setting the offset of the group {group}, partition {place.partition}"
                )

    def end_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float = _TIMEOUT_S) -> dict[int, int]:
        """The true end of each partition, open transactions included.

        A committed reader's own idea of the end may lie before a transaction that is committed already but whose
        marker has not arrived (KAFKA-10167): a restore must aim here.

        Raises:
            BrokerUnavailable: no answer in time.
        """
        began_s, pause_s = time.monotonic(), _PAUSE_S
        found: dict[int, int] = {}
        left = list(partitions)
        while True:
            try_s = max(_PAUSE_S, min(_TRY_S, began_s + timeout_s - time.monotonic()))
            answers = self.ask_offsets(topic, left, "end", try_s).wait()
            found |= {partition: end for partition, end in answers.items() if isinstance(end, int)}
            errors = [error for error in answers.values() if isinstance(error, KafkaException)]
            if not errors:
                self.renewal.answered(f"ends of {topic}")
                outage.reached()
                return found
            left = [partition for partition in left if partition not in found]
            self._check_ends(topic, errors, time.monotonic() - began_s, timeout_s)
            # librdkafka asks with the epoch of the leader it knows, and learns no newer one from the refusal. Where it
            # saw no leader, as of a broker that was away for a moment, it asks nobody for a quarter of an hour. So we
            # have it look; at all topics, if this one may not be there, as a broker may make what it is asked for.
            is_there = all(map(kafka_errors.is_moved, errors))
            with contextlib.suppress(KafkaException):
                self._client.list_topics(topic if is_there else None, timeout=min(timeout_s, _LOOK_TIMEOUT_S))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _check_ends(self, topic: str, errors: Sequence[KafkaException], waited_s: float, timeout_s: float) -> None:
        """Whether to ask again where a topic ends.

        Raises:
            Stop: one of the errors stays, or has stayed for too long.
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
        self, topic: str, partitions: Iterable[int], place: Place, timeout_s: float = ASK_TIMEOUT_S
    ) -> Answers[int]:
        """Ask where partitions begin or end; the answers are to be looked for.

        librdkafka gives an invalid offset (-1001) for an answer where a leader is changing: it counts as none.
        """
        spec: Any = OffsetSpec.earliest() if place == "oldest" else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if place == "stable_end" else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        futures = self._client.list_offsets(asked, isolation_level=level, request_timeout=timeout_s)
        return Answers({at.partition: future for at, future in futures.items()}, offset_of, timeout_s)

    def ask_committed(self, group: str, topic: str, partitions: Sequence[int]) -> Answers[Committed]:
        """Ask for the committed offsets of a group; the answers are to be looked for.

        Of a partition whose offset a transaction holds in the balance the answer is `UNSTABLE_OFFSET_COMMIT`.
        """
        places = [TopicPartition(topic, partition) for partition in partitions]
        future = self._client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], require_stable=True, request_timeout=COORDINATOR_TIMEOUT_S
        )[group]
        return Answers(dict.fromkeys(partitions, future), committed_of)
