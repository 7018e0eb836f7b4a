"""The stages of views, and the topics through which processors pass records to others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.config.view import JOIN, SPLIT
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Outlet, Pipeline
from processor.hosting.plugins import plugin_of
from processor.wire.ack import MOVED_ACKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.api import Processor
    from processor.config import Config


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
        first = "view_partial_aggregate" if view.partial_aggregation else "view_split"
        stages[f"{name}.{SPLIT}"] = (first, view.underlying, {"parts": rows})
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
