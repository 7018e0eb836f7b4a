"""Checks the broker and the topics on it."""

from __future__ import annotations

from collections.abc import Sequence

from processor.config import Config
from processor.doctor.finding import Finding
from processor.errors import ConfigurationError, Stop
from processor.kafka.admin import Admin, Cluster
from processor.runtime.pipeline import specs
from processor.topic_problems import FoundTopic, Problem, problems
from processor.topics import TopicSpec

_PATIENCE_S = 5.0


def problems_of(admin: Admin, wanted: Sequence[TopicSpec], cluster: Cluster | None = None) -> list[Problem]:
    """What is wrong with the topics of a cluster.

    Raises:
        Stop: Kafka does not answer, or refuses.
    """
    partitions = (cluster or admin.cluster()).topics
    configs = admin.topic_config([spec.name for spec in wanted if spec.name in partitions])
    return problems(wanted, {name: FoundTopic(partitions[name], config) for name, config in configs.items()})


def check_kafka(config: Config) -> list[Finding]:
    """Whether Kafka answers, and whether each topic of the settings is as it should be."""
    try:
        admin = Admin(config.kafka)
        cluster = admin.cluster(_PATIENCE_S)
        found = [Finding("ok", "broker", ", ".join(cluster.brokers))]
        wanted = specs(config)
        wrong = problems_of(admin, wanted, cluster)
    except ConfigurationError as error:
        return [Finding("fail", "kafka", str(error), "mend the settings")]
    except Stop as error:
        return [
            Finding("fail", "broker", str(error), "start Kafka (`sowstream broker start`), or name it: --bootstrap")
        ]
    found += [Finding("fail", problem.topic, problem.what, problem.to_do) for problem in wrong]
    if not wanted:
        found.append(Finding("warn", "topics", "the settings name none", "add a section `topics`, or name a file: -c"))
    elif not wrong:
        found.append(Finding("ok", "topics", f"{len(wanted)} are as they should be"))
    return found
