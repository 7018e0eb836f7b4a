"""The settings of views and queues: mistakes are refused, each with its remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from processor.config import Config
from processor.config.derived_topics import JoinConfig
from processor.errors import ConfigurationError
from processor.hosting.pipeline import needed
from processor.installation.configured_pipelines import pipelines, specs

FIELDS = {"/n": "COUNT(*)"}


def config(views: dict[str, Any], **sections: Any) -> Config:
    """Settings with two topics and these views."""
    topics = {"orders": {"partitions": 3}, "people": {}}
    return Config(**{"topics": topics, "views": views, **sections})


def test_rows_have_a_key_of_their_own() -> None:
    """The key fields of a view are its groups; a conflated topic over it has the same, and stages have the input's."""
    view = {"underlying": "orders", "group_by": {"/customer": "/who"}, "fields": FIELDS, "partitions": 5}
    tree = config({"v": view}, conflated={"slow": {"underlying": "v"}})
    assert tree.topic("v").key == tree.topic("slow").key == ("/who",)
    assert (tree.topic("v").partitions, tree.topic("v.split").partitions) == (5, 3)
    assert tree.root("slow") == "v"
    assert tree.underlying("v") == "orders"


def test_projection_has_the_key_of_its_underlying() -> None:
    """The key fields stay if the rows have them as they are; else the key is explicit."""
    same = config({"v": {"underlying": "orders", "fields": {"/id": "/id"}}})
    other = config({"v": {"underlying": "orders", "fields": {"/x": "/id"}}})
    assert same.topic("v").key_fields == ("/id",)
    assert other.topic("v").key_fields == ()


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ({"v": {"underlying": "order", "fields": FIELDS}}, r"views.v: there is no topic 'order'; did you mean"),
        (
            {"v": {"underlying": "w", "fields": FIELDS}, "w": {"underlying": "v", "fields": FIELDS}},
            "views go in a circle: v → w → v",
        ),
        (
            {"v": {"underlying": "orders", "fields": FIELDS, "join": [{"topic": "v", "on": {"/a": "/b"}}]}},
            "views go in a circle: v → v",
        ),
        ({"orders": {"underlying": "people", "fields": FIELDS}}, "configured twice"),
        ({"v": {"underlying": "orders", "fields": {"n": "1"}}}, "write /n"),
        ({"v": {"underlying": "orders", "fields": {"/a": "1", "/a/b": "2"}}}, "/a/b lies inside /a"),
        ({"v": {"underlying": "orders", "fields": {"/a/b": "1"}, "group_by": ["/a"]}}, "/a/b lies inside /a"),
        ({"v": {"underlying": "orders", "fields": FIELDS, "group_by": ["/a/b", "/a"]}}, "/a/b lies inside /a"),
        ({"v": {"underlying": "orders", "fields": FIELDS, "having": "/n > 1"}}, "having is for views with"),
        (
            {
                "v": {
                    "underlying": "orders", "fields": FIELDS, "group_by": ["/a"],
                    "join": [{"topic": "people", "on": {"/a": "/b"}}],
                }
            },
            "join and group_by in one view",
        ),
    ],
)  # fmt: skip
def test_wrong_views_are_refused(views: dict[str, Any], message: str) -> None:
    """Unknown topics, circles and contradictions are errors before anything starts."""
    with pytest.raises(ValidationError, match=message):
        config(views)


def test_join_by_the_keys_of_both_sides_takes_the_short_way() -> None:
    """A join whose `on` names the key fields of both topics has no stage between the splits and the rows."""
    fields = {"/id": "/id", "/name": "[people]./name"}
    short = {"underlying": "orders", "join": [{"topic": "people", "on": {"/id": "/id"}}], "fields": fields}
    long = short | {"join": [{"topic": "people", "on": {"/customer": "/id"}}]}
    small = long | {"join_method": "broadcast"}
    tree = config({"short": short, "long": long, "asked": short | {"join_method": "repartition"}, "small": small})
    methods = {name: view.join_method for name, view in tree.views.items()}
    assert methods == {"short": "same_key", "long": "repartition", "asked": "repartition", "small": "broadcast"}
    assert {*tree.stages} == {
        "small.split", "small.split1",
        "short.split", "short.split1", "long.split", "long.split1", "long.join", "asked.split", "asked.split1",
        "asked.join",
    }  # fmt: skip


def test_join_by_other_fields_refuses_the_short_way() -> None:
    """`same_key` names the topic whose join is by other fields, and both sides' key fields."""
    view = {"underlying": "orders", "join": [{"topic": "people", "on": {"/customer": "/id"}}], "fields": {"/id": "/id"}}
    with pytest.raises(ValidationError, match="the join of 'people' is not by the key fields of both sides, which are"):
        config({"v": view | {"join_method": "same_key"}})


@pytest.mark.parametrize("name", ["on", True, "true"])
def test_the_name_on_is_found_as_yaml_and_helm_write_it(name: object) -> None:
    """YAML 1.1 takes the name `on` of a join for true, of which Helm makes the text `true`."""
    assert JoinConfig.model_validate({"topic": "people", name: {"/customer": "/id"}}).on == {"/customer": "/id"}


def test_join_of_groups_and_a_topic_refuses_the_short_way() -> None:
    """Keys of groups are made in another way than those of topics, so records meet by them only among themselves."""
    counts = {"underlying": "orders", "group_by": {"/customer": "/id"}, "fields": {"/n": "COUNT(*)"}}
    fields = {"/id": "/id", "/n": "/n"}

    def joined(underlying: str, topic: str, **more: str) -> dict[str, Any]:
        return {"underlying": underlying, "join": [{"topic": topic, "on": {"/id": "/id"}}], "fields": fields, **more}

    views = {
        "counts": counts,
        "more": counts,
        "kept": {"underlying": "counts", "fields": {"/id": "/id", "/n": "/n"}},
        "groups": joined("counts", "more"),
        "projection": joined("kept", "more"),
        "mixed": joined("counts", "people"),
        "topics": joined("orders", "people"),
    }
    tree = config(views)
    assert {name: tree.views[name].join_method for name in ("groups", "projection", "mixed", "topics")} == {
        "groups": "same_key", "projection": "same_key", "mixed": "repartition", "topics": "same_key",
    }  # fmt: skip
    assert [name for name in ("orders", *views) if tree.has_group_keys(name)] == [
        "counts", "more", "kept", "groups", "projection", "mixed",
    ]  # fmt: skip
    with pytest.raises(ValidationError, match="one of 'counts' and 'people' has groups"):
        config({"counts": counts, "v": joined("counts", "people", join_method="same_key")})


def test_join_by_repartition_refuses_as_of() -> None:
    """The header `as_of` needs the records of a row in one stage; the error names the method that has them there."""
    view = {
        "underlying": "orders", "join": [{"topic": "people", "on": {"/customer": "/id"}}], "fields": {"/id": "/id"},
        "as_of": True,
    }  # fmt: skip
    with pytest.raises(ValidationError, match="use join_method broadcast, or remove as_of"):
        config({"v": view})
    assert config({"v": view | {"join_method": "broadcast"}}).views["v"].as_of


@pytest.mark.parametrize(
    ("view", "message"),
    [
        ({"fields": {"/id": "/id"}}, "partial_aggregation is for views with `group_by`"),
        ({"group_by": ["/c"], "fields": {"/n": "COUNT(*)"}, "as_of": True}, "remove one of the two"),
    ],
)
def test_partial_aggregation_is_refused_where_it_cannot_be(view: dict[str, Any], message: str) -> None:
    """It needs groups, and its rows have no prefix of the input of their own."""
    with pytest.raises(ValidationError, match=message):
        config({"v": {"underlying": "orders", "partial_aggregation": True} | view})


def queue_config(**queue: Any) -> Config:
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
    by_name = {spec.name: spec for spec in specs(queue_config(retention="60h", config={"segment.ms": "1000"}))}
    queue, letters = by_name["jobs.queue"], by_name["jobs.dlq"]
    assert (queue.partitions, letters.partitions) == (3, 3)
    assert queue.config["cleanup.policy"] == "delete"
    assert queue.config["retention.ms"] == str(60 * 3_600_000)
    assert letters.config["retention.ms"] == str(7 * 86_400_000)
    assert queue.config["segment.ms"] == "1000"
    [merge] = pipelines(queue_config(), ["orders"])
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
        queue_config(**settings)


def test_a_name_stands_for_one_family():
    """A queue cannot have the name of a topic, and a subscription to a queue is told how to consume it."""
    with pytest.raises(ValidationError, match="'orders' is configured twice"):
        Config.model_validate({"topics": {"orders": {}}, "queues": {"orders": {"underlying": "orders"}}})
    with pytest.raises(ConfigurationError, match=r"'jobs' is a queue; .*sowstream queue take jobs"):
        queue_config().root("jobs")
    with pytest.raises(ConfigurationError, match="jobs"):
        queue_config().queue("job")
