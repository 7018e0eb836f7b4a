"""What Kafka may throw away: of SOW what is superseded, of the others what is old, of none what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.topic_problems.problem import FoundTopic, Problem, alter, duration
from processor.topics import DAY_MS

if TYPE_CHECKING:
    from processor.topics import TopicSpec

COMPACTION_LAG_MS: Final = 7 * DAY_MS
"""Longest outage of a worker that a compacted input topic must outlast."""


def policies(topic: FoundTopic) -> set[str]:
    """What Kafka does to a topic's old records: `delete`, `compact`, both or nothing."""
    return {part.strip() for part in topic.config.get("cleanup.policy", "delete").split(",")} - {""}


def cleanup_problems(spec: TopicSpec, topic: FoundTopic) -> list[Problem]:
    """What is wrong with a topic's `cleanup.policy`."""
    policy = policies(topic)
    if spec.role == "sow":
        return [] if policy == {"compact"} else [_sow(spec, policy)]
    if spec.role == "mark":
        return [] if "compact" in policy else [_marks(spec, policy)]
    if "compact" not in policy:
        return []
    if spec.role == "publish":
        return _compacted_input(spec, topic)
    return [
        Problem(
            "refuse",
            spec.name,
            f"cleanup.policy is {_said(policy)}: compaction keeps a key's last record only",
            alter(spec.name, "cleanup.policy=delete"),
        )
    ]


def _sow(spec: TopicSpec, policy: set[str]) -> Problem:
    return Problem(
        "refuse",
        spec.name,
        f"cleanup.policy is {_said(policy)}: records that are not updated for long are lost",
        alter(spec.name, "cleanup.policy=compact"),
    )


def _marks(spec: TopicSpec, policy: set[str]) -> Problem:
    """Marks are read whole by every start: only the last value of each may stay."""
    return Problem(
        "refuse",
        spec.name,
        f"cleanup.policy is {_said(policy)}: it grows with every commit, and each start of a worker reads it whole",
        alter(spec.name, "cleanup.policy=[compact,delete]"),
    )


def _compacted_input(spec: TopicSpec, topic: FoundTopic) -> list[Problem]:
    """Compaction keeps a key's last delta and drops those before it: it must wait for the worker."""
    lag_ms = topic.number("min.compaction.lag.ms", 0)
    if lag_ms >= COMPACTION_LAG_MS:
        return []
    is_allowed = "lossy_compaction" in spec.allows
    to_do = alter(spec.name, f"min.compaction.lag.ms={COMPACTION_LAG_MS}") + ", or cleanup.policy=delete"
    return [
        Problem(
            "warn" if is_allowed else "refuse",
            spec.name,
            f"is compacted after {duration(lag_ms)}: a delta that is superseded before a worker reads it is lost",
            to_do if is_allowed else f"{to_do}; or accept the loss: allow_lossy_compaction: true",
        )
    ]


def _said(policy: set[str]) -> str:
    return ",".join(sorted(policy)) or "empty"
