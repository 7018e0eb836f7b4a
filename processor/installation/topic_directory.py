"""The topic directory: a compacted Kafka topic that describes each topic, so that readers need no settings file.

`sowstream topics apply` writes the descriptions. Clients that have only an address derive their settings from them, and
workers compare them with their own settings when they start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.installation.shared_topic import SharedTopic
from processor.kafka.admin.admin import Admin
from processor.topics.family import directory_spec
from processor.wire.topic_description import (
    KINDS,
    Description,
    NewerFormat,
    Unreadable,
    conflated_section,
    topic_section,
    view_section,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.config import Config, ConflatedConfig, TopicConfig, ViewConfig

log = logging.getLogger("sowstream.directory")


class DirectoryEntries(NamedTuple):
    """The content of the directory."""

    descriptions: Mapping[str, Description]
    """The description of each topic, by name."""
    unreadable: Mapping[str, str]
    """Topics whose description this version cannot use, with the reason."""
    newer: frozenset[str] = frozenset()
    """Those of them that a newer version of Sowstream has written."""


class TopicDirectory(SharedTopic):
    """The topic directory of one cluster. One thread only."""

    def __init__(self, kafka: Mapping[str, str], admin: Admin, *, prefix: str = "") -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            admin: administration of the same cluster.
            prefix: the prefix of all topic names of the installation.
        """
        super().__init__(kafka, admin, directory_spec(prefix))

    def read(self, timeout_s: float | None = None) -> DirectoryEntries | None:
        """Read all present descriptions; None if there is no directory. Errors as `read_records`."""
        records = self.read_records(timeout_s)
        return None if records is None else _entries(records.latest)

    def write(self, descriptions: Mapping[str, Description | None]) -> None:
        """Write descriptions; None removes that of a topic. Errors as `write_records`."""
        self.write_records(
            (name.encode(), None if description is None else description.to_json())
            for name, description in descriptions.items()
        )


def _entries(latest: Mapping[bytes, bytes | None]) -> DirectoryEntries:
    descriptions, unreadable, newer = {}, {}, set()
    for key, value in latest.items():
        if value is None:
            continue
        name = key.decode(errors="replace")
        try:
            descriptions[name] = Description.from_json(value)
        except Unreadable as error:
            unreadable[name] = str(error)
            if isinstance(error, NewerFormat):
                newer.add(name)
    return DirectoryEntries(descriptions, unreadable, frozenset(newer))


def with_described_topics(config: Config) -> Config:
    """The settings, with the topics of the directory if they name none.

    Settings that name a topic are used as they are. So are settings without an address of Kafka: no request goes to a
    default address.

    Raises:
        ConfigurationError: there is no directory, or we are not allowed to read it.
        BrokerUnavailable: Kafka does not answer.
    """
    if config.names_topics or config.is_from_directory or "kafka" not in config.model_fields_set:
        return config
    admin = Admin(config.kafka, config.connect_timeout_s)
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    entries = directory.read()
    if entries is None:
        raise ConfigurationError(
            f"the settings name no topics, and Kafka at {config.kafka['bootstrap.servers']} has no topic directory "
            f"({directory.topic}); name a settings file ({config.file_argument}), or run `sowstream topics apply` with "
            "one" + _other_directories(admin)
        )
    return described_topics(config, entries)


def described_topics(config: Config, entries: DirectoryEntries) -> Config:
    """The settings with the topics of a directory in place of their own.

    The application id and the address of the schema registry are taken from the directory too, if the settings lack
    them and all topics agree.

    Args:
        config: the settings: the address of Kafka, credentials.
        entries: the directory.
    """
    topics: dict[str, TopicConfig] = {}
    conflated: dict[str, ConflatedConfig] = {}
    views: dict[str, ViewConfig] = {}
    rows: dict[str, TopicConfig] = {}
    unusable = dict(entries.unreadable)
    for name, description in entries.descriptions.items():
        try:
            _check(entries, name)
            if description.derived_from is None:
                topics[name] = topic_section(description)
            elif description.kind == "view":
                views[name], rows[name] = view_section(description), topic_section(description)
            else:
                conflated[name] = conflated_section(description)
        except Unreadable as error:
            unusable[name] = str(error)
    sections: dict[str, object] = {"topics": topics, "conflated": conflated, "views": views}
    applications = {description.application_id for description in entries.descriptions.values()}
    if "application_id" not in config.model_fields_set and len(applications) == 1:
        sections["application_id"] = applications.pop()
    registries = {description.registry for description in entries.descriptions.values()} - {None}
    if "url" not in config.schema_registry:
        if len(registries) == 1:
            sections["schema_registry"] = {**config.schema_registry, "url": registries.pop()}
        elif registries:
            log.warning(
                "the topics of the directory name %d schema registries, so none is used; set schema_registry: {url: …}",
                len(registries),
            )
    return config.with_directory(unusable, rows, **sections)


def _other_directories(admin: Admin) -> str:
    """The prefixes that have directories, as the end of a message."""
    prefixes = sorted(
        name.removesuffix(KafkaNames().directory)
        for name in admin.cluster().topics
        if name.endswith(KafkaNames().directory)
    )
    if not prefixes:
        return ""
    return f". There is one with topic_prefix {' and one with '.join(map(repr, prefixes[:3]))}: set that"


def _check(entries: DirectoryEntries, name: str) -> None:
    """Check that the description of a topic can be used.

    Raises:
        Unreadable: this version does not know its kind, or its underlying topic is missing.
    """
    description = entries.descriptions[name]
    if description.kind not in KINDS:
        raise Unreadable(
            f"the topic directory describes it as a {description.kind!r}, which this version of Sowstream does not "
            "know; upgrade Sowstream"
        )
    chain = [name]
    while (underlying := entries.descriptions[chain[-1]].derived_from) is not None:
        if underlying not in entries.descriptions:
            raise Unreadable(
                f"it is derived from {underlying!r}, which the topic directory does not describe; "
                "`sowstream topics apply` with the settings of both writes the descriptions again"
            )
        if underlying in chain:
            raise Unreadable(
                f"the topic directory says that it is derived from itself: {' → '.join([*chain, underlying])}"
            )
        chain.append(underlying)
