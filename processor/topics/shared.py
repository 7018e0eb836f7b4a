"""Checks the two topics that all families of an installation share: the control topic and the topic directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.compaction import policies
from processor.topics.problem import ActualTopic, Problem, alter, hidden
from processor.topics.replication import copies_problems

if TYPE_CHECKING:
    from processor.topics.family import TopicSpec


def shared_topic_problems(
    spec: TopicSpec, topic: ActualTopic | None, brokers: int, *, absent: str, content: str
) -> list[Problem]:
    """The common problems of a shared topic; workers run in spite of them.

    Args:
        spec: the topic as it should be.
        topic: the topic as it is; None: it does not exist.
        brokers: the number of brokers of the cluster.
        absent: the consequence of a missing topic.
        content: the records that another cleanup policy loses.
    """
    if topic is None:
        return [Problem("warn", spec.name, f"does not exist: {absent}", "sowstream topics apply")]
    if topic.lacks:
        return [hidden(spec.name, topic, "warn")]
    problems = copies_problems(spec, topic, brokers)
    if policies(topic) != {"compact"}:
        policy = ",".join(sorted(policies(topic))) or "empty"
        what = f"cleanup.policy is {policy}: {content} are lost after a time, or old ones are kept"
        problems.append(Problem("warn", spec.name, what, alter(spec.name, "cleanup.policy=compact")))
    return problems


def control_problems(spec: TopicSpec, topic: ActualTopic | None, *, brokers: int = 1) -> list[Problem]:
    """The problems of the control topic; workers run in spite of them.

    Args:
        spec: the topic as it should be.
        topic: the topic as it is; None: it does not exist.
        brokers: the number of brokers of the cluster.
    """
    absent = "held partitions cannot be seen with `sowstream status`, nor resumed"
    problems = shared_topic_problems(spec, topic, brokers, absent=absent, content="notices")
    if topic is not None and not topic.lacks and topic.partitions != 1:
        what = f"has {topic.partitions} partitions: only the first one is used"
        problems.append(Problem("warn", spec.name, what, "delete it, then sowstream topics apply"))
    return problems


def directory_problems(spec: TopicSpec, topic: ActualTopic | None, *, brokers: int = 1) -> list[Problem]:
    """The problems of the topic directory; workers run in spite of them.

    Args:
        spec: the directory as it should be.
        topic: the directory as it is; None: it does not exist.
        brokers: the number of brokers of the cluster.
    """
    absent = "readers need a settings file each"
    return shared_topic_problems(spec, topic, brokers, absent=absent, content="descriptions")
