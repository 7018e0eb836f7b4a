"""Finds changes of topics under a running worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.partitions import partition_problems
from processor.topics.problem import ActualTopic, Problem
from processor.topics.rebuild import dependent_rebuild_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.config.kafka_names import KafkaNames
    from processor.topics.family import TopicSpec


def changes(
    specs: Iterable[TopicSpec], before: Mapping[str, ActualTopic], now: Mapping[str, ActualTopic]
) -> list[Problem]:
    """The changes with which no worker may go on (`refuse`), and those that an operator should know (`warn`).

    Args:
        specs: the topics as they should be.
        before: the topics as they were when the worker began.
        now: the topics as they are.
    """
    wrong: list[Problem] = []
    for spec in specs:
        topic = now.get(spec.name)
        if topic is None and spec.is_optional and spec.name not in before:
            continue
        if topic is None:
            wrong.append(Problem("refuse", spec.name, "was deleted", _deleted(spec)))
            continue
        was = before.get(spec.name)
        if was is not None and was.topic_id != topic.topic_id:
            problem = recreated(spec.names, spec.family, spec.role)
            wrong.append(problem._replace(to_do=problem.to_do + dependent_rebuild_steps(spec)))
        wrong += partition_problems(spec, topic)
    return wrong


def recreated(names: KafkaNames, family: str, role: str) -> Problem:
    """The problem of a topic that was deleted and recreated.

    Args:
        names: the Kafka names of all families.
        family: the topic of the settings.
        role: the role of the topic in its family.
    """
    topic, what = names.topic(family, role), "was deleted and made anew"
    if role == "sow":
        return Problem("refuse", topic, f"{what}: the records it had are gone", _rebuild(names, family))
    if role == "publish":
        return Problem(
            "refuse",
            topic,
            f"{what}: the group's offsets are those of other records",
            "say where to begin, with the workers stopped: sowstream offsets adopt "
            f"{_family(topic)} --from earliest, or --from latest",
        )
    return Problem("warn", topic, f"{what}: what it had is gone", "nothing, unless a reader missed it")


def _family(topic: str) -> str:
    """The first part of a topic's name."""
    return topic.rpartition(".")[0]


def _deleted(spec: TopicSpec) -> str:
    if spec.role == "sow":
        then = dependent_rebuild_steps(spec)
        return f"sowstream topics apply makes an empty one; {_rebuild(spec.names, spec.family)}{then}"
    return "sowstream topics apply makes an empty one"


def _rebuild(names: KafkaNames, family: str) -> str:
    """The steps that rebuild the records from the rest of the input."""
    sow, delta, mark = names.topic(family, "sow"), names.topic(family, "delta"), names.topic(family, "mark")
    return (
        "to rebuild them from what its input still has: (1) stop all workers of the family, and publishers where "
        f"deltas matter; (2) delete {sow} and {delta}, and {mark} if there is one, and run "
        f"sowstream topics apply; (3) sowstream offsets adopt {family} --from earliest --yes; (4) start the workers. A "
        "worker that is merely restarted goes on with what the new topic has"
    )
