"""Which role needs which ACL on a secured cluster, as commands of Kafka's own tool: `sowstream topics apply --acls`.

What is not granted is denied, as long as the brokers have `allow.everyone.if.no.acl.found` off: so nobody publishes to
a conflated topic, for only its worker may write there. The table of deploy/README.md says the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from processor.kafka.transactions.transaction_log import GROUP_OFFSETS, TRANSACTION_STATE
from processor.topics.family import control_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline

Who = Literal["WORKER", "CONFLATER", "PUBLISHER", "SUBSCRIBER", "DLQ", "SETTLER"]
"""A shell variable with the name of a principal: `sowstream worker`, `sowstream conflate`, publishers, subscribers
(Spark among them), `sowstream dlq` with `sowstream topics heal`, and `sowstream transactions`."""

_WORKERS: Final[dict[str, tuple[str, ...]]] = {
    "publish": ("Read", "Write"),  # Records without a key are sent again with one.
    "sow": ("Read", "Write"),
    "mark": ("Read", "Write"),
    "delta": ("Write",),
    "ack": ("Write",),
    "dlq": ("Write",),
}


class Grant(NamedTuple):
    """One thing that a role may do; `Describe` comes with each."""

    who: Who
    """Who may do it."""
    kind: Literal["topic", "group", "transactional-id", "cluster"]
    """What it is done to."""
    operations: tuple[str, ...]
    """As Kafka names them."""
    name: str
    """The resource; of transactional ids the beginning. Empty for the cluster, of which there is one."""

    @property
    def is_prefix(self) -> bool:
        """Whether it holds for all names that begin so."""
        return self.name.endswith(".")


def grants(config: Config, pipelines: Iterable[Pipeline]) -> Iterator[Grant]:
    """All that is needed for these pipelines, by whoever has to do with them."""
    readers: tuple[Who, ...] = ("PUBLISHER", "SUBSCRIBER")
    for reader in readers:
        # Of acks, or of records: a reader joins no group, but librdkafka looks for the coordinator of its name.
        yield Grant(reader, "group", ("Describe",), f"{config.group_prefix}.client.")
    pipelines = list(pipelines)
    for pipeline in pipelines:
        name = pipeline.name
        group = f"{config.group_prefix}.{name}"
        who: Who = "CONFLATER" if name in config.conflated else "WORKER"
        yield from _of_family(config, pipeline, who)
        if pipeline.derived_from:
            yield Grant(who, "topic", ("Read", "DescribeConfigs"), pipeline.derived_from)
        yield Grant(who, "group", ("Read",), group)
        yield Grant(who, "transactional-id", ("Write",), f"{group}.")
        for role in pipeline.roles:
            if role == "publish":
                yield Grant("PUBLISHER", "topic", ("Write",), pipeline.output(role))
            elif role == "ack":
                yield Grant("PUBLISHER", "topic", ("Read",), pipeline.output(role))
            elif role == "sow":
                # A view that is kept asks how long deletes stay.
                yield Grant("SUBSCRIBER", "topic", ("Read", "DescribeConfigs"), pipeline.output(role))
            elif role == "delta" or role not in _WORKERS:
                yield Grant("SUBSCRIBER", "topic", ("Read",), pipeline.output(role))
        yield from _of_dead_letters(pipeline, f"{group}.dlq")
        yield from _of_settling(pipeline, group)
        if name in config.topics:
            yield from _of_healing(pipeline, group)
    if pipelines:
        yield from _of_coordinators(config)
    workers: set[Who] = {"CONFLATER" if pipeline.name in config.conflated else "WORKER" for pipeline in pipelines}
    for who in (*sorted(workers), *readers):
        # Workers compare their settings with it, and readers may have no other settings.
        yield Grant(who, "topic", ("Read",), config.kafka_names.directory)
        yield Grant(who, "group", ("Describe",), config.kafka_names.directory)
    control = control_topic(config.topic_prefix)
    for who in (*sorted(workers), "DLQ"):
        # Notices of what is held one way, orders to go on the other.
        yield Grant(who, "topic", ("Read", "Write"), control)
        yield Grant(who, "group", ("Describe",), control)


def _of_family(config: Config, pipeline: Pipeline, who: Who) -> Iterator[Grant]:
    """For the worker of a family: by prefix where the names begin with one of the installation's own.

    Without `topic_prefix`, somebody else's topics may begin as the family's do.
    """
    mapped = config.kafka_names.mapped.get(pipeline.name, {})
    roles = pipeline.roles
    if config.topic_prefix:
        roles = tuple(role for role in pipeline.roles if role in mapped)
        if len(roles) < len(pipeline.roles):
            beginning = f"{config.topic_prefix}{pipeline.name}."
            yield Grant(who, "topic", ("Read", "Write", "DescribeConfigs"), beginning)
    for role in roles:
        yield Grant(who, "topic", (*_WORKERS.get(role, ("Write",)), "DescribeConfigs"), pipeline.output(role))


def _of_dead_letters(pipeline: Pipeline, group: str) -> Iterator[Grant]:
    """For whoever looks at dead letters, and sends them back to where publishers write."""
    yield Grant("DLQ", "topic", ("Read", "DescribeConfigs"), pipeline.output("dlq"))
    yield Grant("DLQ", "group", ("Read",), group)
    # `sowstream status`: who has which partition, how far it is, and what an open transaction holds back.
    yield Grant("DLQ", "group", ("Describe",), group.removesuffix(".dlq"))
    if pipeline.derived_from:
        yield Grant("DLQ", "topic", ("Describe",), pipeline.source)
    if pipeline.has_state:
        yield Grant("DLQ", "topic", ("Describe",), pipeline.output("sow"))
    if not pipeline.derived_from:
        yield Grant("DLQ", "topic", ("Write",), pipeline.output("dlq"))
        yield Grant("DLQ", "topic", ("Write",), pipeline.source)
        yield Grant("DLQ", "transactional-id", ("Write",), group)


def _of_healing(pipeline: Pipeline, group: str) -> Iterator[Grant]:
    """The rights of `sowstream topics heal`: to read all keys, send commands, and see how far the workers are."""
    yield Grant("DLQ", "topic", ("Read",), pipeline.output("sow"))
    yield Grant("DLQ", "transactional-id", ("Write",), f"{group}.heal")


def _of_settling(pipeline: Pipeline, group: str) -> Iterator[Grant]:
    """To see who writes to the topics of a family, and how far its workers are."""
    for role in pipeline.roles:
        yield Grant("SETTLER", "topic", ("Read",), pipeline.output(role))
    yield Grant("SETTLER", "group", ("Describe",), group)
    yield Grant("SETTLER", "transactional-id", ("Describe",), f"{group}.")


def _of_coordinators(config: Config) -> Iterator[Grant]:
    """To read what was decided of transactions, and to write a marker: Kafka asks for no less than `Alter`."""
    for topic in (TRANSACTION_STATE, GROUP_OFFSETS):
        yield Grant("SETTLER", "topic", ("Read",), topic)
    yield Grant("SETTLER", "group", ("Describe",), f"{config.group_prefix}.client.")
    yield Grant("SETTLER", "cluster", ("Alter",), "")


def commands(wanted: Iterable[Grant], bootstrap: str) -> list[str]:
    """The commands that grant it, few of them: what is alike goes together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for grant in wanted:
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
