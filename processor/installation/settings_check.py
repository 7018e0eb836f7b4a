"""Checks settings without Kafka: plug-ins, rules, filters, message types and schemas of every topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from processor.codec import codec_of
from processor.errors import ConfigurationError, Stop
from processor.installation.configured_pipelines import pipelines
from processor.queues.filler import check_queue
from processor.wire.topic_description import registry_subject

if TYPE_CHECKING:
    from processor.api import Codec
    from processor.config import Config
    from processor.hosting.pipeline import Pipeline


class SettingsReport(NamedTuple):
    """The result for one settings file."""

    problems: list[tuple[str, str]]
    """Each problem, with the topic of the settings that it belongs to; that is empty for those of all."""
    unchecked: list[tuple[str, str]]
    """Each check that needs more than the file, with its topic."""
    topics: list[str]
    """The topics of the settings that were checked."""


def check_offline(config: Config) -> SettingsReport:
    """Check all topics of the settings as a worker does before it starts, without a request to Kafka or a registry."""
    names = [*config.names]
    report = SettingsReport([], [], names)
    try:
        chosen = pipelines(config, [])
    except ConfigurationError as error:
        chosen = _usable(config, report)
        if not report.problems:  # The topics cannot be used together only.
            report.problems.append(("", str(error)))
    for pipeline in chosen:
        _check(config, pipeline, report)
    # The stages of a view are checked one by one, and share its definition.
    report.problems[:] = dict.fromkeys((topic.partition(".")[0], problem) for topic, problem in report.problems)
    return report


def registry_subject_of(config: Config, name: str) -> str | None:
    """The subject of the registry that has the schema of a topic's records; None if none has."""
    source = config.kafka_names.topic(name, "publish")
    return registry_subject(config.topic(name), source, has_registry=bool(config.schema_registry))


def _usable(config: Config, report: SettingsReport) -> list[Pipeline]:
    """The topics that have a pipeline, made one by one; each of the others is reported."""
    chosen, errors = [], {}
    for name in report.topics:
        try:
            chosen += pipelines(config, [name])
        except ConfigurationError as error:
            errors[name] = str(error)
    if not chosen and len(errors) > 1 and len(set(errors.values())) == 1:
        # Of all together, such as one Kafka name for two topics.
        report.problems.append(("", next(iter(errors.values()))))
    else:
        report.problems.extend((name, error.removeprefix(f"{name}: ")) for name, error in errors.items())
    return chosen


def _check(config: Config, pipeline: Pipeline, report: SettingsReport) -> None:
    codec: Codec | None = None
    name, source = pipeline.name, pipeline.underlying or pipeline.name
    subject = registry_subject_of(config, source)
    if subject is not None:
        report.unchecked.append((name, f"the schema registry has subject {subject}; `sowstream doctor` checks it"))
    else:
        try:
            codec = codec_of(config, source)
        except Stop as error:
            report.problems.append((name, str(error).removeprefix(f"{name}: ")))
            return
    try:
        pipeline.processor_type.check(name, pipeline.settings, codec)
    except Stop as error:
        report.problems.append((name, str(error).removeprefix(f"{name}: ")))
    for queue, settings in pipeline.queues:
        try:
            check_queue(queue, settings, codec)
        except Stop as error:
            report.problems.append((queue, str(error)))
