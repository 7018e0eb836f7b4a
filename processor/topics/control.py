"""The control topic: there, compacted, of one partition, and kept by more than one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.problem import FoundTopic, Problem
from processor.topics.shared import shared_topic_problems

if TYPE_CHECKING:
    from processor.topics.family import TopicSpec


def control_problems(spec: TopicSpec, topic: FoundTopic | None, *, brokers: int = 1) -> list[Problem]:
    """Everything that is wrong with the control topic; workers run in spite of any of it.

    Args:
        spec: the topic as it should be.
        topic: the topic as it is; None: it does not exist.
        brokers: the number of brokers of the cluster.
    """
    absent = "held partitions cannot be seen with `sowstream status`, nor resumed"
    problems = shared_topic_problems(spec, topic, brokers, absent=absent, content="notices")
    if topic is not None and topic.partitions != 1:
        what = f"has {topic.partitions} partitions: only the first one is used"
        problems.append(Problem("warn", spec.name, what, "delete it, then sowstream topics apply"))
    return problems
