"""Checks the number of partitions, which is the same in a whole family.

Output goes to the partition number of its input, and the hash of a key chooses that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.problem import ActualTopic, Problem
from processor.topics.rebuild import dependent_rebuild_steps, rebuild_steps

if TYPE_CHECKING:
    from processor.topics.family import TopicSpec


def partition_problems(spec: TopicSpec, topic: ActualTopic) -> list[Problem]:
    """The problem of a topic whose number of partitions differs from its family's setting; empty if there is none."""
    if topic.partitions == spec.partitions or (spec.may_have_grown and topic.partitions > spec.partitions):
        return []
    return [grown(spec, topic.partitions)]


def grown(spec: TopicSpec, partitions: int) -> Problem:
    """The problem of a topic with another number of partitions than the settings have.

    Args:
        spec: the topic as it should be.
        partitions: the number that it has, or has at least.
    """
    family = spec.family
    if spec.derived_from:
        source = spec.derived_from
        what = f"has {_count(partitions)}, and {source}, which {family} is made of, is to have {spec.partitions}"
        to_do = rebuild_steps(family, source, spec.names) + dependent_rebuild_steps(spec)
        return Problem("refuse", spec.name, what, to_do)
    what = f"has {_count(partitions)} where the family {family!r} is configured with {spec.partitions}"
    to_do = f"set `partitions: {partitions}` if the whole family has as many from the start"
    return Problem("refuse", spec.name, what, f"{to_do}; otherwise {_steps(spec, family, partitions)}")


def _steps(spec: TopicSpec, family: str, partitions: int) -> str:
    """The steps out of it: Kafka never removes partitions, and never moves a record."""
    if partitions < spec.partitions:
        return f"set `partitions: {partitions}` back, as keys do not move with a count"
    if spec.role in _KEYED:
        new = f"{family}_{partitions}"
        copies = " and ".join(spec.derived_families)
        then = f"; (4) name {new} as the `underlying` of {copies}, and do what topics check says then" if copies else ""
        return (
            "keys have moved, and Kafka takes no partition back: (1) configure a topic of a new name, such as "
            f"`{new}: {{partitions: {partitions}, moved_from: {family}}}`, and run sowstream topics apply; (2) restart "
            f"the workers; (3) sowstream reshard {family} --yes: publishers may go on{then}"
        )
    return (
        f"(1) stop the workers; (2) save what is still needed of {spec.name} and delete it; (3) sowstream topics apply "
        "makes it anew; (4) start the workers"
    )


_KEYED: frozenset[str] = frozenset(("publish", "sow"))
"""Topics in which a key is found by its hash, and that cannot be recreated without losing their records."""


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"
