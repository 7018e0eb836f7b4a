"""What has to be so before a streaming merge begins, and where it begins."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline, check_settings, family_of
from processor.hosting.topic_check import problems_of, tell

if TYPE_CHECKING:
    from spark_integration.merge.topic_family import Family
    from spark_integration.settings import TopicSettings

_EARLIEST: Final = -2  # As Spark's Kafka source says it.


def check(settings: TopicSettings, family: Family) -> None:
    """Refuse settings and topics that cannot be used, and topics that workers are at.

    Raises:
        ConfigurationError: with what to do.
        Stop: Kafka does not answer, or refuses.
    """
    pipeline = Pipeline.of(DeltaMerge, settings.topic, name=settings.name, topic=settings.topic, names=settings.names)
    check_settings([pipeline], lambda _: settings.codec())
    if refused := tell(problems_of(family.admin, family_of(pipeline)), "topic at risk"):
        raise ConfigurationError(f"topics that cannot be used:\n{refused}")
    family.refuse_members("both would write the same records")


def left_by_workers(settings: TopicSettings, family: Family) -> str:
    """Where the workers left the input, as Spark's source takes it; its beginning where they never were.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    partitions = settings.topic.partitions
    found = family.committed(partitions)
    return json.dumps({family.source: {str(number): found.get(number, _EARLIEST) for number in range(partitions)}})
