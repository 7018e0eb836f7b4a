"""The pipelines of the settings: from their sections to processors, topics and the stages of views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.codec import check_options
from processor.config.derived_topics import JOIN, SPLIT
from processor.config.suggestions import validated
from processor.errors import ConfigurationError, unknown_name
from processor.hosting.pipeline import Outlet, Pipeline, check_settings, family_of
from processor.hosting.plugins import installed, plugin_of
from processor.wire.ack import MOVED_ACKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel

    from processor.api import Processor
    from processor.config import Config, TopicConfig, ViewConfig
    from processor.topics.family import TopicSpec


def first_stage(view: ViewConfig) -> str:
    """Return the plug-in that reads the records of a view with groups."""
    return "view_partial_aggregate" if view.partial_aggregation else "view_split"


def view_pipelines(config: Config, name: str, plugins: Mapping[str, type[Processor]]) -> list[Pipeline]:
    """Make the pipelines of a view: its stages in the order in which records pass through them.

    ::

        projection      underlying.sow ─▶ name
        aggregate       underlying.sow ─▶ name.split ─▶ name.parts ─▶ name      (also with partial aggregation)
        join            underlying.sow ─▶ name.split ──▶ name.join.parts ─▶ name.join ─▶ name.parts ─▶ name
                        joined.sow ─────▶ name.split1 ─┘
        same_key,       underlying.sow ─▶ name.split ──▶ name.parts ─▶ name
        broadcast       joined.sow ─────▶ name.split1 ─┘
    """
    view = config.views[name]
    stages: dict[str, tuple[str, str | None, dict[str, str]]] = {}
    rows = f"{name}"
    if view.kind == "projection":
        stages[name] = ("view_projection", view.underlying, {})
    elif view.kind == "aggregate":
        stages[f"{name}.{SPLIT}"] = (first_stage(view), view.underlying, {"parts": rows})
        stages[name] = ("view_aggregate", None, {})
    else:
        joined = f"{name}.{JOIN}" if view.join_method == "repartition" else rows
        references = {} if view.join_method == "same_key" else {"references": joined}
        stages[f"{name}.{SPLIT}"] = ("view_left", view.underlying, references | {"parts": rows})
        for place, each in enumerate(view.join, 1):
            stages[f"{name}.{SPLIT}{place}"] = ("view_right", each.topic, {"parts": joined})
        if joined != rows:
            stages[joined] = ("view_join", None, {"answers": rows})
        stages[name] = ("view_rows", None, {})
    return [
        Pipeline.of(
            plugin_of(plugins, plugin, name),
            view,
            name=stage,
            topic=config.topic(stage),
            underlying=underlying,
            names=config.kafka_names,
            outlets={
                output: Outlet(config.kafka_names.topic(family, "parts"), config.topic(family).partitions)
                for output, family in outlets.items()
            },
        )
        for stage, (plugin, underlying, outlets) in stages.items()
    ]


def outlets_of(
    config: Config, name: str, processor_type: type[Processor], plugins: Mapping[str, type[Processor]]
) -> dict[str, Outlet]:
    """Return the topics of a plug-in's downstream outputs: the inputs of the processors that `into` names.

    A topic that has taken the place of another one answers publishers on the ack topic where they wait.

    Raises:
        ConfigurationError: an output has no reader, or a reader has no input of its own name.
    """
    if name in config.topics:
        return _moved_acks(config, config.topics[name].moved_from)
    declared = [output.role for output in processor_type.outputs if output.downstream]
    into = config.processors[name].into if name in config.processors else {}
    if set(declared) != set(into):
        raise ConfigurationError(
            f"processors.{name}.into: {', '.join(into) or 'no output'} where the plug-in has "
            f"{', '.join(declared) or 'no downstream output'}; name the processor that reads each"
        )
    outlets = {}
    for output, reader in into.items():
        reader_type = plugin_of(plugins, config.processors[reader].use, reader)
        if not reader_type.keeps_table:
            raise ConfigurationError(f"processors.{name}.into.{output}: {reader!r} has no input of a name of its own")
        topic = config.kafka_names.topic(reader, reader_type.input.role)
        outlets[output] = Outlet(topic, config.topic(reader).partitions)
    return outlets


def _moved_acks(config: Config, former: str | None) -> dict[str, Outlet]:
    if former is None:
        return {}
    return {MOVED_ACKS: Outlet(config.kafka_names.topic(former, "ack"), config.topic(former).partitions)}


def pipelines(config: Config, names: Iterable[str]) -> list[Pipeline]:
    """Return the pipelines of these names, or all that are configured if there are no names.

    Raises:
        ConfigurationError: a name or a plug-in is unknown, or its settings do not fit.
    """
    configured = [*config.names]
    chosen = list(names) or configured
    plugins = installed()
    _check_own_outputs(config, configured, plugins)
    result = []
    for name in chosen:
        if name in config.stages:
            view = name.partition(".")[0]
            result += [stage for stage in view_pipelines(config, view, plugins) if stage.name == name]
            continue
        if name not in configured:
            raise ConfigurationError(unknown_name("topic", name, configured))
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
    from processor.hosting.plugins import is_own_output  # noqa: PLC0415 - needs pydantic

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
    if underlying is None:
        check_options(name, topic)
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
        settings = validated(processor_type.settings_type, section.settings, f"processors.{name}.settings")
    return section.use, section.underlying, settings, config.topic(name)
