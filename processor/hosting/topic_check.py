"""Looks at the topics that pipelines need, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import ConfigurationError
from processor.hosting.pipeline import needed
from processor.kafka.admin.admin import Admin
from processor.shared_topics.directory import check_at_start
from processor.topics import Problem, problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.admin.admin import Cluster
    from processor.topics.family import TopicSpec

log = structlog.stdlib.get_logger("sowstream.topics")


def problems_of(admin: Admin, wanted: Sequence[TopicSpec], cluster: Cluster | None = None) -> list[Problem]:
    """What is wrong with the topics of a cluster.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    cluster = cluster or admin.cluster()
    found = admin.describe_topics([spec.name for spec in wanted if spec.name in cluster.topics])
    return problems(wanted, found, brokers=len(cluster.brokers))


def check_topics(config: Config, chosen: Sequence[Pipeline]) -> None:
    """Refuse topics that would break a promise, or that the topic directory describes otherwise.

    Lesser problems are logged as warnings.

    Raises:
        ConfigurationError: with what is wrong and what to do.
    """
    admin = Admin(config.kafka)
    cluster = admin.cluster()
    problems_found = problems_of(admin, needed(chosen), cluster)
    problems_found += check_at_start(config, admin, cluster, [pipeline.name for pipeline in chosen])
    if refused := tell(problems_found, "topic at risk"):
        raise ConfigurationError(f"topics that cannot be used:\n{refused}")


def tell(wrong: Iterable[Problem], event: str) -> str:
    """Log what is to be warned of; what is refused, a line for each, is returned for an error."""
    refused = []
    for problem in wrong:
        if problem.severity == "warn":
            log.warning(event, topic=problem.topic, what=problem.what, to_do=problem.to_do)
        else:
            refused.append(f"  {problem}")
    return "\n".join(refused)
