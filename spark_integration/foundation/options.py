"""Checks the options of Spark's Kafka source and sink, and adds those that Sowstream sets itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypeAlias

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.topics.family import DLQ_HEADERS_BYTES, MESSAGE_MAX_BYTES, Role
from spark_integration.foundation.kafka_options import PREFIX, SERVERS, KafkaOptions, kafka_property
from spark_integration.foundation.pyspark_private import is_kafka_shaded

Options: TypeAlias = Mapping[str, str]
"""Options of Spark's Kafka source and sink; those that begin with `kafka.` are for the Kafka client."""

TOPIC_PREFIX: Final = "topicPrefix"
"""Sowstream's own option: the prefix of the installation's Kafka names."""

_TOPIC_PREFIXES: Final = (TOPIC_PREFIX.lower(), "topic_prefix")
"""Its spellings in lower case; the second is that of the settings, and older."""

_SERVERS: Final = PREFIX + SERVERS

_OURS_TO_READ: Final = {
    "subscribe": "the function's `topic` says what is read",
    "subscribepattern": "the function's `topic` says what is read",
    "assign": "the function's `topic` says what is read; a part of the partitions would be a part of the keys",
    "includeheaders": "the headers carry version and kind and are always read",
    "kafka.isolation.level": "it is always read_committed: aborted records never happened",
}
_OURS_TO_READ_A_TABLE: Final = dict.fromkeys(
    ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp"),
    "a table is read from the earliest offset; a later start would lose the keys that did not change since",
) | dict.fromkeys(
    ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp"),
    "the function's `at` says up to where a table is read, and is looked at first: some ends cannot be answered for",
)
_FETCHES: Final = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": "4194304"}
"""Defaults for reading. After each poll Spark asks the broker for the topic's bounds, and with that drops what its
consumer has fetched already; Kafka's own 500 records would be fetched five times.
"""
REQUEST_SIZE: Final = "kafka.max.request.size"
"""The option with the largest message that Java's producer sends, in bytes; its default is 1 MiB."""
_LARGEST: Final = {REQUEST_SIZE: str(MESSAGE_MAX_BYTES + DLQ_HEADERS_BYTES)}
"""The default for topics that a merge writes, which have their own limits. Publishing has Java's: in a topic that takes
less than the producer sends, a record could be missing before ones that are written.
"""
_MUST_BE: Final = {"kafka.acks": ("all", "-1"), "kafka.enable.idempotence": ("true",)}
"""Options of the sink that have one value, in its spellings."""
_OURS_TO_WRITE: Final = {
    "topic": "the function's `topic` says where the deltas go",
    "kafka.partitioner.class": "keys go where Kafka's own partitioner puts them, as the workers do",
    "kafka.partitioner.ignore.keys": "a key has one partition; without that its deltas would lose their order",
}


def prefix_of(options: Options | None) -> str | None:
    """The option `topicPrefix`, or `topic_prefix`; None without it."""
    return next((text for name, text in (options or {}).items() if is_prefix(name)), None)


def is_prefix(name: str) -> bool:
    """Return whether an option is the prefix of the installation's Kafka names, in either spelling."""
    return name.lower() in _TOPIC_PREFIXES


def offsets_option(topic: str, offsets: Mapping[int, int]) -> str:
    """The value of Spark's options `startingOffsets` and `endingOffsets` for the partitions of a Kafka topic."""
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def with_connection(options: Options | None, kafka: Mapping[str, str]) -> Options:
    """Translate the Kafka settings among options to Java's names, and add those of the settings that they lack.

    Args:
        options: the caller's options; those for Kafka may have Java's or librdkafka's names, see `KafkaOptions`.
        kafka: librdkafka properties of the settings: servers, TLS and SASL are taken.

    Raises:
        ConfigurationError: a setting has no counterpart in Java.
    """
    own = {name: text for name, text in (options or {}).items() if kafka_property(name) is None}
    java = KafkaOptions.of(options, kafka).java(shaded=is_kafka_shaded())
    return own | {PREFIX + name: text for name, text in java.items()}


def client_properties(kafka: Mapping[str, str], options: Options | None) -> dict[str, str]:
    """Build librdkafka properties for this process from the settings, and from the options that a connection needs.

    Args:
        kafka: librdkafka properties of the settings; all of them are used.
        options: options of Spark's Kafka source, which have priority, see `KafkaOptions`.

    Raises:
        Untranslatable: the options have credentials for Java only, and the settings have none.
        ConfigurationError: neither has the servers.
    """
    given = KafkaOptions.of(options, kafka)
    if not given.has_servers:
        raise ConfigurationError(
            f"nothing says where Kafka is: options={{{_SERVERS!r}: 'localhost:9092'}}, and a section `kafka` in the "
            "settings where it asks for credentials"
        )
    return given.librdkafka()


def source_options(topic: str, role: Role, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options for a stream of one topic of a family: committed records only, headers included.

    Args:
        topic: the family's name.
        role: the role of the topic.
        options: the caller's options.
        names: the Kafka names; None: names with the prefix of option `topicPrefix`.

    Raises:
        ConfigurationError: no servers, an option that Sowstream sets itself, or a topic that is no family's name.
    """
    return {
        **_FETCHES,
        **_checked(options, _OURS_TO_READ),
        "subscribe": _kafka_topic(topic, role, options, names),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


def table_options(topic: str, role: Role, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options for a complete topic, read once from its beginning.

    Raises:
        ConfigurationError: as `source_options`.
    """
    checked = _checked(options, _OURS_TO_READ_A_TABLE)
    return {
        **source_options(topic, role, checked, names or KafkaNames(prefix_of(options) or "")),
        "startingOffsets": "earliest",
    }


def sink_options(topic: str, role: Role, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options for writing to one topic of a family.

    Raises:
        ConfigurationError: as `source_options`; or an option with which records could be lost.
    """
    checked = _checked(options, _OURS_TO_WRITE)
    for name, values in _MUST_BE.items():
        if checked.get(name, values[0]).lower() not in values:
            raise ConfigurationError(
                f"option {name!r} is {checked[name]!r}: records could be lost or change their order; leave it out"
            )
    largest = {} if role == "publish" else _LARGEST
    # Given and not left to their defaults: Java's client switches off an idempotence that is only its default where
    # another option does not fit, such as `max.in.flight.requests.per.connection`, and so says so in a log line alone.
    safe = {name: values[0] for name, values in _MUST_BE.items()}
    return {**largest, **checked, **safe, "topic": _kafka_topic(topic, role, options, names)}


def refuse_given(options: Options | None, ours: Mapping[str, str]) -> None:
    """Refuse options that Sowstream sets itself; Spark reads their names without regard to case.

    Args:
        options: the caller's options.
        ours: the reason for each option that cannot be given.

    Raises:
        ConfigurationError: one of them is given.
    """
    names = {name.lower(): name for name in options or {}}
    for name, reason in ours.items():
        if name in names:
            raise ConfigurationError(f"option {names[name]!r} cannot be given: {reason}; leave it out")


def _checked(options: Options | None, ours: Mapping[str, str]) -> dict[str, str]:
    refuse_given(options, ours)
    checked = with_connection(options, {})
    if not checked.get(_SERVERS):
        raise ConfigurationError(
            f"no option {_SERVERS!r}: say where Kafka is, options={{{_SERVERS!r}: 'localhost:9092'}}"
        )
    return {name: text for name, text in checked.items() if not is_prefix(name)}


def _kafka_topic(family: str, role: Role, options: Options | None, names: KafkaNames | None) -> str:
    if not family or "." in family:
        raise ConfigurationError(
            f"{family!r} is not the name of a topic family; give the name without its role, "
            f"such as 'orders': '.{role}' is added"
        )
    return (names or KafkaNames(prefix_of(options) or "")).topic(family, role)
