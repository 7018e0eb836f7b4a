"""Checks the cleanup policies: Kafka may delete superseded records from SOW, and only old ones from other topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.topics.family import DAY_MS
from processor.topics.problem import ActualTopic, Problem, alter, duration

if TYPE_CHECKING:
    from processor.topics.family import TopicSpec

COMPACTION_LAG_MS: Final = 7 * DAY_MS
"""Longest outage of a worker that a compacted input topic must outlast."""

_SUPERSEDED: Final = "records that are not updated for long are lost"
_FORGOTTEN: Final = "the input position in it goes while nothing is published or no worker runs"
_GROWS: Final = "it grows with every commit, and each start of a worker reads it whole"


def policies(topic: ActualTopic) -> set[str]:
    """The `cleanup.policy` of a topic: `delete`, `compact`, both or neither."""
    return {part.strip() for part in topic.config.get("cleanup.policy", "delete").split(",")} - {""}


def cleanup_problems(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problems of a topic's `cleanup.policy`."""
    policy = policies(topic)
    if spec.role == "sow" or spec.is_compacted:
        return [] if policy == {"compact"} else [_refused(spec, policy, _SUPERSEDED, "compact")]
    if spec.role == "mark":
        return _marks(spec, topic, policy)
    if "compact" not in policy:
        return []
    if spec.role == "publish":
        return _compacted_input(spec, topic)
    return [_refused(spec, policy, "compaction keeps a key's last record only", "delete")]


def _marks(spec: TopicSpec, topic: ActualTopic, policy: set[str]) -> list[Problem]:
    if "compact" not in policy:
        return [_refused(spec, policy, _GROWS, "compact")]
    retention_ms = topic.number("retention.ms", 7 * DAY_MS)
    if "delete" not in policy or retention_ms < 0:
        return []
    what = f"forgets marks after {duration(retention_ms)}: {_FORGOTTEN}"
    return [Problem("warn", spec.name, what, alter(spec.name, "cleanup.policy=compact"))]


def _refused(spec: TopicSpec, policy: set[str], why: str, right: str) -> Problem:
    value = ",".join(sorted(policy)) or "empty"
    to_do = alter(spec.name, f"cleanup.policy={right}")
    return Problem("refuse", spec.name, f"cleanup.policy is {value}: {why}", to_do)


def _compacted_input(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problem of an input that is compacted before the worker has read it: only a key's last delta stays."""
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
