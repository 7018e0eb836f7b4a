"""The sections that name topics, how one topic is derived from another, and the rules about both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic_settings import BaseSettings

from processor.config.derived_topics import QueueConfig, ViewConfig, stage_topic
from processor.config.kafka_names import KafkaNames
from processor.config.section import ApplicationId, TopicName
from processor.config.topic import ConflatedConfig, ProcessorConfig, TopicConfig
from processor.errors import ConfigurationError, unknown_name

_SAME_AFTER_A_MOVE: Final = (
    "sow", "message_type", "message_schema", "separator", "parts", "key", "key_format", "key_names",
    "default_command",
)  # fmt: skip
"""Settings that say how the bytes of records, commands and keys are read: those of a moved topic are not rewritten."""

IN_PYTHON: Final = "Client(NAME, FILE)"
"""How a program names the settings file, for errors; a command has an option or an argument."""


class Families(BaseSettings):
    """The families of topics: those that publishers write to, and those that are made of them."""

    application_id: ApplicationId = "sowstream"
    """First part of consumer groups and transactional ids, after `topic_prefix`."""
    topic_prefix: Annotated[str, Field(pattern=r"^([a-zA-Z0-9][a-zA-Z0-9._-]{0,98}[._-])?$")] = ""
    """First part of the names of all Kafka topics, consumer groups and transactional ids, such as `acme.desk.`; it ends
    with a dot, `-` or `_`. So installations share a cluster, and one ACL of a prefix covers each.
    """
    topics: dict[TopicName, TopicConfig] = Field(default_factory=dict)
    """The SOW topics."""
    conflated: dict[TopicName, ConflatedConfig] = Field(default_factory=dict)
    """The conflated topics."""
    views: dict[TopicName, ViewConfig] = Field(default_factory=dict)
    """The views: topics computed from other topics."""
    processors: dict[TopicName, ProcessorConfig] = Field(default_factory=dict)
    """Processors of third parties."""
    queues: dict[TopicName, QueueConfig] = Field(default_factory=dict)
    """The queues over SOW topics."""
    _undescribed: Mapping[str, str] | None = PrivateAttr(default=None)
    _absent_file: Path | None = PrivateAttr(default=None)
    _file_argument: str = PrivateAttr(default=IN_PYTHON)
    _described_rows: Mapping[str, TopicConfig] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        """Check that every name is used once, and that every underlying exists and leads to a topic."""
        sections: tuple[Mapping[str, object], ...] = (
            self.topics,
            self.conflated,
            self.views,
            self.processors,
            self.queues,
        )
        for index, section in enumerate(sections):
            for other in sections[index + 1 :]:
                if twice := sorted(set(section) & set(other)):
                    raise ValueError(f"{twice[0]!r} is configured twice; a name stands for one family of topics")
        for name in (*self.conflated, *self.views, *self.processors):
            self._root(name)
        for name in self.views:
            self._check_inputs(name, ())
        return self

    @model_validator(mode="after")
    def _moves_fit(self) -> Self:
        """Check that a topic which takes the place of another one keeps the same records."""
        successors: dict[str, str] = {}
        for name, topic in self.topics.items():
            former = topic.moved_from
            if former is None:
                continue
            try:
                self._check_move(name, former)
            except ValueError as error:
                raise ValueError(f"topics.{name}.moved_from: {error}") from None
            if (other := successors.setdefault(former, name)) != name:
                raise ValueError(f"topics.{name}.moved_from: {other!r} takes the place of {former!r} already")
        return self

    def _check_move(self, name: str, former: str) -> None:
        if former not in self.topics:
            raise ValueError(unknown_name("topic", former, list(self.topics)))
        path = [name]
        while (before := self.topics[path[-1]].moved_from) is not None and before in self.topics:
            if before in path:
                raise ValueError(f"topics go in a circle: {' → '.join([*path, before])}")
            path.append(before)
        old, new = self.topics[former], self.topics[name]
        for setting in _SAME_AFTER_A_MOVE:
            if getattr(old, setting) != getattr(new, setting):
                raise ValueError(f"{setting} differs from that of {former!r}, and the records are the same ones")
        if not new.sow:
            raise ValueError("sow: false keeps no records that could move; point its publishers to a new topic")

    def successor(self, topic: str) -> str | None:
        """The topic that takes the place of another one; None if none does."""
        return next((name for name, other in self.topics.items() if other.moved_from == topic), None)

    @model_validator(mode="after")
    def _kafka_names_fit(self) -> Self:
        """Check that every Kafka name is legal and belongs to one topic."""
        for name, processor in self.processors.items():
            if processor.topic.kafka_topics:
                raise ValueError(f"processors.{name}.topic.kafka_topics: set processors.{name}.kafka_topics")
        try:
            families = (*self.names, *self.stages, *self.queues)
            self.kafka_names.check(families, dict.fromkeys(self.queues, ("queue",)))
        except ValueError as error:
            raise ValueError(f"topic_prefix, kafka_topics: {error}") from None
        return self

    @model_validator(mode="after")
    def _queues_have_records(self) -> Self:
        """Check that each queue is over a topic that merges records."""
        for name, queue in self.queues.items():
            topic = self.topics.get(queue.underlying)
            if topic is None and queue.underlying not in self.names:
                known = unknown_name("topic", queue.underlying, list(self.topics))
                raise ValueError(f"queues.{name}.underlying: {known}")
            if topic is None:
                raise ValueError(
                    f"queues.{name}: {queue.underlying!r} is none of `topics`; a queue has the merged records of a "
                    "topic that publishers write to"
                )
            if not topic.sow:
                raise ValueError(f"queues.{name}: {queue.underlying!r} merges no records (sow: false)")
        return self

    @model_validator(mode="after")
    def _copies_have_records(self) -> Self:
        """Check that each underlying keeps records, and that no processor has `sow: false`: its outputs decide that."""
        for name, section in self.conflated.items():
            if not self.topic(name).sow:
                raise ValueError(
                    f"conflated.{name}: {section.underlying!r} keeps no records to copy (sow: false); its subscribers "
                    "may use the option conflation"
                )
        for name, view in self.views.items():
            for other in view.inputs:
                if not self.topic(other).sow:
                    raise ValueError(f"views.{name}: {other!r} keeps no records to read (sow: false)")
        for name, processor in self.processors.items():
            for output, reader in processor.into.items():
                if reader not in self.processors:
                    known = unknown_name("processor", reader, list(self.processors))
                    raise ValueError(f"processors.{name}.into.{output}: {known}")
            if not processor.topic.sow:
                raise ValueError(f"processors.{name}.topic.sow: its outputs say whether it keeps records; remove it")
        return self

    @model_validator(mode="after")
    def _views_are_resolved(self) -> Self:
        """Decide by which way the records of each join meet, and note the members that rows of other views have."""
        for name, view in self.views.items():
            origins = {topic: self._copied(topic) for topic in view.inputs}
            members = {topic: self.views[origin].members for topic, origin in origins.items() if origin in self.views}
            keys = {topic: (self.topic(topic).key_fields, self.has_group_keys(topic)) for topic in view.inputs}
            try:
                self.views[name] = view.with_members(members).with_join_method(keys[view.underlying], keys)
            except ValueError as error:
                raise ValueError(f"views.{name}: {error}") from None
        return self

    def _copied(self, name: str) -> str:
        """The topic of which a conflated topic, or one over another, has the records; another topic itself."""
        while name in self.conflated:
            name = self.conflated[name].underlying
        return name

    def _root(self, name: str) -> str:
        """The topic at the bottom of a chain of copies."""
        if name in self.views:
            return name
        chain = [name]
        while not self._has_own_records(chain[-1]) and (underlying := self.underlying(chain[-1])) is not None:
            if underlying in chain:
                raise ValueError(f"underlying topics go in a circle: {' → '.join([*chain, underlying])}")
            chain.append(underlying)
            if underlying in self.views:
                return underlying
        root = chain[-1]
        if root in self.topics or root in self.processors:
            return root
        section = "conflated" if chain[-2] in self.conflated else "processors"
        raise ValueError(f"{section}.{chain[-2]}.underlying: {unknown_name('topic', root, list(self.names))}")

    def _has_own_records(self, name: str) -> bool:
        """Return whether a processor has records of its own format and key, although it reads another topic's."""
        return name in self.processors and "topic" in self.processors[name].model_fields_set

    def _check_inputs(self, name: str, path: tuple[str, ...]) -> None:
        """Check that the inputs of a view, and those of the views that it reads, exist and make no circle."""
        if name in path:
            raise ValueError(f"views go in a circle: {' → '.join([*path[path.index(name) :], name])}")
        inputs = self.views[name].inputs if name in self.views else (self.underlying(name),)
        for other in inputs:
            if other is None:
                continue
            if other not in self.names:
                raise ValueError(f"views.{name}: {unknown_name('topic', other, list(self.names))}")
            self._check_inputs(other, (*path, name))

    @property
    def kafka_names(self) -> KafkaNames:
        """The Kafka names of all topics."""
        sections: dict[str, TopicConfig | ConflatedConfig | ViewConfig | ProcessorConfig | QueueConfig]
        sections = {**self.topics, **self.conflated, **self.views, **self.processors, **self.queues}
        mapped: dict[str, Mapping[Any, str]]
        mapped = {name: section.kafka_topics for name, section in sections.items() if section.kafka_topics}
        return KafkaNames(self.topic_prefix, mapped)

    def queues_over(self, topic: str) -> tuple[tuple[str, QueueConfig], ...]:
        """The queues over a SOW topic, by name."""
        return tuple((name, queue) for name, queue in self.queues.items() if queue.underlying == topic)

    def share_group(self, queue: str) -> str:
        """The share group of a queue's consumers."""
        return f"{self.group_prefix}.{queue}"

    def letters_group(self, name: str) -> str:
        """The consumer group whose position divides sent from waiting letters; also a replay's transactional id."""
        return f"{self.group_prefix}.{name}.dlq"

    def queue(self, name: str) -> QueueConfig:
        """The section of a queue.

        Raises:
            ConfigurationError: no such queue.
        """
        if name not in self.queues:
            raise ConfigurationError(unknown_name("queue", name, list(self.queues)))
        return self.queues[name]

    @property
    def group_prefix(self) -> str:
        """The first part of consumer groups and transactional ids, without the dot after it."""
        return f"{self.topic_prefix}{self.application_id}"

    def underlying(self, name: str) -> str | None:
        """The topic that another one is derived from; None if publishers write to it, or if it does not exist."""
        section = self.conflated.get(name) or self.views.get(name) or self.processors.get(name)
        return self.stages.get(name) if section is None else section.underlying

    def has_group_keys(self, name: str) -> bool:
        """Return whether the keys of a topic's records are those of groups, in which 1 and 1.0 are one, and not "1"."""
        while (view := self.views.get(name)) is None or view.group_by is None:
            if self._has_own_records(name) or (underlying := self.underlying(name)) is None:
                return False
            name = underlying
        return True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all configured families, in the order of the sections."""
        return (*self.topics, *self.conflated, *self.views, *self.processors)

    @property
    def stages(self) -> Mapping[str, str]:
        """The internal families of views, each with the family whose record settings it has."""
        return {stage: records for name, view in self.views.items() for stage, records in view.stages(name).items()}

    def root(self, name: str) -> str:
        """The topic that merges the records: the one of this name, or the one that it is a copy of.

        Raises:
            ConfigurationError: no such topic.
        """
        names = [*self.names]
        if name not in names and name not in self.stages:
            raise ConfigurationError(self.no_topic(name, names))
        return self._root(name)

    @property
    def names_topics(self) -> bool:
        """True if any topic is configured."""
        return bool(self.names)

    @property
    def is_from_directory(self) -> bool:
        """True if the topics were read from the topic directory, and not from a settings file."""
        return self._undescribed is not None

    def with_directory(
        self, undescribed: Mapping[str, str], rows: Mapping[str, TopicConfig] | None = None, **sections: Any
    ) -> Self:
        """A copy that has the topics of the topic directory.

        Args:
            undescribed: the topics of the directory that cannot be used, each with the reason.
            rows: the settings of the rows of each view, which a description has without the view's definition.
            sections: the sections that the directory describes, by name.
        """
        copy = self.model_copy(update=sections)
        copy._undescribed, copy._described_rows = undescribed, rows or {}  # noqa: SLF001 - of its own class
        return copy

    def as_loaded(self, absent_file: Path | None, file_argument: str) -> Self:
        """A copy whose errors name the settings file that was looked for in vain, and how another one is named."""
        copy = self.model_copy()
        copy._absent_file, copy._file_argument = absent_file, file_argument  # noqa: SLF001 - of its own class
        return copy

    @property
    def file_argument(self) -> str:
        """How the caller names a settings file, such as `-c FILE`."""
        return self._file_argument

    @property
    def no_topics(self) -> str:
        """The reason why there are no topics, and the remedy; the start of a message."""
        if self._absent_file is not None:
            return (
                f"there is no settings file {self._absent_file}, and so there are no topics; write one, "
                f"such as `topics: {{orders: {{key: [/id]}}}}`, or name a file: {self._file_argument}"
            )
        return f"the settings name no topics; add a section `topics`, or name another file: {self._file_argument}"

    def no_topic(self, name: str, names: list[str]) -> str:
        """The message of an error: no topic of this name is configured."""
        if name in self.queues:
            return f"{name!r} is a queue; consume it with `client.queue({name!r})` or `sowstream queue take {name}`"
        if not names and self._undescribed is None:
            return f"there is no topic {name!r}: {self.no_topics}"
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
        if root in self._described_rows:
            topic = self._described_rows[root]
        elif root in self.views:
            topic = self.views[root].topic(self.topic(self.views[root].underlying))
        else:
            topic = self.topics[root] if root in self.topics else self.processors[root].topic
        return stage_topic(topic) if name in self.stages else topic
