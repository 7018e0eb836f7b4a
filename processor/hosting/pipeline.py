"""Pipelines: from the sections of the settings to processors and their topics."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ValidationError

from processor.api import Processor, RecordProcessor
from processor.config.kafka_names import KafkaNames
from processor.config.suggestions import explain, unknown_name
from processor.entry_points import load_installed
from processor.errors import ConfigurationError
from processor.hosting.declaration import check_declaration, is_own_output
from processor.topics.family import TopicSpec, family_specs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.api import Codec, Context
    from processor.config import Config, TopicConfig

GROUP = "sowstream.processors"


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
    ) -> Pipeline:
        """Create the pipeline of a plug-in, with the topics that it declares.

        Args:
            processor_type: the plug-in.
            settings: its settings.
            name: the family of its outputs.
            topic: the settings of the records.
            underlying: the family it reads, if that is another one.
            names: the Kafka names of all families; None: those without a prefix.
        """
        names = names or KafkaNames()
        role, from_underlying = processor_type.input
        own_input: tuple[str, ...] = () if from_underlying else (role,)
        outputs = tuple(output.role for output in processor_type.outputs)
        # Beside a SOW topic there are marks in any case: the input position is one.
        position: tuple[str, ...] = ("mark",) if "sow" in outputs else ()
        return cls(
            name=name,
            processor_type=processor_type,
            settings=settings,
            topic=topic,
            source=names.topic(underlying or name, role),
            roles=tuple(dict.fromkeys((*own_input, *outputs, *position, "dlq"))),
            repartitioned=frozenset(output.role for output in processor_type.outputs if output.repartition),
            underlying=underlying,
            names=names,
        )

    @property
    def derived_from(self) -> str:
        """The other family's topic that it derives its own from; empty where it reads its own."""
        return self.source if self.processor_type.input.from_underlying else ""

    @property
    def has_state(self) -> bool:
        """Whether the plug-in keeps records: those of its output of role `sow`."""
        return any(output.role == "sow" for output in self.processor_type.outputs)

    @property
    def has_marks(self) -> bool:
        """Whether the plug-in keeps marks of its own."""
        return any(output.role == "mark" for output in self.processor_type.outputs)

    @property
    def keeps_position(self) -> bool:
        """Whether the mark topic has the input position."""
        return "mark" in self.roles

    def without_position(self) -> Pipeline:
        """Return the pipeline without a mark topic, as in an installation that was made before it was needed."""
        return self._replace(roles=tuple(role for role in self.roles if role != "mark"))

    def output(self, role: str) -> str:
        """Return the Kafka topic of an output."""
        return self.names.topic(self.name, role)

    def begin(self, context: Context) -> Processor:
        """Make an instance of the plug-in, and begin a partition with it."""
        processor = self.processor_type()
        if isinstance(processor, RecordProcessor):
            processor.bind(context, self.settings)  # Whether or not an `init` of its own calls that of its base.
        processor.init(context, self.settings)
        return processor


def installed() -> dict[str, type[Processor]]:
    """Load every processor that an installed package offers, by name.

    Raises:
        ConfigurationError: an entry point does not lead to a Processor, cannot be imported, or has a wrong declaration.
    """
    processors: dict[str, type[Processor]] = {}
    for entry_point in entry_points(group=GROUP):
        processor_type = load_installed(entry_point, "processor")
        check_declaration(processor_type, f"{entry_point.name!r} ({entry_point.value})")
        processors[entry_point.name] = processor_type
    return processors


def pipelines(config: Config, names: Iterable[str]) -> list[Pipeline]:
    """Return the pipelines of these names, or all that are configured if there are no names.

    Raises:
        ConfigurationError: a name or a plug-in is unknown, or its settings do not fit.
    """
    known = [*config.topics, *config.conflated, *config.processors]
    chosen = list(names) or known
    plugins = installed()
    _check_own_outputs(config, known, plugins)
    result = []
    for name in chosen:
        if name not in known:
            raise ConfigurationError(unknown_name("topic", name, known))
        result.append(_pipeline(config, name, plugins))
    return result


def _check_own_outputs(config: Config, families: Iterable[str], plugins: dict[str, type[Processor]]) -> None:
    """Refuse a plug-in's own output whose Kafka topic would be another family's.

    Raises:
        ConfigurationError: with both owners and the name.
    """
    own_outputs = {
        name: [output.role for output in plugins[section.use].outputs if is_own_output(output.role)]
        for name, section in config.processors.items()
        if section.use in plugins
    }
    try:
        config.kafka_names.check(families, own_outputs)
    except ValueError as error:
        raise ConfigurationError(f"processors: {error}") from None


def specs(config: Config, names: Iterable[str] = ()) -> list[TopicSpec]:
    """Return every topic that these pipelines need, as it should be.

    Raises:
        ConfigurationError: the settings cannot be used: topics are not made for them.
    """
    chosen = pipelines(config, names)
    check_settings(chosen)
    return [spec for pipeline in chosen for spec in family_of(pipeline)]


def family_of(pipeline: Pipeline) -> list[TopicSpec]:
    """Return the topics of a pipeline's own family, as they should be."""
    family = _specs(pipeline, pipeline.name, pipeline.roles)
    return [
        spec._replace(derived_from=pipeline.derived_from, is_optional=spec.role == "mark" and not pipeline.has_marks)
        for spec in family
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
    )


def needed(chosen: Iterable[Pipeline]) -> list[TopicSpec]:
    """Return every topic that these pipelines read or write, as it should be, each once."""
    wanted: dict[str, TopicSpec] = {}
    for pipeline in chosen:
        for spec in (*family_of(pipeline), source_spec(pipeline)):
            known = wanted.setdefault(spec.name, spec)
            # Of a topic that one reads and another writes each knows a part.
            wanted[spec.name] = known._replace(
                derived_from=known.derived_from or spec.derived_from,
                derived_families=tuple(dict.fromkeys((*known.derived_families, *spec.derived_families))),
            )
    return list(wanted.values())


def check_settings(chosen: Iterable[Pipeline], codec_for: Callable[[str], Codec] | None = None) -> None:
    """Refuse settings with which no partition could begin, before anything starts.

    Args:
        chosen: the pipelines that are about to run.
        codec_for: makes the message type of a topic; None: checks that need it are skipped, as making it may need a
            schema registry.

    Raises:
        ConfigurationError: a plug-in is unknown, or refuses its settings.
    """
    for pipeline in chosen:
        codec = None if codec_for is None else codec_for(pipeline.name)
        pipeline.processor_type.check(pipeline.name, pipeline.settings, codec)


def source_spec(pipeline: Pipeline) -> TopicSpec:
    """Return the topic that a pipeline reads, as it should be; it may be another family's."""
    (spec,) = _specs(pipeline, pipeline.underlying or pipeline.name, (pipeline.processor_type.input.role,))
    return spec._replace(derived_families=(pipeline.name,)) if pipeline.derived_from else spec


def _pipeline(config: Config, name: str, plugins: dict[str, type[Processor]]) -> Pipeline:
    """Make the pipeline of one name, from the section that has it."""
    section: BaseModel
    underlying: str | None
    if name in config.topics:
        section = topic = config.topics[name]
        plugin, underlying = "delta_merge" if topic.sow else "pass_through", None
    elif name in config.conflated:
        plugin, underlying = "conflate", config.conflated[name].underlying
        section, topic = config.conflated[name], config.topic(name)
    else:
        plugin, underlying, section, topic = _third_party(config, name, plugins)
    processor_type = plugins.get(plugin)
    if processor_type is None:
        raise ConfigurationError(
            f"{name}: {unknown_name('processor', plugin, list(plugins))}; is its package installed?"
        )
    return Pipeline.of(processor_type, section, name=name, topic=topic, underlying=underlying, names=config.kafka_names)


def _third_party(
    config: Config, name: str, plugins: dict[str, type[Processor]]
) -> tuple[str, str | None, BaseModel, TopicConfig]:
    """Read a `processors` section: the plug-in's name, the underlying family, the validated settings, the topic."""
    section = config.processors[name]
    settings: BaseModel = section
    if (processor_type := plugins.get(section.use)) is not None:
        if processor_type.input.from_underlying is (section.underlying is None):
            needs = "needs" if processor_type.input.from_underlying else "has no use for"
            raise ConfigurationError(f"processors.{name}: {section.use} {needs} an `underlying`")
        if section.underlying is not None and processor_type.input.role == "sow" and not config.topic(name).sow:
            raise ConfigurationError(f"processors.{name}: {section.underlying!r} keeps no records to read (sow: false)")
        try:
            settings = processor_type.settings_type.model_validate(section.settings)
        except ValidationError as error:
            wrong = explain(error, processor_type.settings_type, f"processors.{name}.settings")
            raise ConfigurationError(f"settings that cannot be used:\n{wrong}") from None
    return section.use, section.underlying, settings, config.topic(name)
