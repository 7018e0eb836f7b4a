"""The settings of a topic for Spark: the same `sowstream.yaml` that its workers read, or a mapping in a notebook."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from processor.codec import Codec, codec_options, load_codec
from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from spark_integration.foundation.kafka_options import environment_section
from spark_integration.foundation.options import TOPIC_PREFIX, Options, prefix_of

if TYPE_CHECKING:
    from processor.config import Config, SchemaConfig, TopicConfig


@dataclass(frozen=True, slots=True)
class SchemaValues:
    """The attributes of `SchemaConfig`."""

    file: Path | None
    text: str | None
    base64: str | None
    subject: str | None
    version: int | None
    message: str | None
    place: str

    def content(self) -> bytes | None:
        """The bytes of the schema, read from the file or taken from the settings; None if neither has it.

        Raises:
            OSError: the file cannot be read.
        """
        if self.file is not None:
            return self.file.read_bytes()
        if self.text is not None:
            return self.text.encode()
        return None if self.base64 is None else base64.b64decode(self.base64)


class TopicValues(SimpleNamespace):
    """The fields and properties of a `TopicConfig` as plain values: executors do not import pydantic."""

    @classmethod
    def of(cls, topic: TopicConfig | TopicValues) -> TopicValues:
        """Copy the attributes of a topic's settings."""
        if isinstance(topic, TopicValues):
            return topic
        properties = [name for name, member in vars(type(topic)).items() if isinstance(member, property)]
        values = {name: _plain(getattr(topic, name)) for name in (*type(topic).model_fields, *properties)}
        # On Spark, publishers of a topic that has moved find their acks with the new topic's.
        return cls(**{**values, "moved_from": None, "message_schema": _schema(topic.message_schema)})


def _plain(value: Any) -> Any:
    """A value of a setting, with plain objects in place of models."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    names = getattr(type(value), "model_fields", None)
    return value if names is None else SimpleNamespace(**{name: _plain(getattr(value, name)) for name in names})


def _schema(schema: SchemaConfig | None) -> SchemaValues | None:
    if schema is None:
        return None
    return SchemaValues(**{field.name: getattr(schema, field.name) for field in fields(SchemaValues)})


Settings: TypeAlias = "str | Path | Config | Mapping[str, Any] | None"
"""A settings file, a loaded `Config`, one topic's settings as a mapping, or None for a topic of plain JSON.

A mapping has the keys below `topics.<name>` of a file, and optionally `kafka`, `schema_registry`, `application_id` and
`topic_prefix`. As with a file, variables `SOWSTREAM_KAFKA__<PROPERTY>` replace properties of `kafka`.
"""

_BESIDE: Final = ("kafka", "schema_registry", "application_id", "topic_prefix")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic; pickled for the executors, as plain values. Its `repr` has no secret."""

    name: str
    """The family's name."""
    topic: TopicConfig = field(repr=False)
    """The settings of its records; on an executor `TopicValues`, which have the same attributes."""
    registry: Mapping[str, str] = field(repr=False)
    """Settings of the schema registry's client; empty without a registry."""
    kafka: Mapping[str, str] = field(repr=False)
    """librdkafka properties of the settings; may be empty."""
    application_id: str
    """The application id, with which the workers' consumer groups begin."""
    schema_text: str | None
    """The text of the topic's schema file, as an executor may not have that file; None without one."""
    family: str
    """The requested topic: `name`, or a copy of it."""
    names: KafkaNames
    """The Kafka names of all families."""
    queues: tuple[str, ...] = ()
    """The queues over the topic, which workers fill."""

    def kafka_topic(self, role: str) -> str:
        """The Kafka name of a topic of the requested family."""
        return self.names.topic(self.family, role)

    @property
    def group_prefix(self) -> str:
        """The prefix of the workers' consumer groups, without the dot after it."""
        return f"{self.names.prefix}{self.application_id}"

    def __reduce__(self) -> tuple[type[TopicSettings], tuple[Any, ...]]:
        """Pickle plain values: a Python process on an executor imports neither pydantic nor the tree of settings."""
        values = tuple(getattr(self, field.name) for field in fields(self))
        return TopicSettings, (values[0], TopicValues.of(self.topic), *values[2:])

    def codec(self, *, reads_only: bool = False) -> Codec:
        """Create the codec of the topic's message type.

        Args:
            reads_only: whether nothing will be written; then nothing is registered in a registry.

        Raises:
            ConfigurationError: the message type is not installed, or its schema cannot be used.
            Stop: the registry does not answer.
        """
        topic = TopicValues.of(self.topic)
        schema = topic.message_schema
        if self.schema_text is None or schema is None or schema.file is None or schema.file.exists():
            return self._codec(topic, reads_only=reads_only)
        here = replace(schema, file=None, text=self.schema_text)
        return self._codec(TopicValues(**{**vars(topic), "message_schema": here}), reads_only=reads_only)

    def _codec(self, topic: TopicValues, *, reads_only: bool) -> Codec:
        options = codec_options(
            cast("TopicConfig", topic), name=self.name, registry=self.registry, reads_only=reads_only, names=self.names
        )
        return load_codec(topic.message_type, options)


def topic_settings(
    topic: str, config: Settings, *, options: Options | None = None, needs_sow: bool = True
) -> TopicSettings:
    """Load the settings of one topic.

    Args:
        topic: the family's name.
        config: the settings; None: a topic of plain JSON with the default key.
        options: the options of the call; `topicPrefix` is the prefix of Kafka names, unless the settings have one.
        needs_sow: whether the caller needs records, which a topic with `sow: false` does not keep.

    Raises:
        ConfigurationError: the settings cannot be read or used, lack the topic, or the topic keeps no records.
    """
    settings = _settings(topic, config)
    prefix = prefix_of(options)
    if prefix is not None and prefix != settings.names.prefix:
        if settings.names.prefix:
            raise ConfigurationError(
                f"option {TOPIC_PREFIX!r} is {prefix!r}, and the settings say {settings.names.prefix!r}; give it once"
            )
        settings = replace(settings, names=KafkaNames(prefix, settings.names.mapped))
    if needs_sow and not settings.topic.sow:
        raise ConfigurationError(f"{topic} keeps no records (sow: false): there is nothing to read or to merge")
    return settings


def _settings(topic: str, config: Settings) -> TopicSettings:
    from pydantic import ValidationError  # noqa: PLC0415 - on the driver only, as all of these

    from processor.config import Config, TopicConfig, load  # noqa: PLC0415
    from processor.config.suggestions import explain  # noqa: PLC0415

    if isinstance(config, str | Path):
        config = load(Path(config), file_argument="config=FILE")
    if isinstance(config, Config):
        made = _made(
            config.root(topic), config.topic(topic), config.schema_registry, config.kafka, config.application_id
        )
        queues = tuple(name for name, _ in config.queues_over(made.name))
        return replace(made, family=topic, names=config.kafka_names, queues=queues)
    mapping = dict(config or {})
    kafka, registry, application_id, prefix = (mapping.pop(name, None) for name in _BESIDE)
    kafka = {name: str(value) for name, value in (kafka or {}).items()} | environment_section()
    try:
        settings = TopicConfig(**mapping)
    except ValidationError as error:
        raise ConfigurationError(
            f"config of {topic!r}: settings that cannot be used:\n{explain(error, TopicConfig)}"
        ) from None
    names = KafkaNames(prefix or "", {topic: settings.kafka_topics} if settings.kafka_topics else {})
    try:
        names.check([topic])
    except ValueError as error:
        raise ConfigurationError(f"config of {topic!r}: {error}") from None
    return replace(_made(topic, settings, registry or {}, kafka, application_id or "sowstream"), names=names)


def _made(
    name: str, topic: TopicConfig, registry: Mapping[str, str], kafka: Mapping[str, str], application_id: str
) -> TopicSettings:
    schema = topic.message_schema
    text = None
    # Only Avro's schemas are texts; other message types report a missing file themselves.
    if schema is not None and schema.file is not None and schema.file.suffix == ".avsc" and schema.file.exists():
        text = schema.file.read_text(encoding="utf-8")
    elif schema is not None:
        text = schema.text
    return TopicSettings(name, topic, dict(registry), dict(kafka), application_id, text, name, KafkaNames())
