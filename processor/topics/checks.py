"""Runs every rule about the topics of families, and about the two topics that all families share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.changes import partition_problems
from processor.topics.durability import cleanup_problems, copies_problems, policies, retention_problems
from processor.topics.family import BATCH_BYTES_MAX, FRAMING_BYTES
from processor.topics.problem import ActualTopic, Problem, alter, hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


_BATCH_BYTES = BATCH_BYTES_MAX + FRAMING_BYTES
"""Least batch size that any topic must accept: several records that a worker sends together."""


def problems(specs: Iterable[TopicSpec], actual: Mapping[str, ActualTopic], *, brokers: int = 1) -> list[Problem]:
    """All problems, in the order of the specs.

    Args:
        specs: the topics as they should be.
        actual: the topics as they are; a missing one does not exist.
        brokers: the number of brokers of the cluster; a single one cannot keep more than one copy.
    """
    wrong: list[Problem] = []
    for spec in specs:
        topic = actual.get(spec.name)
        if topic is None:
            wrong.append(_missing(spec))
            continue
        if topic.lacks:
            wrong.append(hidden(spec.name, topic, "warn" if spec.is_optional else "refuse"))
            continue
        wrong += partition_problems(spec, topic)
        wrong += cleanup_problems(spec, topic)
        wrong += _size(spec, topic)
        wrong += copies_problems(spec, topic, brokers)
        wrong += retention_problems(spec, topic)
    return wrong


def _missing(spec: TopicSpec) -> Problem:
    """The problem of a topic that does not exist."""
    if not spec.is_optional:
        return Problem("refuse", spec.name, "does not exist", "sowstream topics apply")
    what = "does not exist: if the group's offsets are lost, nothing says which input is in the SOW topic"
    return Problem("warn", spec.name, what, "sowstream topics apply, give workers Read and Write, restart them")


def _size(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problem of a topic that accepts smaller records than its family allows; a larger limit is no problem."""
    needed = spec.message_bytes
    set_to = topic.number("max.message.bytes", needed)
    if set_to >= needed:
        return []
    to_do = alter(spec.name, f"max.message.bytes={needed}")
    if spec.role == "publish" and set_to >= _BATCH_BYTES:
        # Records on the input are not larger than its limit; only publishers meet it.
        what = f"max.message.bytes is {set_to}, less than {needed}: Kafka refuses the largest records of publishers"
        return [Problem("warn", spec.name, what, f"{to_do}, if they have any")]
    what = f"max.message.bytes is {set_to}, less than {needed}: a large record would stop the worker"
    if needed > _BATCH_BYTES:
        to_do += ", or lower max_record_bytes"
    return [Problem("refuse", spec.name, what, to_do)]
