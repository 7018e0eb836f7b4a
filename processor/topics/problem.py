"""A topic as it is on the cluster, and one problem of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


Severity: TypeAlias = Literal["refuse", "warn"]
"""`refuse`: a worker does not start. `warn`: it runs."""


class ActualTopic(NamedTuple):
    """One Kafka topic as it is."""

    partitions: int
    """Number of partitions."""
    config: Mapping[str, str]
    """The settings in force, defaults included."""
    replicas: int = 1
    """Copies of the partition with the fewest."""
    topic_id: str = ""
    """The id of the topic, which differs from that of a deleted topic of the same name."""
    lacks: Literal["", "Describe", "DescribeConfigs"] = ""
    """The right that this user lacks: without `Describe` nothing is known, without `DescribeConfigs` no setting."""

    def number(self, setting: str, default: int) -> int:
        """The value of a numeric setting; the default if Kafka did not report it."""
        return int(self.config.get(setting, default))


class Problem(NamedTuple):
    """One property of a topic that breaks a guarantee."""

    severity: Severity
    """`refuse`: no worker starts; `warn`: the guarantee holds until something else fails, too."""
    topic: str
    """The Kafka topic."""
    what: str
    """The problem."""
    to_do: str
    """The remedy."""

    def __str__(self) -> str:
        return f"{self.topic} {self.what}; {self.to_do}"


_UNITS_MS: Final = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def duration(ms: int) -> str:
    """A duration for people: `7 days`, `36 hours`, `90 seconds`, `20 ms`; rounded down."""
    for name, unit_ms in _UNITS_MS:
        count = ms // unit_ms
        if count >= 2 or (count == 1 and ms % unit_ms == 0):
            return f"{count} {name}" if count == 1 else f"{count} {name}s"
    return f"{ms} ms"


def alter(topic: str, setting: str) -> str:
    """The command of Kafka's own tools that corrects a setting."""
    return f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config {setting}"


def hidden(name: str, topic: ActualTopic, severity: Severity) -> Problem:
    """The problem of a topic whose description this user may not read: it may exist or not."""
    what = "is not to be seen by this user (no right to Describe), if it exists"
    if topic.lacks == "DescribeConfigs":
        what = "has settings that this user must not see (no right to DescribeConfigs), so they cannot be checked"
    to_do = f"grant {topic.lacks}: sowstream topics apply --acls prints the rights of each role"
    return Problem(severity, name, what, to_do)
