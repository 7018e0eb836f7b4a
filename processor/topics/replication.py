"""Checks how many brokers must have a record before it counts as written: whether it survives the loss of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.topics.problem import ActualTopic, Problem, alter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.topics.family import TopicSpec

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
