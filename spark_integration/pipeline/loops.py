"""Refuses a pipeline whose jobs feed themselves: a topic that is published from its own records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from processor.config import Config
from processor.errors import ConfigurationError


def refuse_loops(topics: Config, jobs: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> None:
    """Make sure that no topic is computed from itself, over any number of jobs and copies.

    Args:
        topics: the settings of the topics; a copy is computed from its underlying topic.
        jobs: by name, the topics that a job reads and those to which it publishes.

    Raises:
        ConfigurationError: a topic is; the message has the way.
    """
    ways: dict[str, list[tuple[str, str]]] = {}
    for name, (sources, targets) in jobs.items():
        for source in sources:
            ways.setdefault(source, []).extend((target, name) for target in targets)
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
