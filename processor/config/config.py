"""The tree of settings, and the rules about its names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from processor.config.kafka_conflicts import check_kafka
from processor.config.kafka_names import KafkaNames
from processor.config.runtime import RuntimeConfig
from processor.config.secrets import hide_secrets
from processor.config.section import ApplicationId, Properties, TopicName
from processor.config.suggestions import unknown_name
from processor.config.topic import ConflatedConfig, ProcessorConfig, TopicConfig
from processor.errors import ConfigurationError


class Config(BaseSettings):
    """The tree of settings."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix="SOWSTREAM_",
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    application_id: ApplicationId = "sowstream"
    """First part of consumer groups and transactional ids, after `topic_prefix`."""
    topic_prefix: Annotated[str, Field(pattern=r"^([a-zA-Z0-9][a-zA-Z0-9._-]{0,98}[._-])?$")] = ""
    """First part of the names of all Kafka topics, consumer groups and transactional ids, such as `acme.desk.`; it ends
    with a dot, `-` or `_`. So installations share a cluster, and one ACL of a prefix covers each.
    """
    kafka: Properties = Field(default_factory=lambda: {"bootstrap.servers": "localhost:9092"})
    """librdkafka properties for every client: addresses, TLS, SASL."""
    schema_registry: Properties = Field(default_factory=dict)
    """Settings of the schema registry's client: `url`, credentials, TLS; none: schemas come from files."""
    guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    """The delivery guarantee. `at_least_once`: output is seen sooner; the SOW topic stays right, but deltas, acks and
    dead letters may be repeated after a crash.
    """
    state_dir: Path = Path("./state")
    """The directory of the RocksDB databases; losing it costs a restore, nothing else."""
    topics: dict[TopicName, TopicConfig] = Field(default_factory=dict)
    """The SOW topics."""
    conflated: dict[TopicName, ConflatedConfig] = Field(default_factory=dict)
    """The conflated topics."""
    processors: dict[TopicName, ProcessorConfig] = Field(default_factory=dict)
    """Processors of third parties."""
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig)
    """How workers run."""
    _undescribed: Mapping[str, str] | None = PrivateAttr(default=None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Give the environment priority over the file, which `load` passes as arguments."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _kafka_fits(self) -> Config:
        """Check that the properties and the section `runtime` do not contradict each other."""
        try:
            check_kafka(self.kafka, self.runtime)
        except ValueError as error:
            raise ValueError(f"kafka: {error}") from None
        return self

    @field_validator("kafka")
    @classmethod
    def _kafka_has_an_address(cls, value: dict[str, str]) -> dict[str, str]:
        return {"bootstrap.servers": "localhost:9092"} | value

    @model_validator(mode="after")
    def _names_fit(self) -> Config:
        """Check that every name is used once, and that every underlying exists and leads to a topic."""
        sections: tuple[Mapping[str, object], ...] = (self.topics, self.conflated, self.processors)
        for index, section in enumerate(sections):
            for other in sections[index + 1 :]:
                if twice := sorted(set(section) & set(other)):
                    raise ValueError(f"{twice[0]!r} is configured twice; a name stands for one family of topics")
        for name in (*self.conflated, *self.processors):
            self._root(name)
        return self

    @model_validator(mode="after")
    def _kafka_names_fit(self) -> Config:
        """Check that every Kafka name is legal and belongs to one topic."""
        for name, processor in self.processors.items():
            if processor.topic.kafka_topics:
                raise ValueError(f"processors.{name}.topic.kafka_topics: set processors.{name}.kafka_topics")
        try:
            self.kafka_names.check((*self.topics, *self.conflated, *self.processors))
        except ValueError as error:
            raise ValueError(f"topic_prefix, kafka_topics: {error}") from None
        return self

    @model_validator(mode="after")
    def _copies_have_records(self) -> Config:
        """Check that each underlying keeps records, and that no processor has `sow: false`: its outputs decide that."""
        for name, section in self.conflated.items():
            if not self.topic(name).sow:
                raise ValueError(
                    f"conflated.{name}: {section.underlying!r} keeps no records to copy (sow: false); its subscribers "
                    "may use the option conflation"
                )
        for name, processor in self.processors.items():
            if not processor.topic.sow:
                raise ValueError(f"processors.{name}.topic.sow: its outputs say whether it keeps records; remove it")
        return self

    @model_validator(mode="after")
    def _sources_are_on(self) -> Config:
        """Turn on the header `source`, which identifies redelivered input, where the guarantee is at least once."""
        if self.guarantee == "at_least_once":
            for name, topic in self.topics.items():
                if not topic.sow:
                    continue  # This topic runs exactly once.
                if not topic.source_header and "source_header" in topic.model_fields_set:
                    raise ValueError(f"topics.{name}.source_header: guarantee at_least_once needs it; remove it")
                self.topics[name] = topic.model_copy(update={"source_header": True})
        return self

    def _root(self, name: str) -> str:
        """The topic at the bottom of a chain of copies."""
        chain = [name]
        while (underlying := self.underlying(chain[-1])) is not None:
            if underlying in chain:
                raise ValueError(f"underlying topics go in a circle: {' → '.join([*chain, underlying])}")
            chain.append(underlying)
        root = chain[-1]
        if root in self.topics or root in self.processors:
            return root
        raise ValueError(f"{chain[-2]!r} has underlying {root!r}, which is not configured")

    @property
    def kafka_names(self) -> KafkaNames:
        """The Kafka names of all topics."""
        sections: dict[str, TopicConfig | ConflatedConfig | ProcessorConfig]
        sections = {**self.topics, **self.conflated, **self.processors}
        mapped = {name: section.kafka_topics for name, section in sections.items() if section.kafka_topics}
        return KafkaNames(self.topic_prefix, mapped)

    @property
    def group_prefix(self) -> str:
        """The first part of consumer groups and transactional ids, without the dot after it."""
        return f"{self.topic_prefix}{self.application_id}"

    def underlying(self, name: str) -> str | None:
        """The topic that another one is derived from; None if publishers write to it, or if it does not exist."""
        section = self.conflated.get(name) or self.processors.get(name)
        return None if section is None else section.underlying

    def root(self, name: str) -> str:
        """The topic that merges the records: the one of this name, or the one that it is a copy of.

        Raises:
            ConfigurationError: no such topic.
        """
        names = [*self.topics, *self.conflated, *self.processors]
        if name not in names:
            raise ConfigurationError(self.no_topic(name, names))
        return self._root(name)

    @property
    def names_topics(self) -> bool:
        """Whether any topic is configured."""
        return bool(self.topics or self.conflated or self.processors)

    @property
    def is_from_directory(self) -> bool:
        """Whether the topics were read from the topic directory, and not from a settings file."""
        return self._undescribed is not None

    def with_directory(self, undescribed: Mapping[str, str], **sections: Any) -> Config:
        """A copy that has the topics of the topic directory.

        Args:
            undescribed: the topics of the directory that cannot be used, each with the reason.
            sections: the sections that the directory describes, by name.
        """
        copy = self.model_copy(update=sections)
        copy._undescribed = undescribed  # noqa: SLF001 - of its own class
        return copy

    def no_topic(self, name: str, names: list[str]) -> str:
        """The message of an error: no topic of this name is configured."""
        if self._undescribed is None:
            return unknown_name("topic", name, names)
        if name in self._undescribed:
            return f"topic {name!r}: {self._undescribed[name]}"
        return (
            f"{unknown_name('topic', name, names)}. The settings name no topics, so these are the topics of the topic "
            "directory; `sowstream topics apply` adds others"
        )

    def topic(self, name: str) -> TopicConfig:
        """The section with the settings of a topic's records: that of its root.

        Raises:
            ConfigurationError: no such topic.
        """
        root = self.root(name)
        return self.topics[root] if root in self.topics else self.processors[root].topic

    def shown(self) -> dict[str, Any]:
        """The tree as plain values with secrets hidden, for a log."""
        shown: dict[str, Any] = hide_secrets(self.model_dump(mode="json"))
        return shown
