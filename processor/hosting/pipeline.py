"""A pipeline: one processor between its input topic and its output topics, and the topics that it needs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.config.kafka_names import KafkaNames
from processor.errors import Stop
from processor.queues.filler import check_queue
from processor.topics import grown
from processor.topics.family import TopicSpec, family_specs, queue_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic import BaseModel

    from processor.api import Codec, Context, Processor
    from processor.config import QueueConfig, TopicConfig


GROWS_WITH_INPUT: Final = ("publish", "mark", "ack", "dlq")
"""The roles whose topics have a partition for each of the input, also of a topic that has moved to another one."""


class Outlet(NamedTuple):
    """The topic of a downstream output: the input of another pipeline."""

    topic: str
    """The Kafka topic."""
    partitions: int
    """Its number of partitions."""


class Pipeline(NamedTuple):
    """One processor between its input topic and its family of output topics."""

    name: str
    """The family of its outputs, and the last part of its consumer group."""
    processor_type: type[Processor]
    """The plug-in; one instance for each partition."""
    settings: BaseModel
    """The section of the settings, validated by the plug-in's settings model."""
    topic: TopicConfig
    """The settings of the records: key fields, policies, limits."""
    source: str
    """The Kafka topic it reads."""
    roles: tuple[str, ...]
    """The topics of its own family: its input where that is its own, its outputs, and the dead-letter topic."""
    repartitioned: frozenset[str]
    """Outputs whose partition the key's hash chooses."""
    underlying: str | None = None
    """The family it reads, if that is another one."""
    names: KafkaNames = KafkaNames()
    """The Kafka names of all families."""
    queues: tuple[tuple[str, QueueConfig], ...] = ()
    """The queues that it fills with its SOW records, each a family of its own, by name."""
    outlets: Mapping[str, Outlet] = MappingProxyType({})
    """The topics of its downstream outputs, by output."""
    successor: str | None = None
    """The topic that takes its place, where the settings name one: its input may then have grown."""

    @classmethod
    def of(
        cls,
        processor_type: type[Processor],
        settings: BaseModel,
        *,
        name: str,
        topic: TopicConfig,
        underlying: str | None = None,
        names: KafkaNames | None = None,
        queues: tuple[tuple[str, QueueConfig], ...] = (),
        outlets: Mapping[str, Outlet] | None = None,
        successor: str | None = None,
    ) -> Pipeline:
        """Create the pipeline of a plug-in, with the topics that it declares.

        Args:
            processor_type: the plug-in.
            settings: its settings.
            name: the family of its outputs.
            topic: the settings of the records.
            underlying: the family it reads, if that is another one.
            names: the Kafka names of all families; None: those without a prefix.
            queues: the queues over the SOW topic.
            outlets: the topics of its downstream outputs; None: it has none.
            successor: the topic that takes its place; None: none does.
        """
        names = names or KafkaNames()
        role, from_underlying = processor_type.input
        own_input: tuple[str, ...] = () if from_underlying else (role,)
        outputs = tuple(output.role for output in processor_type.outputs if not output.downstream)
        # Beside a SOW topic there are marks in any case: the input position is one.
        position: tuple[str, ...] = ("mark",) if "sow" in outputs else ()
        fed = [output for queue, _ in queues for output in queue_outputs(queue)]
        return cls(
            name=name,
            processor_type=processor_type,
            settings=settings,
            topic=topic,
            source=names.topic(underlying or name, role),
            roles=tuple(dict.fromkeys((*own_input, *outputs, *position, *fed, "dlq"))),
            repartitioned=frozenset(output.role for output in processor_type.outputs if output.repartition),
            underlying=underlying,
            names=names,
            queues=queues,
            outlets=MappingProxyType(dict(outlets or {})),
            successor=successor,
        )

    @property
    def derived_from(self) -> str:
        """The other family's topic that it derives its own from; empty where it reads its own."""
        return self.source if self.processor_type.input.from_underlying else ""

    @property
    def has_state(self) -> bool:
        """True if the plug-in keeps records: those of its output of role `sow`."""
        return any(output.role == "sow" for output in self.processor_type.outputs)

    @property
    def has_marks(self) -> bool:
        """True if the plug-in keeps marks of its own."""
        return any(output.role == "mark" for output in self.processor_type.outputs)

    @property
    def has_table(self) -> bool:
        """True if the plug-in keeps a table of its input."""
        return self.processor_type.keeps_table

    @property
    def keeps_position(self) -> bool:
        """True if the mark topic has the input position."""
        return "mark" in self.roles

    def output(self, role: str) -> str:
        """Return the Kafka topic of an output; that of a queue is `<queue>.<role>`."""
        if role in self.outlets:
            return self.outlets[role].topic
        queue, _, own_role = role.rpartition(".")
        return self.names.topic(queue or self.name, own_role)

    def begin(self, processor: Processor, context: Context) -> None:
        """Begin a partition with an instance of the plug-in."""
        from processor.api import RecordProcessor  # noqa: PLC0415 - needs pydantic, and Spark makes no instances here

        if isinstance(processor, RecordProcessor):
            processor.bind(context, self.settings)  # Whether or not an `init` of its own calls that of its base.
        processor.init(context, self.settings)


def family_of(pipeline: Pipeline) -> list[TopicSpec]:
    """Return the topics of a pipeline's own family, as they should be."""
    family = _specs(pipeline, pipeline.name, [role for role in pipeline.roles if "." not in role])
    own = [
        spec._replace(
            derived_from=pipeline.derived_from,
            is_optional=spec.role == "mark" and not pipeline.has_marks,
            may_have_grown=pipeline.successor is not None and spec.role in GROWS_WITH_INPUT,
        )
        for spec in family
    ]
    return [*own, *(spec for name, queue in pipeline.queues for spec in _queue_specs(pipeline, name, queue))]


def _queue_specs(pipeline: Pipeline, name: str, queue: QueueConfig) -> list[TopicSpec]:
    """Return the topics of a queue: its messages, kept for their retention, and its dead letters."""
    return [
        spec
        for role, kept in (("queue", {"retention.ms": str(round(queue.retention * 1000))}), ("dlq", {}))
        for spec in family_specs(
            name,
            (role,),
            partitions=pipeline.topic.partitions,
            settings={**kept, **queue.config},
            allows=pipeline.topic.allows,
            max_record_bytes=pipeline.topic.max_record_bytes,
            names=pipeline.names,
        )
    ]


def _specs(pipeline: Pipeline, family: str, roles: Iterable[str]) -> list[TopicSpec]:
    """Return topics of a family that a pipeline reads or writes: the settings of the records are the same."""
    topic = pipeline.topic
    return family_specs(
        family,
        roles,
        partitions=topic.partitions,
        settings=topic.config,
        allows=topic.allows,
        max_record_bytes=topic.max_record_bytes,
        names=pipeline.names,
        compacted=[pipeline.processor_type.input.role] if pipeline.has_table else (),
    )


def needed(chosen: Iterable[Pipeline]) -> list[TopicSpec]:
    """Return every topic that these pipelines read or write, as it should be, each once."""
    wanted: dict[str, TopicSpec] = {}
    for pipeline in chosen:
        for spec in (*family_of(pipeline), source_spec(pipeline)):
            first = wanted.setdefault(spec.name, spec)
            # Of a topic that one reads and another writes each knows a part.
            wanted[spec.name] = first._replace(
                may_have_grown=first.may_have_grown or spec.may_have_grown,
                derived_from=first.derived_from or spec.derived_from,
                derived_families=tuple(dict.fromkeys((*first.derived_families, *spec.derived_families))),
            )
    return list(wanted.values())


def check_settings(chosen: Iterable[Pipeline], codec_for: Callable[[str], Codec] | None = None) -> None:
    """Refuse settings with which no partition could begin, before anything starts.

    Args:
        chosen: the pipelines that are about to run.
        codec_for: makes the message type of the topic whose records are read; None: checks that need it are skipped,
            as making it may need a schema registry.

    Raises:
        ConfigurationError: a plug-in is unknown, or refuses its settings.
    """
    for pipeline in chosen:
        codec = None if codec_for is None else codec_for(pipeline.underlying or pipeline.name)
        pipeline.processor_type.check(pipeline.name, pipeline.settings, codec)
        for queue, settings in pipeline.queues:
            check_queue(queue, settings, codec)


def source_spec(pipeline: Pipeline) -> TopicSpec:
    """Return the topic that a pipeline reads, as it should be; it may be another family's."""
    (spec,) = _specs(pipeline, pipeline.underlying or pipeline.name, (pipeline.processor_type.input.role,))
    if pipeline.derived_from:
        return spec._replace(derived_families=(pipeline.name,))
    return spec._replace(may_have_grown=pipeline.successor is not None)


def refuse_grown(pipeline: Pipeline, partitions: Sequence[int]) -> None:
    """Refuse partitions beyond those of the settings: the group may assign new ones before the topic monitor sees them.

    Raises:
        Stop: a partition is beyond them.
    """
    least = max(partitions, default=-1) + 1
    if least > pipeline.topic.partitions:
        raise Stop(f"topics changed while the worker ran:\n  {grown(source_spec(pipeline), least)}")
