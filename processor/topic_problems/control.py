"""The control topic: there, compacted, of one partition, and kept by more than one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topic_problems.cleanup import policies
from processor.topic_problems.copies import copies_problems
from processor.topic_problems.problem import FoundTopic, Problem, alter

if TYPE_CHECKING:
    from processor.topics import TopicSpec


def control_problems(spec: TopicSpec, topic: FoundTopic | None, *, brokers: int = 1) -> list[Problem]:
    """Everything that is wrong with the control topic; workers run in spite of any of it.

    Args:
        spec: the topic as it should be.
        topic: the topic as it is; None: it does not exist.
        brokers: the number of brokers of the cluster.
    """
    if topic is None:
        what = "does not exist: held partitions cannot be seen with `sowstream status`, nor resumed"
        return [Problem("warn", spec.name, what, "sowstream topics apply")]
    problems = copies_problems(spec, topic, brokers)
    if policies(topic) != {"compact"}:
        policy = ",".join(sorted(policies(topic))) or "empty"
        what = f"cleanup.policy is {policy}: notices are lost after a time, or old ones are kept"
        problems.append(Problem("warn", spec.name, what, alter(spec.name, "cleanup.policy=compact")))
    if topic.partitions != 1:
        what = f"has {topic.partitions} partitions: only the first one is used"
        problems.append(Problem("warn", spec.name, what, "delete it, then sowstream topics apply"))
    return problems
