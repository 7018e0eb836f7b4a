"""Runs every rule about the topics of families and the two that all share, at the start and under a running worker.

The number of partitions is the same in a whole family: output goes to the partition number of its input, and the hash
of a key chooses that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.topics.durability import cleanup_problems, copies_problems, policies, retention_problems
from processor.topics.family import BATCH_BYTES_MAX, FRAMING_BYTES
from processor.topics.problem import ActualTopic, Problem, alter, hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from processor.config.kafka_names import KafkaNames
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


def rebuild_steps(family: str, source: str, names: KafkaNames) -> str:
    """The steps that rebuild a family from its input; only dead letters are lost by it.

    Args:
        family: the family, such as `orders_5s`.
        source: the Kafka topic that it is derived from, such as `orders.sow`.
        names: the Kafka names of all families.
    """
    dead_letters, topics = names.topic(family, "dlq"), names.family_text(family)
    return (
        f"make {family} anew: (1) stop its workers; (2) save what is still needed of {dead_letters}, and delete all "
        f"topics {topics}; (3) sowstream topics apply; (4) sowstream offsets adopt {family} --from earliest --yes: "
        f"{source} is read from its beginning; (5) start its workers, and its subscribers anew"
    )


def dependent_rebuild_steps(spec: TopicSpec) -> str:
    """The steps that rebuild all families derived from a topic that has lost its records; empty if there are none."""
    return "".join(f"; then {rebuild_steps(family, spec.name, spec.names)}" for family in spec.derived_families)


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
