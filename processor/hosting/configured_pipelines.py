"""The pipelines of the settings: from their sections to processors and topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.config.suggestions import explain, unknown_name
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline, check_settings, family_of
from processor.hosting.plugins import installed, plugin_of
from processor.hosting.stages import outlets_of, view_pipelines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel

    from processor.api import Processor
    from processor.config import Config, TopicConfig
    from processor.topics.family import TopicSpec


def pipelines(config: Config, names: Iterable[str]) -> list[Pipeline]:
    """Return the pipelines of these names, or all that are configured if there are no names.

    Raises:
        ConfigurationError: a name or a plug-in is unknown, or its settings do not fit.
    """
    known = [*config.names]
    chosen = list(names) or known
    plugins = installed()
    _check_own_outputs(config, known, plugins)
    result = []
    for name in chosen:
        if name in config.stages:
            view = name.partition(".")[0]
            result += [stage for stage in view_pipelines(config, view, plugins) if stage.name == name]
            continue
        if name not in known:
            raise ConfigurationError(unknown_name("topic", name, known))
        if name in config.views:
            result += view_pipelines(config, name, plugins)
        else:
            result.append(_pipeline(config, name, plugins))
    return result


def pipeline_of(config: Config, name: str) -> Pipeline:
    """Return the pipeline that writes the topics of a family; of a view its last stage.

    Raises:
        ConfigurationError: as `pipelines`.
    """
    return pipelines(config, [name])[-1]


def specs(config: Config, names: Iterable[str] = ()) -> list[TopicSpec]:
    """Return every topic that these pipelines need, as it should be.

    Raises:
        ConfigurationError: the settings cannot be used: topics are not made for them.
    """
    chosen = pipelines(config, names)
    check_settings(chosen)
    return [spec for pipeline in chosen for spec in family_of(pipeline)]


def _check_own_outputs(config: Config, families: Iterable[str], plugins: Mapping[str, type[Processor]]) -> None:
    """Refuse a plug-in's own output whose Kafka topic would be another family's.

    Raises:
        ConfigurationError: with both owners and the name.
    """
    from processor.hosting.declaration import is_own_output  # noqa: PLC0415 - needs pydantic

    own_outputs = {
        name: [
            role
            for role in (
                plugins[section.use].input.role,
                *(output.role for output in plugins[section.use].outputs if not output.downstream),
            )
            if is_own_output(role)
        ]
        for name, section in config.processors.items()
        if section.use in plugins
    }
    try:
        config.kafka_names.check(families, own_outputs)
    except ValueError as error:
        raise ConfigurationError(f"processors: {error}") from None


def _pipeline(config: Config, name: str, plugins: Mapping[str, type[Processor]]) -> Pipeline:
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
    processor_type = plugin_of(plugins, plugin, name)
    return Pipeline.of(
        processor_type,
        section,
        name=name,
        topic=topic,
        underlying=underlying,
        names=config.kafka_names,
        queues=config.queues_over(name),
        outlets=outlets_of(config, name, processor_type, plugins),
        successor=config.successor(name),
    )


def _third_party(
    config: Config, name: str, plugins: Mapping[str, type[Processor]]
) -> tuple[str, str | None, BaseModel, TopicConfig]:
    """Read a `processors` section: the plug-in's name, the underlying family, the validated settings, the topic."""
    from pydantic import ValidationError  # noqa: PLC0415 - only here

    section = config.processors[name]
    settings: BaseModel = section
    if (processor_type := plugins.get(section.use)) is not None:
        if processor_type.input.from_underlying is (section.underlying is None):
            needs = "needs" if processor_type.input.from_underlying else "has no use for"
            raise ConfigurationError(f"processors.{name}: {section.use} {needs} an `underlying`")
        if section.underlying is not None and processor_type.input.role == "sow" and not config.topic(name).sow:
            raise ConfigurationError(f"processors.{name}: {section.underlying!r} keeps no records to read (sow: false)")
        if (
            section.underlying is not None
            and config.topic(name).partitions != config.topic(section.underlying).partitions
        ):
            count = config.topic(section.underlying).partitions
            raise ConfigurationError(
                f"processors.{name}.topic.partitions: its output goes to the partition number of its input, and "
                f"{section.underlying!r} has {count}; write {count}, or repartition to another processor (`into`)"
            )
        try:
            settings = processor_type.settings_type.model_validate(section.settings)
        except ValidationError as error:
            wrong = explain(error, processor_type.settings_type, f"processors.{name}.settings")
            raise ConfigurationError(f"settings that cannot be used:\n{wrong}") from None
    return section.use, section.underlying, settings, config.topic(name)
