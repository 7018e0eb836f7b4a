"""Offsets and settings of a topic, and whether it has moved.

They are requested by Java's admin client in Spark's JVM, with the same `kafka.*` options; by librdkafka in processes
without a JVM, such as a data source's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.errors import BrokerUnavailable, ConfigurationError, TopicMoved
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import LogReader
from processor.wire.columns import KIND
from processor.wire.forwarding import MOVED_RETENTION_MS, RESERVED, moved_to
from spark_integration.kafka_options import KafkaOptions
from spark_integration.kafka_security import SHADED
from spark_integration.pyspark_private import find_jvm, kafka_package

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from processor.record import Headers
    from spark_integration.settings import TopicSettings


_Answer = TypeVar("_Answer")

_ANSWER_TIMEOUT_S: Final = 30.0
_WAIT_S: Final = 0.05


class LogFacts:
    """The current offsets and settings of one topic."""

    def __init__(self, topic: str, kafka: Mapping[str, str], *, group: str) -> None:
        """Connect to Kafka and look up the topic.

        Args:
            topic: its Kafka name.
            kafka: librdkafka properties.
            group: the name of a consumer group; nothing joins it.

        Raises:
            ConfigurationError: the topic does not exist, or librdkafka rejects a property.
            BrokerUnavailable: Kafka did not answer in time.
        """
        self.topic = topic
        try:
            self._admin = Admin(kafka)
        except ConfigurationError as error:
            problem = str(error).partition(": ")[2]
            raise ConfigurationError(
                f"the options that begin with 'kafka.': {problem}; these go to librdkafka"
            ) from None
        description = self._admin.describe_topics([topic]).get(topic)
        if description is None:
            raise ConfigurationError(
                f"the Kafka topic {topic} does not exist; check the name, or create it: `sowstream topics apply`"
            )
        self._settings = description.config
        self.partitions = range(description.partitions)
        self._log = LogReader(kafka, group=group)

    def begins(self) -> dict[int, int]:
        """The oldest offset kept of each partition."""
        return {partition: bounds[0] for partition, bounds in self._bounds().items()}

    def ends(self) -> dict[int, int]:
        """The next offset of each partition, after open transactions."""
        return self._admin.end_offsets(self.topic, self.partitions)

    def committed_ends(self) -> dict[int, int]:
        """The last stable offset of each partition: the beginning of the first open transaction, else the end."""
        return {partition: bounds[1] for partition, bounds in self._bounds().items()}

    def at_time(self, time_ms: int) -> dict[int, int]:
        """The first offset of each partition with a record of this time or later; its end where there is none."""
        ends = self.ends()
        offsets = self._answer(lambda: self._log.at_time(self.topic, self.partitions, time_ms, _ANSWER_TIMEOUT_S))
        return {partition: ends[partition] if offset is None else offset for partition, offset in offsets.items()}

    def setting(self, name: str) -> str | None:
        """A setting of the topic; None where access is denied."""
        return self._settings.get(name)

    def close(self) -> None:
        """Close the connection."""
        self._log.close()

    def _bounds(self) -> dict[int, tuple[int, int]]:
        return {
            partition: self._answer(lambda at=partition: self._log.bounds(self.topic, at, _ANSWER_TIMEOUT_S))  # type: ignore[misc]
            for partition in self.partitions
        }

    def _answer(self, ask: Callable[[], _Answer]) -> _Answer:
        deadline = time.monotonic() + _ANSWER_TIMEOUT_S
        while True:
            try:
                return ask()
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"asking about {self.topic}: Kafka did not answer within {_ANSWER_TIMEOUT_S:g} s; check the "
                        "option 'kafka.bootstrap.servers' and those of TLS and SASL, and whether the brokers run"
                    ) from None
                time.sleep(_WAIT_S)


_PREFIX: Final = "kafka."
_GROUP: Final = "sowstream.spark"
"""The name of a consumer group, which nothing joins."""
_JVM_ANSWER_TIMEOUT_S: Final = 30
_TIMES: Final = {"default.api.timeout.ms": str(_JVM_ANSWER_TIMEOUT_S * 1000), "request.timeout.ms": "10000"}
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


_RETENTION: Final = "delete.retention.ms"


def may_have_moved(retention_ms: str | None) -> bool:
    """Return whether a SOW topic may have moved, by its `delete.retention.ms`; only then are its marks looked for."""
    return retention_ms is not None and float(retention_ms) >= MOVED_RETENTION_MS


def refuse_moved(spark: SparkSession, settings: TopicSettings, options: Mapping[str, str]) -> None:
    """Refuse a topic that has moved.

    Args:
        spark: a session with Spark's Kafka connector.
        settings: the settings of the topic.
        options: options of Spark's Kafka source.

    Raises:
        TopicMoved: another topic has taken its place.
        BrokerUnavailable: Kafka did not answer in time.
    """
    topic = settings.kafka_topic("sow")
    try:
        with topic_facts(spark, topic, options) as facts:
            retention_ms = facts.setting(_RETENTION)
    except ConfigurationError:
        return  # There is no SOW topic, or it may not be looked at: what is read says so, if that is at fault.
    if not may_have_moved(retention_ms):
        return
    kafka = {name: text for name, text in options.items() if name.lower().startswith("kafka.")}
    reading = {"subscribe": topic, "includeHeaders": "true", "startingOffsets": "earliest"}
    records = spark.read.format("kafka").options(**kafka, **reading).load()
    for row in records.where(F.col("value").isNull() & _is_reserved()).select("key", "headers").collect():
        headers: Headers = [(header["key"], bytes(header["value"] or b"")) for header in row["headers"] or ()]
        if (name := moved_to(bytes(row["key"]), headers)) is not None:
            raise TopicMoved(topic, name)


def refuse_moved_log(facts: LogFacts, kafka: Mapping[str, str], group: str) -> None:
    """Refuse a topic that has moved, in a process without a JVM.

    Args:
        facts: those of its SOW topic.
        kafka: librdkafka properties.
        group: the name of a consumer group; nothing joins it.

    Raises:
        TopicMoved: another topic has taken its place.
        BrokerUnavailable: Kafka did not answer in time.
    """
    if may_have_moved(facts.setting(_RETENTION)):
        from processor.client.feeds.snapshot_boundary import refuse_moved as refuse  # noqa: PLC0415 - seldom needed
        from processor.kafka.admin.admin import Admin  # noqa: PLC0415

        refuse(kafka, Admin(kafka), facts.topic, len(facts.partitions), group)


def until_moved(records: DataFrame, topic: str) -> DataFrame:
    """The records of a SOW or delta topic; the query fails at the mark that says that it has moved.

    Args:
        records: rows of Spark's Kafka source.
        topic: their Kafka topic.
    """
    is_mark = F.col("value").isNull() & _is_reserved() & ~F.exists("headers", lambda header: header["key"] == KIND)
    error = F.concat(
        F.lit(f"{topic} has moved, and gets no more records; the topic in its place is named at the end of "),
        F.substring(F.col("key").cast("string"), 2, 300),
    )
    return records.where(F.when(is_mark, F.raise_error(error).cast("boolean")).otherwise(F.lit(True)))


def _is_reserved() -> Column:
    return F.hex("key").startswith(RESERVED.hex().upper())
