"""Offsets and settings of a topic, requested by Java's admin client in Spark's JVM with the same `kafka.*` options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from processor.errors import BrokerUnavailable, ConfigurationError
from spark_integration.kafka_options import KafkaOptions
from spark_integration.kafka_security import SHADED
from spark_integration.pyspark_private import find_jvm, kafka_package
from spark_integration.source.facts import LogFacts

_PREFIX: Final = "kafka."
_GROUP: Final = "sowstream.spark"
"""The name of a consumer group, which nothing joins."""
_ANSWER_TIMEOUT_S: Final = 30
_TIMES: Final = {"default.api.timeout.ms": str(_ANSWER_TIMEOUT_S * 1000), "request.timeout.ms": "10000"}
_KAFKAS_OWN: Final = "org.apache.kafka.common."


class TopicFacts:
    """The current offsets and settings of one topic."""

    def __init__(self, jvm: Any, admin: Any, topic: str) -> None:
        """Use `topic_facts` to create one."""
        self._jvm, self._admin = jvm, admin
        self.topic = topic
        """Its Kafka name."""
        self.partitions = range(self._partition_count())
        """The numbers of its partitions."""

    def begins(self) -> dict[int, int]:
        """The oldest offset kept of each partition."""
        return self._offsets(self._specs.earliest())

    def ends(self) -> dict[int, int]:
        """The next offset of each partition, after open transactions."""
        return self._offsets(self._specs.latest())

    def committed_ends(self) -> dict[int, int]:
        """The last stable offset of each partition: the beginning of the first open transaction, else the end."""
        return self._offsets(self._specs.latest(), committed=True)

    def at_time(self, time_ms: int) -> dict[int, int]:
        """The first offset of each partition with a record of this time or later; its end where there is none."""
        ends = self.ends()
        offsets = self._offsets(self._specs.forTimestamp(time_ms))
        return {partition: ends[partition] if offset < 0 else offset for partition, offset in offsets.items()}

    def setting(self, name: str) -> str | None:
        """A setting of the topic; None where access is denied."""
        resources = kafka_package(self._jvm).common.config.ConfigResource
        resource = resources(resources.Type.TOPIC, self.topic)
        try:
            answer = _answer(self.topic, lambda: self._admin.describeConfigs(_list(self._jvm, [resource])).all())
        except ConfigurationError:
            return None
        return str(answer.get(resource).get(name).value())

    @property
    def _specs(self) -> Any:
        return kafka_package(self._jvm).clients.admin.OffsetSpec

    def _partition_count(self) -> int:
        names = _list(self._jvm, [self.topic])
        described = _answer(self.topic, lambda: self._admin.describeTopics(names).allTopicNames())
        return int(described.get(self.topic).partitions().size())

    def _offsets(self, spec: Any, *, committed: bool = False) -> dict[int, int]:
        kafka = kafka_package(self._jvm)
        asked = self._jvm.java.util.HashMap()
        for partition in self.partitions:
            asked.put(kafka.common.TopicPartition(self.topic, partition), spec)
        levels = kafka.common.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        options = kafka.clients.admin.ListOffsetsOptions(level)
        answer = _answer(self.topic, lambda: self._admin.listOffsets(asked, options).all())
        return {entry.getKey().partition(): entry.getValue().offset() for entry in answer.entrySet()}


@contextmanager
def topic_facts(spark: SparkSession, topic: str, options: Mapping[str, str]) -> Iterator[TopicFacts | LogFacts]:
    """Connect to Kafka and look up a topic: by Java's admin client, on Spark Connect by librdkafka from this process.

    Args:
        spark: a session with Spark's Kafka connector.
        topic: its Kafka name.
        options: options of Spark's Kafka source; those that begin with `kafka.` are for the client.

    Raises:
        ConfigurationError: the topic does not exist, access is denied, or the options cannot be used.
        BrokerUnavailable: Kafka did not answer in time.
    """
    if (jvm := find_jvm(spark)) is None:
        with closing(LogFacts(topic, KafkaOptions.of(options).librdkafka(), group=_GROUP)) as facts:
            yield facts
        return
    settings = jvm.java.util.HashMap()
    client_options = {name[len(_PREFIX) :]: text for name, text in options.items() if name.lower().startswith(_PREFIX)}
    for name, text in (_TIMES | client_options).items():
        settings.put(name, text)
    admin = _called(topic, lambda: kafka_package(jvm).clients.admin.AdminClient.create(settings))
    try:
        yield TopicFacts(jvm, admin, topic)
    finally:
        admin.close(jvm.java.time.Duration.ZERO)


def _list(jvm: Any, items: list[Any]) -> Any:
    array = jvm.java.util.ArrayList()
    for item in items:
        array.add(item)
    return array


def _answer(topic: str, ask: Callable[[], Any]) -> Any:
    return _called(topic, lambda: ask().get())


def _called(topic: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Py4JJavaError as error:
        raise _translated(topic, error.java_exception) from None


def _translated(topic: str, thrown: Any) -> BrokerUnavailable | ConfigurationError:
    """Translate an error of Java. Only Kafka's own messages are included: others may contain the value of a setting."""
    texts = []
    while thrown is not None:
        name = str(thrown.getClass().getName())
        kind = name.rpartition(".")[2]
        if kind == "UnknownTopicOrPartitionException":
            return ConfigurationError(
                f"the Kafka topic {topic} does not exist; check the name, or create it: `sowstream topics apply`"
            )
        if kind == "TimeoutException":
            return BrokerUnavailable(
                f"asking about {topic}: Kafka did not answer in time; check the option "
                "'kafka.bootstrap.servers' and those of TLS and SASL, and whether the brokers run"
            )
        if kind != "ExecutionException":
            texts.append(
                f"{kind}: {thrown.getMessage()}" if name.removeprefix(SHADED).startswith(_KAFKAS_OWN) else kind
            )
        thrown = thrown.getCause()
    return ConfigurationError(
        f"asking about {topic}: {'; '.join(texts)}; check the options that begin with 'kafka.', and that this user may "
        "describe the topic"
    )
