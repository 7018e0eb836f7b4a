"""Checks the options of Spark's Kafka source and sink, and adds those that Sowstream sets itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.topics.family import Role

Options: TypeAlias = Mapping[str, str]
"""Options of Spark's Kafka source and sink; those that begin with `kafka.` are for the Kafka client."""

TOPIC_PREFIX: Final = "topic_prefix"
"""Sowstream's own option: the prefix of the installation's Kafka names."""

_SERVERS: Final = "kafka.bootstrap.servers"
_LIBRDKAFKAS: Final = "bootstrap.servers"
_KAFKA: Final = "kafka."
_SECURED: Final = ("security.", "sasl.", "ssl.")
_SHARED: Final = (_LIBRDKAFKAS, "security.protocol", "sasl.mechanism")
"""Properties with the same name in Java's client, which Spark uses, and in librdkafka."""

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
_OURS_TO_WRITE: Final = {
    "topic": "the function's `topic` says where the deltas go",
    "kafka.partitioner.class": "keys go where Kafka's own partitioner puts them, as the workers do",
    "kafka.partitioner.ignore.keys": "a key has one partition; without that its deltas would lose their order",
}


def prefix_of(options: Options | None) -> str | None:
    """The option `topic_prefix`; None without it."""
    return next((text for name, text in (options or {}).items() if name.lower() == TOPIC_PREFIX), None)


def with_servers(options: Options | None, kafka: Mapping[str, str]) -> Options:
    """Add the servers of the settings to options without servers.

    Args:
        options: the caller's options.
        kafka: librdkafka properties of the settings.

    Raises:
        ConfigurationError: the settings have credentials, in librdkafka properties that Java's client does not know.
    """
    own = dict(options or {})
    if _SERVERS in map(str.lower, own) or _LIBRDKAFKAS not in kafka:
        return own
    if secured := [name for name in kafka if name.startswith(_SECURED)]:
        raise ConfigurationError(
            f"the settings say {secured[0]!r} to librdkafka, and Spark's Kafka client is Java's, with other names; "
            f"give options={{{_SERVERS!r}: ..., 'kafka.security.protocol': ...}} and the others of TLS and SASL"
        )
    return {**own, _SERVERS: kafka[_LIBRDKAFKAS]}


def client_properties(kafka: Mapping[str, str], options: Options | None) -> dict[str, str]:
    """Build librdkafka properties for this process from the settings, and from Spark's options where they lack one.

    Args:
        kafka: librdkafka properties of the settings.
        options: options of Spark's Kafka source; only properties that Java's client and librdkafka share are used.

    Raises:
        ConfigurationError: neither has the servers, or only the options have credentials, as properties of Java.
    """
    own = {name.lower().removeprefix(_KAFKA): value for name, value in (options or {}).items()}
    properties = {name: own[name] for name in _SHARED if name in own} | dict(kafka)
    if not properties.get(_LIBRDKAFKAS):
        raise ConfigurationError(
            f"nothing says where Kafka is: options={{{_SERVERS!r}: 'localhost:9092'}}, and a section `kafka` in the "
            "settings where it asks for credentials"
        )
    if (secured := [name for name in own if name.startswith(_SECURED) and name not in _SHARED]) and not any(
        name.startswith(_SECURED) for name in kafka
    ):
        raise ConfigurationError(
            f"option '{_KAFKA}{secured[0]}' is for Java's Kafka client, and the driver asks Kafka by librdkafka, which "
            "has other names: give the same in a section `kafka` of the settings"
        )
    return properties


def source_options(topic: str, role: Role, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options for a stream of one topic of a family: committed records only, headers included.

    Args:
        topic: the family's name.
        role: the role of the topic.
        options: the caller's options.
        names: the Kafka names; None: names with the prefix of option `topic_prefix`.

    Raises:
        ConfigurationError: no servers, an option that Sowstream sets itself, or a topic that is no family's name.
    """
    return {
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
        ConfigurationError: as `source_options`.
    """
    return {**_checked(options, _OURS_TO_WRITE), "topic": _kafka_topic(topic, role, options, names)}


def _checked(options: Options | None, ours: Mapping[str, str]) -> dict[str, str]:
    own = dict(options or {})
    # Spark reads the names of options without regard to case.
    names = {name.lower(): name for name in own}
    if not own.get(names.get(_SERVERS, "")):
        hint = f"; {names['bootstrap.servers']!r} needs the prefix `kafka.`" if "bootstrap.servers" in names else ""
        raise ConfigurationError(
            f"no option {_SERVERS!r}{hint}: say where Kafka is, options={{{_SERVERS!r}: 'localhost:9092'}}"
        )
    for name, reason in ours.items():
        if name in names:
            raise ConfigurationError(f"option {names[name]!r} cannot be given: {reason}; leave it out")
    return {name: text for name, text in own.items() if name.lower() != TOPIC_PREFIX}


def _kafka_topic(family: str, role: Role, options: Options | None, names: KafkaNames | None) -> str:
    if not family or "." in family:
        raise ConfigurationError(
            f"{family!r} is not the name of a topic family; give the name without its role, "
            f"such as 'orders': '.{role}' is added"
        )
    return (names or KafkaNames(prefix_of(options) or "")).topic(family, role)
