"""The steps that rebuild a family derived from another one's topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from processor.config.kafka_names import KafkaNames
    from processor.topics.family import TopicSpec


def rebuild_steps(family: str, source: str, names: KafkaNames) -> str:
    """The steps that rebuild a family from its input; only dead letters are lost by it.

    Args:
        family: the family, such as `orders_5s`.
        source: the Kafka topic that it is derived from, such as `orders.sow`.
        names: the Kafka names of all families.
    """
    dead_letters, topics = names.topic(family, "dlq"), names.family_text(family)
    return (
        f"make {family} anew: (1) stop its workers; (2) save what is still needed of {dead_letters}, and delete all "
        f"topics {topics}; (3) sowstream topics apply; (4) sowstream offsets adopt {family} --from earliest --yes: "
        f"{source} is read from its beginning; (5) start its workers, and its subscribers anew"
    )


def dependent_rebuild_steps(spec: TopicSpec) -> str:
    """The steps that rebuild all families derived from a topic that has lost its records; empty if there are none."""
    return "".join(f"; then {rebuild_steps(family, spec.name, spec.names)}" for family in spec.derived_families)
