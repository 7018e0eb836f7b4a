"""The settings choose the processors that run and the topics that they need."""

import sys

import pytest

from processor.api import Input, Output, RecordProcessor
from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import Config, TopicConfig
from processor.errors import ConfigurationError
from processor.hosting.pipeline import Pipeline, needed, source_spec
from processor.installation.acls import grants
from processor.installation.configured_pipelines import pipelines, specs
from tests.hosting.packages import install


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
    """It reads its own input topic and writes the rest of its family; re-keyed records are repartitioned by key."""
    [pipeline] = pipelines(config, ["orders"])
    assert pipeline.processor_type is DeltaMerge
    assert pipeline.settings == pipeline.topic == config.topics["orders"]
    assert pipeline.source == "orders.publish"
    assert pipeline.roles == ("publish", "sow", "delta", "ack", "mark", "dlq")
    assert pipeline.repartitioned == {"publish"}
    assert pipeline.output("delta") == "orders.delta"


@pytest.mark.parametrize(("name", "source"), [("orders_1s", "orders.sow"), ("orders_1m", "orders_1s.sow")])
def test_a_conflated_topic_copies_the_sow_topic_under_it(config, name, source):
    """A copy reads the SOW topic of a topic or of another copy, and has the settings of the topic at the bottom."""
    [pipeline] = pipelines(config, [name])
    assert pipeline.processor_type is Conflate
    assert pipeline.settings == config.conflated[name]
    assert pipeline.topic == config.topics["orders"]
    assert (pipeline.source, pipeline.roles) == (source, ("sow", "delta", "mark", "dlq"))
    assert pipeline.repartitioned == frozenset()


def test_without_names_everything_that_is_configured_runs(config):
    """The pipelines come in the order of the settings, or of the names."""
    assert [pipeline.name for pipeline in pipelines(config, [])] == ["orders", "prices", "orders_1s", "orders_1m"]
    assert [pipeline.name for pipeline in pipelines(config, ["orders_1m", "orders"])] == ["orders_1m", "orders"]


def test_an_unknown_name_is_an_error_with_a_suggestion(config):
    """The suggestion is the nearest configured name."""
    with pytest.raises(ConfigurationError, match=r"there is no topic 'order'; did you mean 'orders'\?"):
        pipelines(config, ["orders", "order"])


def test_a_family_has_one_number_of_partitions_and_its_topics_settings(config):
    """A copy has as many partitions as its topic: outputs go to the input's partition number."""
    wanted = {spec.name: spec for spec in specs(config, ["orders", "orders_1m"])}
    assert list(wanted) == [
        *("orders.publish", "orders.sow", "orders.delta", "orders.ack", "orders.mark", "orders.dlq"),
        *("orders_1m.sow", "orders_1m.delta", "orders_1m.mark", "orders_1m.dlq"),
    ]
    assert {spec.partitions for spec in wanted.values()} == {3}
    assert all(spec.config["min.insync.replicas"] == "2" for spec in wanted.values())


def test_the_input_topic_of_another_family_is_not_created_in_its_own():
    """A processor that reads another topic's publishes has no topic `publish` of its own."""

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
def test_the_source_topic_has_the_partitions_and_the_policy_of_its_role(config, name, source, policy):
    """A source has as many partitions as the pipeline's family, and the cleanup policy of its role."""
    spec = source_spec(pipelines(config, [name])[0])
    assert (spec.name, spec.partitions, spec.config["cleanup.policy"]) == (source, 3, policy)


def test_topics_say_what_they_are_made_of_and_into(config):
    """Each topic names its origin and the families derived from it, which must be rebuilt if it is lost."""
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


class Alerting(RecordProcessor):
    """Has an output of its own."""

    input = Input("publish")
    outputs = (Output("sow"), Output("big_alerts"))

    def process_record(self, record):
        """Do nothing."""


@pytest.fixture
def alerting(tmp_path, monkeypatch):
    """Settings with an installed processor that has an output of its own."""
    install(tmp_path, "alerting", {"alerting": f"{__name__}:Alerting"})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Alerting.__module__])
    monkeypatch.syspath_prepend(tmp_path)

    def configured(**sections):
        return Config(processors={"visits": {"use": "alerting"}}, **sections)

    return configured


def test_an_output_of_its_own_is_a_topic_of_the_family(alerting):
    """The topic has the family's partitions, keeps records by time, and is created with the others."""
    wanted = {spec.name: spec for spec in specs(alerting(), [])}
    assert list(wanted) == ["visits.publish", "visits.sow", "visits.big_alerts", "visits.mark", "visits.dlq"]
    spec = wanted["visits.big_alerts"]
    assert (spec.role, spec.partitions, spec.config["cleanup.policy"]) == ("big_alerts", 4, "delete")


def test_an_output_of_its_own_has_the_prefix_of_the_installation(alerting):
    """Its name is made as those of the family's roles are."""
    [pipeline] = pipelines(alerting(topic_prefix="acme."), [])
    assert pipeline.output("big_alerts") == "acme.visits.big_alerts"


def test_an_output_of_its_own_is_no_other_familys_topic(alerting):
    """Two owners of one Kafka topic are refused, also where the names differ by '.' and '_' only."""
    config = alerting(topics={"visits_big": {}, "orders": {"kafka_topics": {"delta": "visits.big.alerts"}}})
    with pytest.raises(ConfigurationError, match=r"visits \(big_alerts\).* would both be the Kafka topic"):
        pipelines(config, [])


def test_an_output_of_its_own_is_written_by_workers_and_read_by_subscribers(alerting):
    """The deployer needs the right to create it, the worker to write it, and subscribers to read it."""
    config = alerting()
    rights = {
        (grant.who, *grant.operations)
        for grant in grants(config, pipelines(config, []))
        if grant.name == "visits.big_alerts"
    }
    assert rights == {
        ("DEPLOYER", "Create", "Describe", "DescribeConfigs"),
        ("WORKER", "Write", "DescribeConfigs"),
        ("SUBSCRIBER", "Read"),
        ("SETTLER", "Read"),
    }
