"""Checks and sets the share groups of the queues of the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.kafka.admin.share_groups import ShareGroups
from processor.topics.share_group import group_problems, group_settings

if TYPE_CHECKING:
    from processor.config import Config
    from processor.topics import Problem


def share_group_problems(config: Config) -> list[Problem]:
    """The problems of the share groups of all queues.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    if not config.queues:
        return []
    groups = ShareGroups(config.kafka)
    named = {config.share_group(name): queue for name, queue in config.queues.items()}
    return [
        problem for group, queue in named.items() for problem in group_problems(group, queue, groups.settings(group))
    ]


def set_share_groups(config: Config) -> dict[str, list[str]]:
    """Set what differs in the share groups of all queues; return the names of these settings, by group.

    Raises:
        ConfigurationError: Kafka does not allow a value, such as a lease beyond the brokers' maximum.
        Stop: Kafka does not answer, or refuses.
    """
    if not config.queues:
        return {}
    groups = ShareGroups(config.kafka)
    changed = {
        config.share_group(name): groups.set(config.share_group(name), group_settings(queue))
        for name, queue in config.queues.items()
    }
    return {group: names for group, names in changed.items() if names}
