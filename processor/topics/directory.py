"""The topic directory: there, compacted, and kept by more than one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.shared import shared_topic_problems

if TYPE_CHECKING:
    from processor.topics.family import TopicSpec
    from processor.topics.problem import FoundTopic, Problem


def directory_problems(spec: TopicSpec, topic: FoundTopic | None, *, brokers: int = 1) -> list[Problem]:
    """Everything that is wrong with the directory; workers run in spite of any of it.

    Args:
        spec: the directory as it should be.
        topic: the directory as it is; None: it does not exist.
        brokers: the number of brokers of the cluster.
    """
    absent = "readers need a settings file each"
    return shared_topic_problems(spec, topic, brokers, absent=absent, content="descriptions")
