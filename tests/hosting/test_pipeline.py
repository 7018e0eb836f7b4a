"""From settings to what runs: which processor, which topics."""

import pytest

from processor.api import Input, Output
from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import Config, TopicConfig
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline, needed, pipelines, source_spec, specs


@pytest.fixture
def config() -> Config:
    """Two topics, a copy of one, and a copy of the copy."""
    return Config(
        topics={"orders": {"partitions": 3, "config": {"min.insync.replicas": 2}}, "prices": {}},
        conflated={
            "orders_1s": {"underlying": "orders", "interval": "1s"},
            "orders_1m": {"underlying": "orders_1s", "interval": "1m"},
        },
    )


def test_a_topic_is_a_delta_merge(config):
    """It reads its own publishes, and writes the rest of its family; what is re-keyed goes where its key belongs."""
    [pipeline] = pipelines(config, ["orders"])
    assert pipeline.processor_type is DeltaMerge
    assert pipeline.settings == pipeline.topic == config.topics["orders"]
    assert pipeline.source == "orders.publish"
    assert pipeline.roles == ("publish", "sow", "delta", "ack", "mark", "dlq")
    assert pipeline.repartitioned == {"publish"}
    assert pipeline.output("delta") == "orders.delta"


@pytest.mark.parametrize(("name", "source"), [("orders_1s", "orders.sow"), ("orders_1m", "orders_1s.sow")])
def test_a_conflated_topic_copies_the_sow_topic_under_it(config, name, source):
    """Also that of another copy; its records are those of the topic at the bottom."""
    [pipeline] = pipelines(config, [name])
    assert pipeline.processor_type is Conflate
    assert pipeline.settings == config.conflated[name]
    assert pipeline.topic == config.topics["orders"]
    assert (pipeline.source, pipeline.roles) == (source, ("sow", "delta", "mark", "dlq"))
    assert pipeline.repartitioned == frozenset()


def test_without_names_everything_that_is_configured_runs(config):
    """In the order of the settings; with names, just those."""
    assert [pipeline.name for pipeline in pipelines(config, [])] == ["orders", "prices", "orders_1s", "orders_1m"]
    assert [pipeline.name for pipeline in pipelines(config, ["orders_1m", "orders"])] == ["orders_1m", "orders"]


def test_an_unknown_name_is_told_with_a_suggestion(config):
    """The nearest one that is configured."""
    with pytest.raises(ConfigurationError, match=r"there is no topic 'order'; did you mean 'orders'\?"):
        pipelines(config, ["orders", "order"])


def test_a_family_has_one_number_of_partitions_and_its_topics_settings(config):
    """A copy's too: outputs go to the input's partition number."""
    wanted = {spec.name: spec for spec in specs(config, ["orders", "orders_1m"])}
    assert list(wanted) == [
        *("orders.publish", "orders.sow", "orders.delta", "orders.ack", "orders.mark", "orders.dlq"),
        *("orders_1m.sow", "orders_1m.delta", "orders_1m.mark", "orders_1m.dlq"),
    ]
    assert {spec.partitions for spec in wanted.values()} == {3}
    assert all(spec.config["min.insync.replicas"] == "2" for spec in wanted.values())


def test_what_is_read_of_another_family_is_not_made_in_its_own():
    """A processor of another topic's publishes has no such topic itself."""

    class Reader(DeltaMerge):
        input = Input("publish", from_underlying=True)
        outputs = (Output("sow"),)

    topic = TopicConfig()
    pipeline = Pipeline.of(Reader, topic, name="copy", topic=topic, underlying="orders")
    assert (pipeline.source, pipeline.roles) == ("orders.publish", ("sow", "mark", "dlq"))


@pytest.mark.parametrize(
    ("name", "source", "policy"),
    [
        ("orders", "orders.publish", "delete"),
        ("orders_1s", "orders.sow", "compact"),
        ("orders_1m", "orders_1s.sow", "compact"),
    ],
)
def test_what_a_pipeline_reads_has_to_be_as_it_reads_it(config, name, source, policy):
    """As many partitions as its own family, and kept by Kafka as its role needs it."""
    spec = source_spec(pipelines(config, [name])[0])
    assert (spec.name, spec.partitions, spec.config["cleanup.policy"]) == (source, 3, policy)


def test_topics_say_what_they_are_made_of_and_into(config):
    """Whoever loses one has to make the others anew; of a copy of a copy each pipeline knows one half."""
    of_all = {spec.name: spec for spec in needed(pipelines(config, ["orders", "orders_1m", "orders_1s"]))}
    made = {
        name: (spec.derived_from, spec.derived_families)
        for name, spec in of_all.items()
        if spec.role in {"publish", "sow"}
    }
    assert made == {
        "orders.publish": ("", ()),
        "orders.sow": ("", ("orders_1s",)),
        "orders_1s.sow": ("orders.sow", ("orders_1m",)),
        "orders_1m.sow": ("orders_1s.sow", ()),
    }
