"""Every rule about topics, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.compaction import cleanup_problems
from processor.topics.family import BATCH_BYTES_MAX, FRAMING_BYTES
from processor.topics.partitions import partition_problems
from processor.topics.problem import FoundTopic, Problem, alter
from processor.topics.replication import copies_problems
from processor.topics.retention import retention_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.topics.family import TopicSpec

_BATCH_BYTES = BATCH_BYTES_MAX + FRAMING_BYTES
"""Least that any topic must take: several records that a worker sends together."""


def problems(specs: Iterable[TopicSpec], found: Mapping[str, FoundTopic], *, brokers: int = 1) -> list[Problem]:
    """Everything that is wrong, in the order of the specs.

    Args:
        specs: the topics as they should be.
        found: the topics as they are; one that is not in it does not exist.
        brokers: how many the cluster has; one alone cannot keep more than one copy.
    """
    wrong: list[Problem] = []
    for spec in specs:
        topic = found.get(spec.name)
        if topic is None:
            wrong.append(_missing(spec))
            continue
        wrong += partition_problems(spec, topic)
        wrong += cleanup_problems(spec, topic)
        wrong += _size(spec, topic)
        wrong += copies_problems(spec, topic, brokers)
        wrong += retention_problems(spec, topic)
    return wrong


def _missing(spec: TopicSpec) -> Problem:
    """A topic that does not exist."""
    if not spec.is_optional:
        return Problem("refuse", spec.name, "does not exist", "sowstream topics apply")
    what = "does not exist: if the group's offsets are lost, nothing says which input is in the SOW topic"
    return Problem("warn", spec.name, what, "sowstream topics apply, give workers Read and Write, restart them")


def _size(spec: TopicSpec, topic: FoundTopic) -> list[Problem]:
    """A record that is accepted must fit wherever it goes from there; more room than that is no problem."""
    needed = spec.message_bytes
    set_to = topic.number("max.message.bytes", needed)
    if set_to >= needed:
        return []
    to_do = alter(spec.name, f"max.message.bytes={needed}")
    if spec.role == "publish" and set_to >= _BATCH_BYTES:
        # What is on the input is not larger than that; only publishers meet the limit.
        what = f"max.message.bytes is {set_to}, less than {needed}: Kafka refuses the largest records of publishers"
        return [Problem("warn", spec.name, what, f"{to_do}, if they have any")]
    what = f"max.message.bytes is {set_to}, less than {needed}: a large record would stop the worker"
    if needed > _BATCH_BYTES:
        to_do += ", or lower max_record_bytes"
    return [Problem("refuse", spec.name, what, to_do)]
