"""The rights of each role on a secured cluster: ACLs, commands of Kafka's own tool, objects of Strimzi's operators.

Kafka denies everything else as long as the brokers have `allow.everyone.if.no.acl.found` off: so only the worker of a
conflated topic or of a view may write to it. The table in deploy/README.md has the same rights.

`sowstream topics apply --strimzi` prints a KafkaTopic for each topic, and a KafkaUser for each role. Kubernetes keeps
them, and the operators bring Kafka in line: who may write them needs no right in Kafka. The fields are those of
Strimzi's API `v1`, which are the same in `v1beta2`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from processor.hosting.pipeline import family_of
from processor.kafka.admin.rights import Right
from processor.topics.family import control_topic, copies, durable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline
    from processor.topics.family import TopicSpec


Who = Literal[
    "DEPLOYER", "WORKER", "CONFLATER", "VIEWER", "GATEWAY", "PUBLISHER", "SUBSCRIBER", "CONSUMER", "DLQ", "SETTLER"
]
"""A shell variable with the name of a principal: `sowstream topics apply`, `sowstream worker`, `sowstream conflate`,
`sowstream view`, `sowstream gateway`, publishers, subscribers (Spark among them), consumers of queues, `sowstream dlq`
with `sowstream topics heal`, and `sowstream transactions`."""

GATEWAY: Final = "GATEWAY"

TRANSACTION_STATE: Final = "__transaction_state"
"""Kafka's own topic with the log of transaction coordinators; the hash of a transactional id chooses the partition."""

GROUP_OFFSETS: Final = "__consumer_offsets"
"""Kafka's own topic with the offsets of consumer groups; transactions write to it."""

API: Final = "kafka.strimzi.io/v1"
BROKERS: Final = 3
"""The brokers that the cluster is expected to have, as none is asked: topics get three copies."""
_KINDS: Final = {"transactional-id": "transactionalId"}
"""Strimzi's word for a kind of resource, where it is not Kafka's."""
_NAME_MAX: Final = 253
"""The characters of a name in Kubernetes."""

_WORKERS: Final[dict[str, tuple[str, ...]]] = {
    "publish": ("Read", "Write"),  # Records without a key are sent again with one.
    "sow": ("Read", "Write"),
    "mark": ("Read", "Write"),
    "delta": ("Write",),
    "ack": ("Write",),
    "dlq": ("Write",),
}


class Grant(NamedTuple):
    """One right of a role; `Describe` is always added."""

    who: Who
    """The role that gets it."""
    kind: Literal["topic", "group", "transactional-id", "cluster"]
    """The type of the resource."""
    operations: tuple[str, ...]
    """The operations, by Kafka's names."""
    name: str
    """The resource, or the prefix of its names. Empty for the cluster, of which there is only one."""
    is_prefix: bool = False
    """True if it applies to all names with this prefix."""


def grants(config: Config, pipelines: Iterable[Pipeline]) -> Iterator[Grant]:
    """All rights that these pipelines need, of every role."""
    readers: tuple[Who, ...] = ("PUBLISHER", "SUBSCRIBER")
    for reader in readers:
        # Of acks, or of records: a reader joins no group, but librdkafka looks up the coordinator of its group name.
        yield Grant(reader, "group", ("Describe",), f"{config.group_prefix}.client.", is_prefix=True)
    for queue in config.queues:
        yield from _of_queue(config, queue)
    yield Grant("GATEWAY", "group", ("Describe",), f"{config.group_prefix}.client.", is_prefix=True)
    yield Grant("GATEWAY", "group", ("Describe",), f"{config.group_prefix}.gateway")
    pipelines = list(pipelines)
    for pipeline in pipelines:
        name = pipeline.name
        group = f"{config.group_prefix}.{name}"
        who = _runner(config, name)
        yield from _of_family(config, pipeline, who)
        if pipeline.derived_from:
            yield Grant(who, "topic", ("Read", "DescribeConfigs"), pipeline.derived_from)
        yield Grant(who, "group", ("Read",), group)
        # Workers count the dead letters that wait: `sowstream_dlq_waiting_records`.
        yield Grant(who, "group", ("Describe",), config.letters_group(name))
        yield Grant(who, "transactional-id", ("Write",), f"{group}.", is_prefix=True)
        for outlet in pipeline.outlets.values():
            yield Grant(who, "topic", ("Write",), outlet.topic)
        if pipeline.has_table:
            yield Grant(who, "topic", ("Read", "DescribeConfigs"), pipeline.source)
        for role in own_roles(pipeline):
            if role == "publish":
                yield Grant("PUBLISHER", "topic", ("Write",), pipeline.output(role))
                yield Grant("GATEWAY", "topic", ("Write",), pipeline.output(role))
            elif role == "ack":
                yield Grant("PUBLISHER", "topic", ("Read",), pipeline.output(role))
                yield Grant("GATEWAY", "topic", ("Read",), pipeline.output(role))
            elif role == "mark" and name in config.topics:
                yield Grant("PUBLISHER", "topic", ("Read",), pipeline.output(role))
            elif name in config.stages or (pipeline.has_table and role == pipeline.processor_type.input.role):
                continue  # Nobody reads the internal topics of a view.
            elif role == "sow":
                yield Grant("GATEWAY", "topic", ("Read", "DescribeConfigs"), pipeline.output(role))
                # A kept view asks for the topic's `delete.retention.ms`.
                yield Grant("SUBSCRIBER", "topic", ("Read", "DescribeConfigs"), pipeline.output(role))
            elif role == "delta" or role not in _WORKERS:
                yield Grant("SUBSCRIBER", "topic", ("Read",), pipeline.output(role))
        yield from _of_dead_letters(pipeline, group, config.letters_group(name))
        yield from _of_settling(pipeline, group)
        if name in config.topics:
            yield from _of_healing(pipeline, group)
    if pipelines:
        yield from _of_coordinators(config)
    workers = {_runner(config, pipeline.name) for pipeline in pipelines}
    for who in (*sorted(workers), *readers, GATEWAY):
        # Workers compare their settings with it; readers may have no other settings.
        yield Grant(who, "topic", ("Read",), config.kafka_names.directory)
        yield Grant(who, "group", ("Describe",), config.kafka_names.directory)
    control = control_topic(config.topic_prefix)
    for who in (*sorted(workers), "DLQ"):
        # Workers write notices of held partitions, and read the orders of `sowstream resume`.
        yield Grant(who, "topic", ("Read", "Write"), control)
        yield Grant(who, "group", ("Describe",), control)
    yield from _of_deployment(config, pipelines)


def _of_deployment(config: Config, pipelines: Iterable[Pipeline]) -> Iterator[Grant]:
    """The rights of `sowstream topics apply`: to create and look at each topic, and to describe it to readers."""
    directory = config.kafka_names.directory
    names = [spec.name for pipeline in pipelines for spec in family_of(pipeline)]
    for name in (*names, control_topic(config.topic_prefix), directory):
        if not config.topic_prefix or not name.startswith(config.topic_prefix):
            yield Grant("DEPLOYER", "topic", ("Create", "Describe", "DescribeConfigs"), name)
    if config.topic_prefix:
        yield Grant("DEPLOYER", "topic", ("Create", "Describe", "DescribeConfigs"), config.topic_prefix, is_prefix=True)
    yield Grant("DEPLOYER", "topic", ("Read", "Write"), directory)
    yield Grant("DEPLOYER", "group", ("Describe",), directory)
    for queue in config.queues:
        yield Grant("DEPLOYER", "group", ("Describe", "DescribeConfigs", "AlterConfigs"), config.share_group(queue))


def own_roles(pipeline: Pipeline) -> tuple[str, ...]:
    """The roles of a pipeline's own family, without those of queues."""
    return tuple(role for role in pipeline.roles if "." not in role)


def _of_queue(config: Config, queue: str) -> Iterator[Grant]:
    """The rights of a queue's worker, its consumers, and of those who look at its dead letters."""
    messages, letters = (config.kafka_names.topic(queue, role) for role in ("queue", "dlq"))
    group, letters_group = config.share_group(queue), config.letters_group(queue)
    yield Grant("WORKER", "topic", ("Write", "DescribeConfigs"), messages)
    yield Grant("WORKER", "topic", ("Write", "DescribeConfigs"), letters)
    yield Grant("CONSUMER", "topic", ("Read",), messages)
    yield Grant("CONSUMER", "topic", ("Write",), letters)
    yield Grant("CONSUMER", "group", ("Read", "DescribeConfigs"), group)
    yield Grant("DLQ", "topic", ("Read", "Write"), messages)
    yield Grant("DLQ", "topic", ("Read", "Write", "DescribeConfigs"), letters)
    yield Grant("DLQ", "group", ("Read",), letters_group)
    yield Grant("DLQ", "group", ("Describe", "DescribeConfigs"), group)
    yield Grant("DLQ", "transactional-id", ("Write",), letters_group)


def _runner(config: Config, name: str) -> Who:
    """The role that runs a pipeline."""
    if name in config.views or name in config.stages:
        return "VIEWER"
    return "CONFLATER" if name in config.conflated else "WORKER"


def _of_family(config: Config, pipeline: Pipeline, who: Who) -> Iterator[Grant]:
    """The rights of a family's worker: by prefix if the names begin with a prefix of the installation.

    Without `topic_prefix`, topics of other owners may begin in the same way.
    """
    mapped = config.kafka_names.mapped.get(pipeline.name, {})
    roles = own_roles(pipeline)
    if config.topic_prefix:
        roles = tuple(role for role in own_roles(pipeline) if role in mapped)
        if len(roles) < len(own_roles(pipeline)):
            beginning = f"{config.topic_prefix}{pipeline.name}."
            yield Grant(who, "topic", ("Read", "Write", "DescribeConfigs"), beginning, is_prefix=True)
    for role in roles:
        yield Grant(who, "topic", (*_WORKERS.get(role, ("Write",)), "DescribeConfigs"), pipeline.output(role))


def _of_dead_letters(pipeline: Pipeline, group: str, letters_group: str) -> Iterator[Grant]:
    """The rights to read dead letters, and to send them back to the input."""
    yield Grant("DLQ", "topic", ("Read", "DescribeConfigs"), pipeline.output("dlq"))
    yield Grant("DLQ", "group", ("Read",), letters_group)
    # `sowstream status` shows the owner and position of each partition, and open transactions.
    yield Grant("DLQ", "group", ("Describe",), group)
    if pipeline.derived_from:
        yield Grant("DLQ", "topic", ("Describe",), pipeline.source)
    if pipeline.has_state:
        yield Grant("DLQ", "topic", ("Describe",), pipeline.output("sow"))
    if not pipeline.derived_from:
        yield Grant("DLQ", "topic", ("Write",), pipeline.output("dlq"))
        yield Grant("DLQ", "topic", ("Write",), pipeline.source)
        yield Grant("DLQ", "transactional-id", ("Write",), letters_group)


def _of_healing(pipeline: Pipeline, group: str) -> Iterator[Grant]:
    """The rights of `sowstream topics heal`: to read all keys, send commands, and see the progress of the workers."""
    yield Grant("DLQ", "topic", ("Read",), pipeline.output("sow"))
    yield Grant("DLQ", "transactional-id", ("Write",), f"{group}.heal")


def _of_settling(pipeline: Pipeline, group: str) -> Iterator[Grant]:
    """The rights to see the writers of a family's topics, and the progress of its workers."""
    for role in pipeline.roles:
        yield Grant("SETTLER", "topic", ("Read",), pipeline.output(role))
    yield Grant("SETTLER", "group", ("Describe",), group)
    yield Grant("SETTLER", "transactional-id", ("Describe",), f"{group}.", is_prefix=True)


def _of_coordinators(config: Config) -> Iterator[Grant]:
    """The rights to read a coordinator's decisions, and to write a marker: Kafka requires `Alter` for that."""
    for topic in (TRANSACTION_STATE, GROUP_OFFSETS):
        yield Grant("SETTLER", "topic", ("Read",), topic)
    yield Grant("SETTLER", "group", ("Describe",), f"{config.group_prefix}.client.", is_prefix=True)
    yield Grant("SETTLER", "cluster", ("Alter",), "")


def rights_of(all_grants: Iterable[Grant], users: Mapping[Who, Collection[str]]) -> list[Right]:
    """The rights as ACLs of users; those of a role without users are left out.

    Args:
        all_grants: the rights of all roles.
        users: the names of the users of each role; one with a colon is a principal of another type than `User`.
    """
    return [
        Right(user if ":" in user else f"User:{user}", grant.kind, grant.name, grant.is_prefix, operation)
        for grant in all_grants
        for user in users.get(grant.who, ())
        for operation in grant.operations
    ]


def commands(all_grants: Iterable[Grant], bootstrap: str) -> list[str]:
    """The commands that grant these rights; rights with the same principal and operations share a command."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for grant in all_grants:
        operations = " ".join(f"--operation {operation}" for operation in grant.operations)
        pattern = " --resource-pattern-type prefixed" if grant.is_prefix else ""
        names = alike.setdefault((grant.who, grant.kind, operations, pattern), [])
        if (name := f"--{grant.kind} {grant.name}".rstrip()) not in names:
            names.append(name)
    return [
        f'kafka-acls --bootstrap-server {bootstrap} --add --allow-principal "User:${{{who}:?}}" {operations}{pattern} '
        + " ".join(names)
        for (who, _, operations, pattern), names in sorted(alike.items())
    ]


def topic_objects(specs: Iterable[TopicSpec], cluster: str) -> list[dict[str, Any]]:
    """A KafkaTopic for each topic.

    Args:
        specs: the topics as they should be.
        cluster: the name of the Kafka object, in the namespace of these.
    """
    return [
        {
            "apiVersion": API,
            "kind": "KafkaTopic",
            "metadata": {"name": object_name(spec.name), "labels": {"strimzi.io/cluster": cluster}},
            "spec": {
                "topicName": spec.name,
                "partitions": spec.partitions,
                "replicas": copies(BROKERS),
                "config": dict(spec.config),
            },
        }
        for spec in durable({spec.name: spec for spec in specs}.values(), BROKERS)
    ]


def user_objects(grants: Iterable[Grant], cluster: str, group_prefix: str) -> list[dict[str, Any]]:
    """A KafkaUser for each role, whose password the operator makes and keeps in a Secret of its name.

    Args:
        grants: the rights of all roles.
        cluster: as `topic_objects`.
        group_prefix: the first part of the users' names, which no other installation on the cluster has.
    """
    of_role: dict[str, dict[tuple[str, str, bool], list[str]]] = {}
    for grant in grants:
        operations = of_role.setdefault(grant.who, {}).setdefault((grant.kind, grant.name, grant.is_prefix), [])
        operations += [each for each in grant.operations if each not in operations]
    return [
        {
            "apiVersion": API,
            "kind": "KafkaUser",
            "metadata": {
                "name": object_name(f"{group_prefix}-{role.lower()}"),
                "labels": {"strimzi.io/cluster": cluster},
            },
            "spec": {
                "authentication": {"type": "scram-sha-512"},
                "authorization": {
                    "type": "simple",
                    "acls": [
                        {"resource": _resource(*resource), "operations": sorted(operations)}
                        for resource, operations in sorted(rights.items())
                    ],
                },
            },
        }
        for role, rights in sorted(of_role.items())
    ]


def object_name(name: str) -> str:
    """A name in Kubernetes: as it is if it may be one, else in small letters, with a checksum that tells it apart."""
    labels = (re.sub(r"[^a-z0-9-]+", "-", label).strip("-") for label in name.lower().split("."))
    plain = ".".join(filter(None, labels))
    if plain == name and len(name) <= _NAME_MAX:
        return name
    checksum = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: _NAME_MAX - 9].rstrip('-.')}-{checksum}".lstrip("-")


def _resource(kind: str, name: str, is_prefix: bool) -> dict[str, str]:
    if kind == "cluster":
        return {"type": "cluster"}
    return {"type": _KINDS.get(kind, kind), "name": name, "patternType": "prefix" if is_prefix else "literal"}
