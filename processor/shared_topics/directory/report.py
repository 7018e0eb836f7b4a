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
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.first_contact import Cluster
    from processor.shared_topics.directory.directory import DirectoryEntries


def check_at_start(config: Config, admin: Admin, names: Iterable[str]) -> list[Problem]:
    """The contradictions between the directory and the settings of topics that a worker is about to write.

    A cluster without a directory has none. A directory that cannot be read is a warning: it must not keep a worker from
    starting.

    Args:
        config: the settings.
        admin: administration of the cluster.
        names: the topics.
    """
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
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
        # By name: the cluster's list of all topics lacks those that this user has no right to see.
        actual = admin.describe_topics([directory.topic], shows_hidden=True).get(directory.topic)
        problems = directory_problems(directory.spec, actual, brokers=len(cluster.brokers))
        entries = None if actual is not None and actual.lacks == "Describe" else directory.read()
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
