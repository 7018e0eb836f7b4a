"""The section `queues` of the settings (queues.md)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from processor.config import Config
from processor.errors import ConfigurationError
from processor.hosting.configured_pipelines import pipelines, specs
from processor.hosting.pipeline import needed


def config(**queue: Any) -> Config:
    """Settings with a queue over `orders`."""
    return Config.model_validate(
        {
            "topics": {"orders": {"partitions": 3}, "ticks": {"sow": False}},
            "conflated": {"slow": {"underlying": "orders"}},
            "queues": {"jobs": {"underlying": "orders", **queue}},
        }
    )


def test_a_queue_has_two_topics_next_to_those_of_its_underlying():
    """The queue's topics have its underlying's partitions, are never compacted, and keep messages for `retention`."""
    by_name = {spec.name: spec for spec in specs(config(retention="60h", config={"segment.ms": "1000"}))}
    queue, letters = by_name["jobs.queue"], by_name["jobs.dlq"]
    assert (queue.partitions, letters.partitions) == (3, 3)
    assert queue.config["cleanup.policy"] == "delete"
    assert queue.config["retention.ms"] == str(60 * 3_600_000)
    assert letters.config["retention.ms"] == str(7 * 86_400_000)
    assert queue.config["segment.ms"] == "1000"
    [merge] = pipelines(config(), ["orders"])
    assert {"jobs.queue", "jobs.dlq"} <= {spec.name for spec in needed([merge])}


def test_the_kafka_names_of_a_queue_follow_prefix_and_mapping():
    """A queue's topics have the installation's prefix, unless they are mapped."""
    tree = Config.model_validate(
        {
            "topic_prefix": "acme.",
            "topics": {"orders": {}},
            "queues": {"jobs": {"underlying": "orders", "kafka_topics": {"queue": "legacy.work"}}},
        }
    )
    [merge] = pipelines(tree, ["orders"])
    assert (merge.output("jobs.queue"), merge.output("jobs.dlq")) == ("legacy.work", "acme.jobs.dlq")
    assert (merge.output("sow"), tree.share_group("jobs")) == ("acme.orders.sow", "acme.sowstream.jobs")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"underlying": "slow"}, "'slow' is none of `topics`"),
        ({"underlying": "order"}, r"queues.jobs.underlying: there is no topic 'order'; did you mean 'orders'"),
        ({"underlying": "ticks"}, r"merges no records \(sow: false\)"),
        ({"lease": "0.5s"}, "greater than or equal to 1"),
        ({"max_deliveries": 10}, "less than or equal to 9"),
        ({"kafka_topics": {"sow": "x"}}, "'queue' or 'dlq'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, problem):
    """A queue is over a topic that merges records, and its limits are those that Kafka can keep."""
    with pytest.raises(ValidationError, match=problem):
        config(**settings)


def test_a_name_stands_for_one_family():
    """A queue cannot have the name of a topic, and a subscription to a queue is told how to consume it."""
    with pytest.raises(ValidationError, match="'orders' is configured twice"):
        Config.model_validate({"topics": {"orders": {}}, "queues": {"orders": {"underlying": "orders"}}})
    with pytest.raises(ConfigurationError, match=r"'jobs' is a queue; .*sowstream queue take jobs"):
        config().root("jobs")
    with pytest.raises(ConfigurationError, match="jobs"):
        config().queue("job")
