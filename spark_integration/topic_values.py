"""The settings of a topic as plain values, for Python processes on executors: they need no settings model."""

from __future__ import annotations

import base64
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from processor.config import SchemaConfig, TopicConfig


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


@dataclass(frozen=True, slots=True)
class StepValues:
    """The attributes of `StepConfig`."""

    use: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SequenceGroupValues:
    """The attributes of `SequenceGroupConfig`."""

    by: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicValues:
    """The attributes of `TopicConfig`, where their meaning is described."""

    preset: str | None
    message_type: str
    message_schema: SchemaValues | None
    separator: str
    parts: tuple[str, ...]
    key: tuple[str, ...]
    key_fields: tuple[str, ...]
    has_fields: bool
    key_format: Literal["text", "json", "int"]
    key_names: Mapping[str, str]
    key_in_body: Literal["required", "optional"]
    foreign_partition: Literal["move", "reject", "accept"]
    partitions: int
    moved_from: None
    """Always none: on Spark, publishers of a topic that has moved find their acks with the new topic's."""
    default_command: Literal["publish", "delta_publish"]
    null_policy: Literal["ignore", "set", "remove"]
    merge_depth: int | None
    merge_rules: Mapping[str, str]
    sequence_groups: tuple[SequenceGroupValues, ...]
    preprocess: tuple[StepValues, ...]
    enrich: tuple[StepValues, ...]
    expiration: float | None
    sow: bool
    sequence_jump_max: int
    source_header: bool
    max_depth: int
    max_record_bytes: int
    dlq_max_ratio: float
    dlq_window_records: int
    allow_lossy_compaction: bool
    allow_one_replica: bool
    allows: frozenset[Literal["lossy_compaction", "one_replica"]]
    config: Mapping[str, str]
    kafka_topics: Mapping[Any, str]

    @classmethod
    def of(cls, topic: TopicConfig | TopicValues) -> TopicValues:
        """Copy the attributes of a topic's settings."""
        if isinstance(topic, TopicValues):
            return topic
        values = {field.name: getattr(topic, field.name) for field in fields(cls)}
        values["moved_from"] = None
        values["message_schema"] = _schema(topic.message_schema)
        values["preprocess"] = tuple(StepValues(step.use, step.settings) for step in topic.preprocess)
        values["enrich"] = tuple(StepValues(step.use, step.settings) for step in topic.enrich)
        values["sequence_groups"] = tuple(
            SequenceGroupValues(group.by, group.fields) for group in topic.sequence_groups
        )
        return cls(**values)


def _schema(schema: SchemaConfig | None) -> SchemaValues | None:
    return (
        None
        if schema is None
        else SchemaValues(**{field.name: getattr(schema, field.name) for field in fields(SchemaValues)})
    )
