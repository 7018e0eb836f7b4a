"""The description of one topic, and the only place that knows how it is written: JSON with a format number."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError

from processor.config import (
    EXPLICIT_KEY,
    ApplicationId,
    Config,
    ConflatedConfig,
    SchemaConfig,
    TopicConfig,
    ViewConfig,
)
from processor.config.secrets import without_credentials
from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT: Final = 2
"""The newest format of descriptions that this version reads.

A reader ignores fields that it does not know. So the number grows only when a reader that ignores a new field would
read records wrongly.
"""

Kind: TypeAlias = Literal["topic", "conflated", "view", "processor"]
"""The section of the settings that configures a topic: published to, a conflated copy, a view, or written by a
processor."""

KINDS: Final = frozenset(get_args(Kind))

_Key: TypeAlias = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: EXPLICIT_KEY if value == "explicit" else value),
    PlainSerializer(lambda value: "explicit" if value == EXPLICIT_KEY else value),
]


_FRAMED: Final = frozenset(("avro", "json-schema"))
"""The message types whose messages name their schema wherever the settings have a registry; without `schema`, theirs is
a subject of it."""


class Unreadable(Exception):
    """A description that this version of Sowstream cannot use; the message has the reason and the advice."""


class NewerFormat(Unreadable):
    """A description that a newer version of Sowstream has written."""


class SchemaDescription(BaseModel):
    """The schema of a topic's records."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    text: str | None = None
    """The schema itself, an Avro schema as compact JSON."""
    base64: str | None = None
    """The schema itself in Base64: a protobuf descriptor set."""
    subject: str | None = None
    """A subject of the schema registry."""
    version: int | None = None
    """The version of the subject; None: the latest."""
    message: str | None = None
    """The full name of the message in a descriptor set."""


class Description(BaseModel):
    """The settings of one topic that readers and publishers need. It has no secrets: everybody may read it."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    format: int = 1
    """The format of the description; see `FORMAT`."""
    kind: str = "topic"
    """A `Kind`, or a word that a later version has added."""
    application_id: ApplicationId = "sowstream"
    """The application whose settings the topic was described from."""
    derived_from: str | None = None
    """The topic that a worker makes this one of; None where publishers write to it."""
    partitions: int = Field(ge=1)
    """The number of partitions of every Kafka topic of its family."""
    key: _Key
    """The JSON Pointers of the key fields; `explicit` where the publisher gives the key."""
    message_type: str
    """The name of the codec."""
    record_schema: SchemaDescription | None = Field(default=None, alias="schema")
    """The schema of the records, for message types that have one."""
    registry: str | None = None
    """The address of the schema registry, without credentials."""
    separator: str = "\x01"
    """The character between the fields of `fix` and `nvfix`."""
    parts: tuple[str, ...] = ()
    """The message types of a composite's parts, in order."""
    max_depth: int = 128
    """The deepest nesting accepted."""
    default_command: Literal["publish", "delta_publish"] = "delta_publish"
    """The command of a record without header `command`."""
    key_format: Literal["text", "json", "int"] = "text"
    """Form in which publishers write the Kafka key of the input topic."""
    foreign_partition: Literal["move", "reject", "accept"] = "move"
    """`accept`: a key may be in any partition, so a lookup asks all of them."""
    sow: bool = True
    """True if the topic keeps a record of each key; without it there is nothing to query."""
    kafka_topics: dict[str, str] = Field(default_factory=dict)
    """Kafka topics of the family that have names of their own, by role. The others begin as the directory's name does.
    """

    @property
    def encoding(self) -> object:
        """The form of messages besides their type: equal if one schema reads the messages of the other.

        With a registry, messages begin with a frame that names their schema. Avro without one has no field names, so
        that its messages can be read with their own schema alone.
        """
        schema, kinds = self.record_schema, {self.message_type, *self.parts}
        if self.registry is not None and not _FRAMED.isdisjoint(kinds):
            return "framed"
        if schema is None:
            return None
        if "protobuf" in kinds and not (schema.text or schema.base64):
            return "framed"
        if "avro" in kinds:
            return _layout(schema.text)
        return None

    def to_json(self) -> bytes:
        """The description as the directory has it."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Description:
        """Read a description; fields that this version does not know are ignored.

        Raises:
            Unreadable: it is of a newer format, or is no description.
        """
        try:
            tree = json.loads(data)
        except ValueError as error:
            raise Unreadable(f"its description in the topic directory is not JSON: {error}; {_WRITE_AGAIN}") from None
        written = tree.get("format") if isinstance(tree, dict) else None
        if not isinstance(written, int):
            raise Unreadable(f"its description in the topic directory has no format number; {_WRITE_AGAIN}")
        if written > FORMAT:
            raise NewerFormat(
                f"its description in the topic directory has format {written}, and this version of Sowstream reads "
                f"formats up to {FORMAT}; upgrade Sowstream, or use a settings file"
            )
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise Unreadable(f"its description in the topic directory cannot be used: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}; {_WRITE_AGAIN}"


_WRITE_AGAIN: Final = "`sowstream topics apply` writes it again"


def describe(config: Config, names: Iterable[str] | None = None) -> dict[str, Description]:
    """The descriptions of configured topics.

    Args:
        config: the settings.
        names: the topics wanted; None: all.

    Raises:
        ConfigurationError: a schema file cannot be read.
    """
    chosen = config.names if names is None else names
    return {name: _describe(config, name) for name in chosen}


def _describe(config: Config, name: str) -> Description:
    topic, root = config.topic(name), config.root(name)
    url = config.schema_registry.get("url")
    kafka_topics = {str(role): topic for role, topic in config.kafka_names.mapped.get(name, {}).items()}
    return Description(
        format=2 if kafka_topics else 1,
        kafka_topics=kafka_topics,
        kind=_kind(config, name),
        application_id=config.application_id,
        derived_from=config.underlying(name),
        schema=_schema(topic, config.kafka_names.topic(root, "publish"), root, has_registry=url is not None),
        registry=None if url is None else without_credentials(url),
        **{setting: getattr(topic, setting) for setting in SETTINGS},
    )


SETTINGS: Final = (
    "partitions", "key", "message_type", "separator", "parts", "max_depth", "default_command", "key_format",
    "foreign_partition", "sow",
)  # fmt: skip
"""Settings of a topic that its description repeats under the same name."""


def _kind(config: Config, name: str) -> Kind:
    if name in config.topics:
        return "topic"
    if name in config.views:
        return "view"
    return "conflated" if name in config.conflated else "processor"


def registry_subject(topic: TopicConfig, source: str, *, has_registry: bool) -> str | None:
    """The subject of the registry that has the schema of a topic's records; None if none has.

    Args:
        topic: the settings of the topic.
        source: the Kafka topic of its publishers.
        has_registry: true if the settings name a registry.
    """
    schema = topic.message_schema or SchemaConfig()
    has_content = any(one is not None for one in (schema.file, schema.text, schema.base64))
    if schema.subject is None and has_registry and not has_content and topic.message_type in _FRAMED:
        return f"{source}-value"
    return schema.subject


def _schema(topic: TopicConfig, source: str, root: str, *, has_registry: bool) -> SchemaDescription | None:
    """The schema with the content of its file, as a reader has no such file."""
    schema = topic.message_schema or SchemaConfig()
    try:
        content = schema.content()
    except OSError as error:
        raise ConfigurationError(
            f"topic {root!r}: the schema {schema.place} cannot be read: {error.strerror}; the topic directory needs it"
        ) from None
    described = SchemaDescription(
        text=None if content is None else _text(topic, content),
        base64=None if content is None or _text(topic, content) is not None else base64.b64encode(content).decode(),
        subject=registry_subject(topic, source, has_registry=has_registry),
        version=schema.version,
        message=schema.message,
    )
    return None if described == SchemaDescription() else described


def _text(topic: TopicConfig, content: bytes) -> str | None:
    """A schema that is a text: JSON without white space, so that two files with one meaning are the same."""
    if topic.message_type == "protobuf":
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    except ValueError:
        return text


_WITHOUT_BYTES: Final = frozenset(("doc", "default", "aliases", "order"))
"""Attributes of an Avro schema that do not change how a value is written."""


def _layout(text: str | None) -> object:
    """An Avro schema without the attributes that leave bytes as they are."""

    def reduced(node: object) -> object:
        if isinstance(node, list):
            return [reduced(each) for each in node]
        if isinstance(node, dict):
            return {name: reduced(each) for name, each in node.items() if name not in _WITHOUT_BYTES}
        return node

    try:
        return reduced(json.loads(text or "null"))
    except ValueError:
        return text


def topic_section(description: Description) -> TopicConfig:
    """The section `topics.<name>` that a description stands for.

    Raises:
        Unreadable: the settings do not allow a value.
    """
    schema = description.record_schema
    values: dict[str, Any] = {setting: getattr(description, setting) for setting in SETTINGS}
    values["kafka_topics"] = description.kafka_topics
    try:
        values["schema"] = None if schema is None else SchemaConfig(**schema.model_dump())
        return TopicConfig(**values)
    except ValidationError as error:
        raise Unreadable(f"its description in the topic directory cannot be used: {_first(error)}") from None


def conflated_section(description: Description) -> ConflatedConfig:
    """The section of a topic that a worker makes of another one, as a reader needs it.

    Raises:
        Unreadable: the settings do not allow a value.
    """
    try:
        return ConflatedConfig.model_validate(
            {"underlying": description.derived_from, "kafka_topics": description.kafka_topics}
        )
    except ValidationError as error:
        raise Unreadable(f"its description in the topic directory cannot be used: {_first(error)}") from None


def view_section(description: Description) -> ViewConfig:
    """The section of a view, as a reader needs it: without its definition, which only its workers need.

    Raises:
        Unreadable: the settings do not allow a value.
    """
    section = {
        "underlying": description.derived_from,
        "fields": {"/unknown": "NULL"},
        "kafka_topics": description.kafka_topics,
    }
    try:
        return ViewConfig.model_validate(section)
    except ValidationError as error:
        raise Unreadable(f"its description in the topic directory cannot be used: {_first(error)}") from None
