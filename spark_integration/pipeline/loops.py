"""Refuses a pipeline whose jobs feed themselves: a topic that is published from its own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from processor.config import Config
from processor.config.kafka_names import Role
from processor.errors import ConfigurationError


class Flow(NamedTuple):
    """The topics between which a job moves records."""

    sources: Sequence[str]
    """The topics that it reads."""
    kafka_sources: Sequence[str]
    """The Kafka topics that it reads by their own names, perhaps of no topic of the settings."""
    targets: Sequence[str]
    """The topics to which it publishes."""


def refuse_loops(topics: Config, jobs: Mapping[str, Flow]) -> None:
    """Make sure that no topic is computed from itself, over any number of jobs, copies and views.

    Args:
        topics: the settings of the topics; a copy is computed from its underlying topic, a view from its inputs.
        jobs: by name, the topics of a job.

    Raises:
        ConfigurationError: a topic is; the message has the way.
    """
    ways: dict[str, list[tuple[str, str]]] = {}
    owners = {topics.kafka_names.topic(name, role): name for name in topics.names for role in get_args(Role)}
    for name, flow in jobs.items():
        for source in (*flow.sources, *(owners[kafka] for kafka in flow.kafka_sources if kafka in owners)):
            ways.setdefault(source, []).extend((target, name) for target in flow.targets)
    for name, view in topics.views.items():
        for source in view.inputs:
            ways.setdefault(source, []).append((name, ""))
    for copy in (*topics.conflated, *topics.processors):
        underlying = topics.underlying(copy)
        if underlying is not None:
            ways.setdefault(underlying, []).append((copy, ""))
    for topic in ways:
        way = _way(topic, topic, ways, [topic], set())
        if way is not None:
            raise ConfigurationError(
                f"the jobs go in a circle: {' → '.join(way)}; each change of {topic} would cause the next one: publish "
                "to another topic"
            )


def _way(
    topic: str, goal: str, ways: Mapping[str, list[tuple[str, str]]], path: list[str], seen: set[str]
) -> list[str] | None:
    """The steps from a topic to the goal; None if there are none."""
    for target, job in ways.get(topic, ()):
        step = [*path, f"({job})", target] if job else [*path, target]
        if target == goal:
            return step
        if target not in seen:
            seen.add(target)
            if (way := _way(target, goal, ways, step, seen)) is not None:
                return way
    return None
