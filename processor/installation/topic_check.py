"""Checks topics on the cluster: those of pipelines before anything starts, and the control topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from processor.errors import ConfigurationError, Stop
from processor.hosting.pipeline import needed
from processor.installation.control_topic import ControlTopic
from processor.installation.directory_comparison import check_at_start
from processor.kafka.admin.admin import Admin
from processor.topics import Problem, control_problems, problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.config import Config
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.admin.connection import Cluster
    from processor.topics.family import TopicSpec


log = structlog.stdlib.get_logger("sowstream.topics")


def problems_of(admin: Admin, wanted: Sequence[TopicSpec], cluster: Cluster | None = None) -> list[Problem]:
    """Return the problems of the topics of a cluster.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    cluster = cluster or admin.cluster()
    # Asked by name: the list of all topics lacks those that this user has no right to see.
    topics = admin.describe_topics([spec.name for spec in wanted], shows_hidden=True)
    return problems(wanted, topics, brokers=len(cluster.brokers))


def check_topics(config: Config, chosen: Sequence[Pipeline]) -> None:
    """Refuse topics that would break a promise, or that the topic directory describes otherwise.

    Lesser problems are logged as warnings.

    Raises:
        ConfigurationError: with each problem and its remedy.
    """
    admin = Admin(config.kafka, config.connect_timeout_s, awaits_names=True)
    cluster = admin.cluster()
    all_problems = problems_of(admin, needed(chosen), cluster)
    all_problems += check_at_start(config, admin, [pipeline.name for pipeline in chosen])
    if refused := log_warnings(all_problems, "topic at risk"):
        raise ConfigurationError(f"topics that cannot be used:\n{refused}")


def log_warnings(topic_problems: Iterable[Problem], event: str) -> str:
    """Log the problems that are warnings; return those that are refused, a line for each, for an error."""
    refused = []
    for problem in topic_problems:
        if problem.severity == "warn":
            log.warning(event, topic=problem.topic, what=problem.what, to_do=problem.to_do)
        else:
            refused.append(f"  {problem}")
    return "\n".join(refused)


def control_report(config: Config, admin: Admin, cluster: Cluster) -> list[Problem]:
    """The problems of the control topic on a cluster; workers run in spite of them."""
    control = ControlTopic(config.kafka, admin, prefix=config.topic_prefix)
    try:
        actual = control.describe()
    except Stop as error:
        what = f"cannot be looked at: {error}"
        return [Problem("warn", control.topic, what, "sowstream topics apply --acls prints who needs which rights")]
    return control_problems(control.spec, actual, brokers=len(cluster.brokers))
