"""Kafka topics as input of a job: committed records only, from a position that the job chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError
from processor.kafka.admin.admin import Admin
from processor.topics.family import MESSAGE_MAX_BYTES
from spark_integration.foundation.options import REQUEST_SIZE
from spark_integration.pipeline.ingesting.reader_options import check_options
from spark_integration.pipeline.job import InputMissing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_integration.foundation.small_files import SmallFiles
    from spark_integration.pipeline.job import JobContext

OFFSETS_PER_TRIGGER: Final = "1000000"
"""The default limit of a micro-batch, in offsets of all partitions."""

_JAVA_BYTES: Final = 1024 * 1024
"""The largest request of Java's client."""
_SPLITTING: Final = ("minPartitions", "maxRecordsPerPartition")
"""Options that divide a partition among tasks, which only jobs that send its records cannot have."""
_TOPICS: Final = "sowstream.topics"
"""The name of the file with the ids of the Kafka topics that a job has read, as JSON by name."""
_EARLIEST: Final = -2  # Spark's Kafka source takes it for the oldest record.


def kafka_records(
    session: SparkSession, topics: Sequence[str], kafka: Mapping[str, str], options: Mapping[str, str]
) -> DataFrame:
    """Stream the committed records of Kafka topics, with their headers.

    Args:
        session: the session.
        topics: the Kafka names.
        kafka: options of the Kafka client.
        options: options of Spark's Kafka source.

    Raises:
        ConfigurationError: an option is set by the job itself.
    """
    try:
        check_options("kafka", options, has_schema=False, more=_SPLITTING)
    except ValueError as error:
        raise ConfigurationError(f"options: {error}") from None
    settings = {
        "startingOffsets": "earliest",
        **kafka,
        **options,
        "subscribe": ",".join(topics),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    return session.readStream.format("kafka").options(**settings).load()


def publishing_options(context: JobContext, topic: str) -> dict[str, str]:
    """The options of the Kafka client of a job, with the largest message that a topic takes as the limit of a request.

    Where the settings of the topic are hidden from this user, the limit is that of Java's client. It is never less:
    the topic's counts what is compressed, and a row may be well below it then.

    Raises:
        BrokerUnavailable: Kafka did not answer.
        Stop: Kafka refuses.
    """
    described = Admin(context.admin_kafka, awaits_names=True).describe_topics([topic], shows_hidden=True)
    taken = described[topic].number("max.message.bytes", _JAVA_BYTES) if topic in described else _JAVA_BYTES
    return {REQUEST_SIZE: str(max(_JAVA_BYTES, min(taken, MESSAGE_MAX_BYTES))), **context.kafka}


def partition_counts(context: JobContext, topics: Sequence[str]) -> dict[str, int]:
    """The number of partitions of each topic.

    Raises:
        InputMissing: a topic does not exist yet.
        BrokerUnavailable: Kafka did not answer.
    """
    counts = Admin(context.admin_kafka, awaits_names=True).cluster().topics
    if missing := [name for name in topics if name not in counts]:
        raise InputMissing(
            f"there is no Kafka topic {missing[0]!r} yet; `sowstream topics apply` creates those of the settings"
        )
    return {name: counts[name] for name in topics}


def refuse_recreated(context: JobContext, topics: Sequence[str], files: SmallFiles) -> None:
    """Make sure that Kafka topics are those whose offsets the job has; at the first start, take note of them.

    Args:
        context: the job's context.
        topics: the names of the topics.
        files: the directory of the note.

    Raises:
        ConfigurationError: a topic was deleted and created again: its first records would count as read.
        BrokerUnavailable: Kafka did not answer.
    """
    admin = Admin(context.admin_kafka)
    known: dict[str, str] = json.loads(files.read(_TOPICS) or "{}")
    ids = {name: admin.topic_id(name) for name in topics}
    for name, topic_id in ids.items():
        if known.get(name, topic_id) != topic_id:
            raise ConfigurationError(
                f"{context.name}: the Kafka topic {name!r} was deleted and created again, and its first records would "
                "count as read: give the job a new checkpoint, and where it writes files another place for them"
            )
    if not ids.items() <= known.items():
        files.write(_TOPICS, json.dumps(known | ids))


def has_begun(files: SmallFiles) -> bool:
    """Return whether a checkpoint has the position of its query, which then begins there."""
    return bool(files.names("offsets"))


def starting_offsets(counts: Mapping[str, int], reached: Mapping[tuple[str, int], int]) -> str:
    """The option `startingOffsets`: behind the reached offsets, else the oldest record.

    Args:
        counts: the number of partitions of each topic.
        reached: the last processed offset, by topic and partition.
    """
    return json.dumps(
        {
            topic: {
                str(number): reached[topic, number] + 1 if (topic, number) in reached else _EARLIEST
                for number in range(count)
            }
            for topic, count in counts.items()
        }
    )
