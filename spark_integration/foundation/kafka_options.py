"""Kafka settings in both dialects: Java's names, for Spark's source and sink, and librdkafka's, for Sowstream's own.

A name may come from either dialect, with or without the prefix `kafka.`. No error and no `repr` has a value. Sources:
the configuration pages of Apache Kafka 3.9 and of librdkafka 2.16.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from processor.errors import ConfigurationError
from spark_integration.foundation.kafka_security import (
    EITHER,
    SECURITY,
    SHADED,
    Untranslatable,
    java_security,
    librdkafka_security,
    refuse_for_librdkafka,
    security,
)

SERVERS: Final = "bootstrap.servers"
"""The property with the addresses of brokers."""

PREFIX: Final = "kafka."
"""The prefix of options of Spark that are for the Kafka client."""

_TO_CONNECT: Final = (
    SERVERS, "client.id", "client.rack", "client.dns.lookup", "connections.max.idle.ms", "metadata.max.age.ms",
    "reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms",
    "socket.connection.setup.timeout.ms", "socket.timeout.ms",
)  # fmt: skip
"""librdkafka's properties of a connection, apart from its security."""
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}
"""Java's names of properties, and librdkafka's of the same."""
_SECOND_NAMES: Final = {"compression.codec": "compression.type", "queue.buffering.max.ms": "linger.ms"}
"""librdkafka's own names of properties that it has under Java's names, too."""
_JAVAS_OWN: Final = re.compile(
    r"auto\.include\.jmx\.reporter|buffer\.memory|compression\..*\.level|config\.providers.*|default\.api\.timeout\.ms"
    r"|exclude\.internal\.topics|interceptor\.classes|(key|value)\.(de)?serializer|max\.block\.ms|max\.poll\.records"
    r"|metadata\.max\.idle\.ms|metrics?\..*|partitioner\..*|partition\.assignment\.strategy"
    r"|socket\.connection\.setup\.timeout\.max\.ms"
)
"""Properties that tune Java's clients only, and mean nothing to librdkafka."""

_VARIABLE: Final = "sowstream_kafka__"
_PROVIDERS: Final = "config.providers"
_REFERENCE: Final = re.compile(r"\$\{(?!sowstream:)\w+:[^}]*\}")

_GROUPS: Final = (
    re.compile(r"ssl\.(ca|truststore)\..*|enable\.ssl\.certificate\.verification"),
    re.compile(r"ssl\.(certificate|key|keystore)\..*"),
)
"""Properties that stand for one thing: options that have one of them replace all of the settings'."""
_LOGIN: Final = re.compile(r"sasl\.(jaas\.config|username|password|oauthbearer\..*|.*callback\.handler\.class)")


@dataclass(frozen=True, slots=True, repr=False)
class KafkaOptions:
    """The Kafka settings of one call, from its options and from the section `kafka` of the settings."""

    section: Mapping[str, str]
    """The section `kafka`: librdkafka's names."""
    options: Mapping[str, str]
    """The options of the call, without the prefix `kafka.`; they replace the section's."""

    @classmethod
    def of(cls, options: Mapping[str, str] | None, section: Mapping[str, str] | None = None) -> KafkaOptions:
        """Collect the Kafka settings among the options of a call.

        Args:
            options: the options; the case of names does not matter, and those that are not for Kafka are left out.
            section: the section `kafka` of the settings.
        """
        own = {name: text for option, text in (options or {}).items() if (name := kafka_property(option)) is not None}
        return cls(dict(section or {}), own)

    def __repr__(self) -> str:
        return f"KafkaOptions({', '.join(sorted({*self.section, *self.options}))})"

    @property
    def has_servers(self) -> bool:
        """True if the addresses of brokers are among them."""
        return bool(self.options.get(SERVERS) or self.section.get(SERVERS))

    def java(self, *, shaded: bool = False) -> dict[str, str]:
        """The properties of a Java client: all of the options, and of the section those that a connection needs.

        Args:
            shaded: whether the names of Kafka's classes begin with `SHADED`.

        Raises:
            Untranslatable: a setting has no counterpart in Java.
        """
        section = {name: text for name, text in self.section.items() if name in (SERVERS, "client.dns.lookup")}
        section |= security(self.section)
        try:
            found = _to_java(_merged(section, self.options))
        except Untranslatable:
            if not _has_credentials(self.options):
                raise
            # The options have credentials of their own, and the section's are for librdkafka alone.
            found = _to_java(
                {**{name: section[name] for name in (SERVERS, *EITHER) if name in section}, **self.options}
            )
        return {name: _shaded(name, text) for name, text in found.items()} if shaded else found

    def librdkafka(self, *, tuned: bool = False) -> dict[str, str]:
        """The properties of librdkafka: all of the section, and of the options those that a connection needs.

        Args:
            tuned: whether other properties of the options are added, apart from those of Java's clients alone.

        Raises:
            Untranslatable: a setting has no counterpart in librdkafka.
        """
        renamed = {_RENAMED.get(name, name): text for name, text in self.options.items()}
        options = {
            name: text
            for name, text in renamed.items()
            if name.startswith(SECURITY) or name in _TO_CONNECT or (tuned and not _JAVAS_OWN.fullmatch(name))
        }
        try:
            _refuse_references(options)
            return _to_librdkafka(_merged(self.section, options))
        except Untranslatable:
            if not _has_credentials(self.section):
                raise
            # The section has credentials of its own, and the options' are for Java alone.
            shared = {name: text for name, text in options.items() if name in EITHER or not name.startswith(SECURITY)}
            return _to_librdkafka({**self.section, **shared})


def kafka_property(option: str) -> str | None:
    """The Kafka property that an option of Spark stands for; None where it is not for the Kafka client."""
    name = option.lower()
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX)
    return name if name == SERVERS or name.startswith(SECURITY) else None


def environment_section() -> dict[str, str]:
    """The properties of the section `kafka` that the environment has, as `sowstream` reads them.

    `SOWSTREAM_KAFKA__SASL_PASSWORD` is one property, which may have its dots and then has priority;
    `SOWSTREAM_KAFKA` is all of them as JSON.
    """
    try:
        found = json.loads(os.environ.get("SOWSTREAM_KAFKA", "{}"))
        section = {name: str(value) for name, value in found.items()}
    except (ValueError, AttributeError):
        raise ConfigurationError("the environment: SOWSTREAM_KAFKA is no JSON object of Kafka properties") from None
    variables = {name.lower(): text for name, text in os.environ.items()}
    named = {name.removeprefix(_VARIABLE): text for name, text in variables.items() if name.startswith(_VARIABLE)}
    dotted = {name: text for name, text in named.items() if "_" not in name}
    return section | {name.replace("_", "."): text for name, text in named.items()} | dotted


def _has_credentials(properties: Mapping[str, str]) -> bool:
    return any(name not in EITHER for name in security(properties))


def _merged(section: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """The section with the options in place of its own properties of the same purpose."""
    replaced = [group for group in _GROUPS if any(map(group.fullmatch, options))]
    if "sasl.jaas.config" in options:
        replaced.append(_LOGIN)
    kept = {name: text for name, text in section.items() if not any(group.fullmatch(name) for group in replaced)}
    if "sasl.mechanism" in options:
        kept.pop("sasl.mechanisms", None)
    merged = kept | dict(options)
    if "sasl.mechanisms" in merged:  # librdkafka's other name.
        merged.setdefault("sasl.mechanism", merged.pop("sasl.mechanisms"))
        merged.pop("sasl.mechanisms", None)
    return merged


def _shaded(name: str, text: str) -> str:
    """A value with the moved name of the class of Kafka that it begins with; other texts may be passwords."""
    names_class = name == "sasl.jaas.config" or name.endswith(".class")
    return re.sub(r"^(\s*)(org\.apache\.kafka\.)", rf"\1{SHADED}\2", text) if names_class else text


def _to_java(properties: Mapping[str, str]) -> dict[str, str]:
    javas = {new: old for old, new in _RENAMED.items()} | _SECOND_NAMES
    found = {javas.get(name, name): text for name, text in properties.items() if not name.startswith(SECURITY)}
    secured = java_security(properties)
    if _PROVIDERS in found and _PROVIDERS in secured:
        secured[_PROVIDERS] = f"{found[_PROVIDERS]},{secured[_PROVIDERS]}"
    return found | secured


def _to_librdkafka(properties: Mapping[str, str]) -> dict[str, str]:
    found = {_RENAMED.get(name, name): text for name, text in properties.items() if not name.startswith(SECURITY)}
    return found | librdkafka_security(properties)


def _refuse_references(options: Mapping[str, str]) -> None:
    """Refuse values that only Java's configuration providers can resolve."""
    for name, text in security(options).items():
        if _REFERENCE.fullmatch(text):
            refuse_for_librdkafka(name, "its value is a reference of Java's config.providers")
