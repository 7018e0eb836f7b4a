"""The problems of the topic directory, for `topics check`, `doctor` and the start of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import Stop
from processor.shared_topics.directory.compare import contradictions
from processor.shared_topics.directory.directory import TopicDirectory
from processor.topics import Problem, directory_problems
from processor.wire.topic_description import describe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from processor.config import Config
    from processor.kafka.admin.admin import Admin, Cluster
    from processor.shared_topics.directory.directory import DirectoryEntries


def check_at_start(config: Config, admin: Admin, cluster: Cluster, names: Iterable[str]) -> list[Problem]:
    """The contradictions between the directory and the settings of topics that a worker is about to write.

    A cluster without a directory has none. A directory that cannot be read is a warning: it must not keep a worker from
    starting.

    Args:
        config: the settings.
        admin: administration of the cluster.
        cluster: its brokers and topics.
        names: the topics.
    """
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    if not directory.exists(cluster):
        return []
    try:
        entries = directory.read()
    except Stop as error:
        return [_unread(directory, error)]
    topics = list(names)
    return [] if entries is None else contradictions(describe(config, topics), entries, topics)


def report(config: Config, admin: Admin, cluster: Cluster) -> list[Problem]:
    """All problems of the directory.

    Raises:
        ConfigurationError: a schema file cannot be read.
    """
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    configured = describe(config)
    try:
        actual = admin.describe_topics([directory.topic]) if directory.exists(cluster) else {}
        problems = directory_problems(directory.spec, actual.get(directory.topic), brokers=len(cluster.brokers))
        entries = directory.read()
    except Stop as error:
        return [_unread(directory, error)]
    if entries is None:
        return problems
    described = entries.descriptions.keys() | entries.unreadable.keys()
    problems += [
        Problem("warn", name, "is not described in the topic directory", "sowstream topics apply")
        for name in configured
        if name not in described
    ]
    problems += contradictions(configured, entries, configured)
    problems += [
        Problem(
            "warn",
            name,
            f"is in the topic directory for application_id {config.application_id}, and the settings do not have it",
            "sowstream topics apply --prune if no other settings file has it",
        )
        for name in stale(config, entries, configured)
    ]
    return problems


def stale(config: Config, entries: DirectoryEntries, configured: Iterable[str]) -> list[str]:
    """Topics that the directory describes for this application and that are missing in the settings."""
    names = set(configured)
    return sorted(
        name
        for name, description in entries.descriptions.items()
        if description.application_id == config.application_id and name not in names
    )


def _unread(directory: TopicDirectory, error: Stop) -> Problem:
    return Problem(
        "warn",
        directory.topic,
        f"cannot be read, so the settings are not compared with it: {error}",
        "sowstream topics apply --acls prints who needs which rights",
    )
