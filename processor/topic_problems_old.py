"""Compares topics as they are with topics as they should be: what breaks a promise, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from processor.topics import DAY_MS, TopicSpec

COMPACTION_LAG_MS: Final = 7 * DAY_MS
"""Longest outage of a worker that a compacted input topic must outlast."""


class FoundTopic(NamedTuple):
    """One Kafka topic as it is."""

    partitions: int
    """Number of partitions."""
    config: Mapping[str, str]
    """The settings in force, defaults included."""


class Problem(NamedTuple):
    """One thing about a topic that breaks a promise."""

    topic: str
    """The Kafka topic."""
    what: str
    """What is wrong with it."""
    to_do: str
    """What to do about it."""


def problems(specs: Iterable[TopicSpec], found: Mapping[str, FoundTopic]) -> list[Problem]:
    """Everything that is wrong, in the order of the specs.

    Args:
        specs: the topics as they should be.
        found: the topics as they are; one that is not in it does not exist.
    """
    wrong: list[Problem] = []
    for spec in specs:
        topic = found.get(spec.name)
        if topic is None:
            wrong.append(Problem(spec.name, "does not exist", "sowstream topics apply"))
            continue
        wrong += _partitions(spec, topic)
        wrong += _cleanup(spec, topic)
        wrong += _size(spec, topic)
    return wrong


def _partitions(spec: TopicSpec, topic: FoundTopic) -> list[Problem]:
    """Output goes to the input's partition number, so a family has one count."""
    if topic.partitions == spec.partitions:
        return []
    family = spec.name.rpartition(".")[0]
    return [
        Problem(
            spec.name,
            f"has {_count(topic.partitions)} where the family {family!r} is configured with {spec.partitions}",
            f"set `partitions: {topic.partitions}` if the whole family has as many; otherwise keys have moved: "
            "make a family of a new name and publish into it again",
        )
    ]


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _cleanup(spec: TopicSpec, topic: FoundTopic) -> list[Problem]:
    """What Kafka may throw away: of SOW what is superseded, of the others what is old, of none what is needed."""
    policy = {part.strip() for part in topic.config.get("cleanup.policy", "delete").split(",")}
    if spec.role == "sow":
        if policy == {"compact"}:
            return []
        return [
            Problem(
                spec.name,
                f"cleanup.policy is {_said(policy)}: records that are not updated for long are lost",
                _alter(spec.name, "cleanup.policy=compact"),
            )
        ]
    if spec.role == "mark":
        return [] if "compact" in policy else _marks(spec, policy)
    if "compact" not in policy:
        return []
    if spec.role == "publish":
        lag_ms = int(topic.config.get("min.compaction.lag.ms", "0"))
        if lag_ms >= COMPACTION_LAG_MS:
            return []
        return [
            Problem(
                spec.name,
                f"is compacted after {lag_ms} ms: a delta that is superseded before a worker reads it is lost",
                _alter(spec.name, f"min.compaction.lag.ms={COMPACTION_LAG_MS}") + ", or cleanup.policy=delete",
            )
        ]
    return [
        Problem(
            spec.name,
            f"cleanup.policy is {_said(policy)}: compaction keeps a key's last record only",
            _alter(spec.name, "cleanup.policy=delete"),
        )
    ]


def _marks(spec: TopicSpec, policy: set[str]) -> list[Problem]:
    """Marks are read whole by every start: only the last value of each may stay."""
    return [
        Problem(
            spec.name,
            f"cleanup.policy is {_said(policy)}: it grows with every commit, and each start of a worker reads it whole",
            _alter(spec.name, "cleanup.policy=[compact,delete]"),
        )
    ]


def _size(spec: TopicSpec, topic: FoundTopic) -> list[Problem]:
    """A record that is accepted must fit wherever it goes from there."""
    wanted, set_to = spec.config.get("max.message.bytes"), topic.config.get("max.message.bytes")
    if wanted is None or set_to is None or int(set_to) >= int(wanted):
        return []
    return [
        Problem(
            spec.name,
            f"max.message.bytes is {set_to}, less than {wanted}: a large record would stop the worker",
            _alter(spec.name, f"max.message.bytes={wanted}"),
        )
    ]


def _said(policy: set[str]) -> str:
    return ",".join(sorted(policy)) or "empty"


def _alter(topic: str, setting: str) -> str:
    """The command of Kafka's own tools that mends a setting."""
    return f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config {setting}"
