"""Checks how Kafka keeps the records of a topic: its cleanup policy, its retention, and its copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.topics.family import DAY_MS, SNAPSHOT_MS_MAX
from processor.topics.problem import ActualTopic, Problem, alter, duration

if TYPE_CHECKING:
    from collections.abc import Mapping

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


OUTAGE_MS: Final = 3 * DAY_MS
"""A long weekend, after which an operator looks."""

_FIGURE_BYTES_S: Final = 1_000_000
"""The data rate for examples that convert a size limit to a time."""

_LATE: Final[Mapping[str, str]] = {
    "delta": "a subscriber that was away for longer has to take a new snapshot",
    "queue": "messages that no consumer has acknowledged by then are gone",
    "dlq": "rejected records go before anybody has looked at them",
}
"""Topics with readers of old records, and the consequence for a reader that is late."""


def kept_ms(spec: TopicSpec, topic: ActualTopic) -> int | None:
    """The time that each record that a reader needs is kept for certain; None: for ever. Size limits are not counted.

    Readers of a topic with the last record of each key need no other one, and compare their keys with it after an
    outage in which deletes may have gone.
    """
    if spec.role == "sow" or spec.is_compacted:
        return None
    policy = policies(topic)
    limits_ms = []
    if "delete" in policy and (retention_ms := topic.number("retention.ms", 7 * DAY_MS)) >= 0:
        limits_ms.append(retention_ms)
    if "compact" in policy:
        limits_ms.append(topic.number("min.compaction.lag.ms", 0))
    return min(limits_ms, default=None)


def tombstones_kept_ms(config: Mapping[str, str]) -> float:
    """The time that a compacted topic with these settings keeps tombstones, in milliseconds."""
    return float(config.get("delete.retention.ms", DAY_MS))


def retention_problems(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problems of records that are kept too short, or for an unknown time; no guarantee is broken by that alone."""
    if spec.role == "publish":
        return [*_input(spec, topic), *_bytes(spec, topic, "how long an outage it outlasts depends on the traffic")]
    if spec.role == "sow":
        return _sow(spec, topic)
    if spec.role in _LATE:
        return [*_late(spec, topic), *_bytes(spec, topic, _LATE[spec.role])]
    return []


def _input(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    if "delete" not in policies(topic):
        return []
    retention_ms = topic.number("retention.ms", -1)
    if not 0 <= retention_ms < OUTAGE_MS:
        return []
    what = f"keeps records for {duration(retention_ms)}: a worker that is down for longer has lost some, and stops"
    return [Problem("warn", spec.name, what, alter(spec.name, f"retention.ms={7 * DAY_MS}"))]


def _bytes(spec: TopicSpec, topic: ActualTopic, so: str) -> list[Problem]:
    """The problem of a size limit, which does not guarantee any time."""
    limit_bytes = topic.number("retention.bytes", -1)
    if "delete" not in policies(topic) or limit_bytes < 0:
        return []
    held = duration(limit_bytes * 1000 // _FIGURE_BYTES_S)
    what = f"keeps {limit_bytes:,} bytes of a partition, {held} of 1 MB/s: {so}"
    return [Problem("warn", spec.name, what, alter(spec.name, "retention.bytes=-1"))]


def _late(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    retention_ms = topic.number("retention.ms", -1)
    if not 0 <= retention_ms < DAY_MS:
        return []
    what = f"keeps records for {duration(retention_ms)}: {_LATE[spec.role]}"
    return [Problem("warn", spec.name, what, alter(spec.name, f"retention.ms={7 * DAY_MS}"))]


def _sow(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problem of a SOW topic whose readers may be overtaken by deletion: they need time for all of it."""
    wrong: list[Problem] = []
    lag_ms = topic.number("min.compaction.lag.ms", 0)
    if lag_ms < SNAPSHOT_MS_MAX:
        what = f"is compacted after {duration(lag_ms)}: a snapshot that takes longer may lack records"
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"min.compaction.lag.ms={SNAPSHOT_MS_MAX}")))
    deletes_ms = topic.number("delete.retention.ms", DAY_MS)
    if deletes_ms < SNAPSHOT_MS_MAX:
        what = f"forgets deletes after {duration(deletes_ms)}: deleted records come back in a restore that takes longer"
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"delete.retention.ms={DAY_MS}")))
    elif deletes_ms < DAY_MS:
        what = f"forgets deletes after {duration(deletes_ms)}: a worker that was down for longer restores everything"
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"delete.retention.ms={DAY_MS}")))
    segment_ms = max(lag_ms, topic.number("segment.ms", DAY_MS))
    if segment_ms > 7 * DAY_MS:
        setting = "min.compaction.lag.ms" if lag_ms == segment_ms else "segment.ms"
        what = f"{setting} is {duration(segment_ms)}: every restore and snapshot reads what was superseded since"
        ours_ms = SNAPSHOT_MS_MAX if lag_ms == segment_ms else DAY_MS
        wrong.append(Problem("warn", spec.name, what, alter(spec.name, f"{setting}={ours_ms}")))
    return wrong


INTERNAL: Final = {
    "__transaction_state": "transaction.state.log",
    "__consumer_offsets": "offsets.topic",
}
"""Kafka's own topics on which every transaction depends, with the names of the brokers' settings that create them."""


def copies_problems(spec: TopicSpec, topic: ActualTopic, brokers: int) -> list[Problem]:
    """The problems of a topic whose committed records would be lost with one broker; none on a single broker."""
    if brokers < 2:
        return []
    if topic.replicas < 2:
        is_allowed = "one_replica" in spec.allows
        to_do = "add copies with kafka-reassign-partitions"
        return [
            Problem(
                "warn" if is_allowed else "refuse",
                spec.name,
                f"is kept by one of {brokers} brokers only: when that one is lost, so are its committed records",
                to_do if is_allowed else f"{to_do}, or accept the loss: allow_one_replica: true",
            )
        ]
    return [*_in_sync(spec.name, topic), *_unclean(spec.name, topic)]


def internal_problems(topics: Mapping[str, ActualTopic], brokers: int) -> list[Problem]:
    """The problems of Kafka's own topics, with commits and offsets; the operator of the brokers must correct them.

    Args:
        topics: Kafka's internal topics, as far as we are allowed to see them.
        brokers: the number of brokers of the cluster.
    """
    wrong: list[Problem] = []
    for name, made_by in INTERNAL.items():
        topic = topics.get(name)
        if topic is None or brokers < 2:
            continue
        if topic.replicas < 2:
            what = f"is kept by one of {brokers} brokers only: when that one is lost, nobody knows what was committed"
            to_do = f"add copies with kafka-reassign-partitions, and set the brokers' {made_by}.replication.factor"
            wrong.append(Problem("warn", name, what, to_do))
            continue
        if name == "__transaction_state":
            wrong += _in_sync(name, topic)
        wrong += _unclean(name, topic)
    return wrong


def _in_sync(name: str, topic: ActualTopic) -> list[Problem]:
    """The problem of `min.insync.replicas`: neither one nor all copies should be required."""
    least = topic.number("min.insync.replicas", 1)
    if least >= topic.replicas:
        what = f"has {topic.replicas} copies and min.insync.replicas {least}: without any one of their brokers, nothing"
        better = max(1, topic.replicas - 1)
        to_do = alter(name, f"min.insync.replicas={better}")
        if better == 1:
            to_do = "make it three copies with kafka-reassign-partitions"
        return [Problem("warn", name, f"{what} can be written", to_do)]
    if least < 2 < topic.replicas:
        what = "min.insync.replicas is 1: what only one broker has counts as written, and is lost if that one is"
        return [Problem("warn", name, what, alter(name, "min.insync.replicas=2"))]
    return []


def _unclean(name: str, topic: ActualTopic) -> list[Problem]:
    """The problem of a broker that may become leader although it lacks records: the others then drop them."""
    if topic.config.get("unclean.leader.election.enable") != "true":
        return []
    what = "unclean.leader.election.enable is true: a broker that was behind may take over, and committed records go"
    return [Problem("warn", name, what, alter(name, "unclean.leader.election.enable=false"))]
