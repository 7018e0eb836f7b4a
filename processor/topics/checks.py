"""Runs every rule about topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.compaction import cleanup_problems
from processor.topics.family import BATCH_BYTES_MAX, FRAMING_BYTES
from processor.topics.partitions import partition_problems
from processor.topics.problem import ActualTopic, Problem, alter, hidden
from processor.topics.replication import copies_problems
from processor.topics.retention import retention_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.topics.family import TopicSpec

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
