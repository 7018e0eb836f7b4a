"""Parses the options of `spark.read.format("sow")`."""

from __future__ import annotations

import datetime as dt
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from spark_integration.options import TOPIC_PREFIX
from spark_integration.reading.as_of import At
from spark_integration.settings import TopicSettings, topic_settings

_PREFIX: Final = "kafka."
_SERVERS: Final = "bootstrap.servers"
_MAX_BYTES: Final = 512 * 1024 * 1024

_KNOWN: Final = (
    "topic", "schema", "filter", "config", "at", "endingOffsets", "allowCompacted", "maxBytesPerPartition",
    TOPIC_PREFIX,
)  # fmt: skip

_JAVAS: Final = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.password": "ssl.ca.location, a PEM file, which needs none",
    "ssl.truststore.type": "ssl.ca.location, a PEM file",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.type": "ssl.keystore.location for PKCS#12, or ssl.certificate.location and ssl.key.location for PEM",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "sasl.login.callback.handler.class": "sasl.oauthbearer.method",
    "sasl.client.callback.handler.class": "sasl.oauthbearer.method",
    "request.timeout.ms": "socket.timeout.ms",
    "default.api.timeout.ms": "socket.timeout.ms",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "max.poll.records": "no other: leave it out",
    "key.deserializer": "no other: leave it out",
    "value.deserializer": "no other: leave it out",
}
"""Properties of Java's clients, which Spark's own Kafka source accepts, and their replacements in librdkafka."""

_OURS: Final = {
    "isolation.level": "it is always read_committed: aborted records never happened",
    "group.id": "no group is joined",
    "auto.offset.reset": "a table is read from the beginning",
    "enable.auto.commit": "nothing is committed",
    "enable.partition.eof": "it is how the end of a partition is told",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options."""

    settings: TopicSettings
    """The settings of the topic."""
    schema: str | None
    """The columns of the record as DDL; None: the columns of the topic's schema, for JSON one text column."""
    filter: str | None
    """A filter for the records; None: all records."""
    at: At | None
    """The end of the read; None: everything committed now."""
    allow_compacted: bool
    """Whether `at` may be so early that compaction may have removed records."""
    max_bytes_per_partition: int
    """Memory limit for the latest records of a partition: keys, values and headers."""
    kafka: Mapping[str, str]
    """librdkafka properties."""


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options; the case of names does not matter.

    Raises:
        ConfigurationError: an option is unknown, missing, or cannot be used.
    """
    spelling = {name.lower(): name for name in _KNOWN}
    own: dict[str, str] = {}
    kafka: dict[str, str] = {}
    for name, text in options.items():
        if name.lower().startswith(_PREFIX):
            kafka[_property(name, name[len(_PREFIX) :].lower())] = text
        elif name.lower() in spelling:
            own[spelling[name.lower()]] = text
        else:
            raise ConfigurationError(_unknown(name))
    topic = own.get("topic", "")
    if not topic or "." in topic:
        raise ConfigurationError(
            f"option 'topic' is {topic!r}; give the name of a family without its role, such as 'orders': "
            "'.sow' is added"
        )
    settings = topic_settings(topic, own.get("config"), options=own)
    kafka = {**settings.kafka, **kafka}
    if not kafka.get(_SERVERS):
        raise ConfigurationError("no option 'kafka.bootstrap.servers': say where Kafka is, such as 'localhost:9092'")
    if "filter" in own:
        compile_filter(own["filter"])
    if own.get("schema", "").strip().lower() == "infer":
        raise ConfigurationError("option 'schema' is 'infer'; give DDL here, or use read_sow, which can infer one")
    return SourceOptions(
        settings,
        own.get("schema"),
        own.get("filter"),
        _at(own, settings.kafka_topic("sow")),
        _flag("allowCompacted", own.get("allowCompacted", "false")),
        _bytes("maxBytesPerPartition", own.get("maxBytesPerPartition", str(_MAX_BYTES))),
        kafka,
    )


def _property(option: str, name: str) -> str:
    if name in _JAVAS:
        raise ConfigurationError(
            f"option {option!r} is for Java's Kafka client, and this source reads with librdkafka; "
            f"there it is {_JAVAS[name]}"
        )
    if name in _OURS:
        raise ConfigurationError(f"option {option!r} cannot be given: {_OURS[name]}; leave it out")
    return name


def _unknown(name: str) -> str:
    if name.lower() == "path":
        return "load() was given a path; the option 'topic' says what is read, and load() takes nothing"
    if name.lower() == _SERVERS:
        return f"option {name!r} needs the prefix `kafka.`: 'kafka.bootstrap.servers'"
    names = {known.lower(): known for known in (*_KNOWN, _PREFIX + _SERVERS)}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]!r}?" if close else f"known: {', '.join(_KNOWN)}, and kafka.*"
    return f"there is no option {name!r}; {hint}"


def _at(options: Mapping[str, str], kafka_topic: str) -> At | None:
    """The end of the read, from option `at` or `endingOffsets`."""
    moment, offsets = options.get("at"), options.get("endingOffsets")
    if moment is not None and offsets is not None:
        raise ConfigurationError("options 'at' and 'endingOffsets' both say where the table ends; give one of them")
    if moment is not None:
        try:
            return dt.datetime.fromisoformat(moment)
        except ValueError:
            raise ConfigurationError(
                f"option 'at' is {moment!r}; give a moment as ISO 8601, such as '2026-01-31T12:00:00+00:00'"
            ) from None
    if offsets is None or offsets == "latest":
        return None
    try:
        (name, ends), *more = json.loads(offsets).items()
        if name != kafka_topic or more:
            raise ValueError(name)
        return {int(partition): int(end) for partition, end in ends.items()}
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f"option 'endingOffsets' is {offsets!r}; give 'latest', or the offset after the last one of each "
            f'partition: \'{{"{kafka_topic}": {{"0": 1200, "1": 1187}}}}\''
        ) from None


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {option!r} is {text!r}; give 'true' or 'false'")
    return text.lower() == "true"


def _bytes(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(f"option {option!r} is {text!r}; give a number of bytes, such as '268435456'")
    return int(text)
