"""The names of topics in Kafka, and settings that contradict Kafka's or each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from processor.config import Config, load
from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.hosting.pipeline import needed
from processor.installation.configured_pipelines import pipelines, specs
from processor.topics import ActualTopic, changes, rebuild_steps

ROOT = Path(__file__).parents[2]


def config(**more: object) -> Config:
    """A topic with a conflated copy."""
    return Config(topics={"orders": {}}, conflated={"orders_5s": {"underlying": "orders"}}, **more)


def refusal(**tree: object) -> str:
    """The message about settings that are refused."""
    with pytest.raises(ValidationError) as refused:
        Config(**tree)
    return str(refused.value)


def test_without_settings_the_names_are_unchanged():
    """Without a prefix and mappings the names of topics and groups stay as in earlier versions."""
    names = config().kafka_names
    assert [names.topic("orders", role) for role in ("publish", "sow")] == ["orders.publish", "orders.sow"]
    assert (names.directory, names.control) == ("_sowstream.topics", "_sowstream.control")
    assert config(application_id="app").group_prefix == "app"


def test_a_prefix_is_before_every_name():
    """A prefix comes before every name of topics and groups: two tenants with one application_id share none."""
    tree = config(topic_prefix="acme.desk.")
    assert {spec.name for spec in specs(tree)} == {
        *(f"acme.desk.orders.{role}" for role in ("publish", "sow", "delta", "ack", "dlq", "mark")),
        *(f"acme.desk.orders_5s.{role}" for role in ("sow", "delta", "mark", "dlq")),
    }
    assert tree.kafka_names.directory == "acme.desk._sowstream.topics"
    assert tree.group_prefix == "acme.desk.sowstream"


def test_a_mapped_topic_has_its_own_name_and_no_prefix():
    """A mapped topic has its own name without a prefix, which its copies read; the rest of its family keeps theirs."""
    topics = {"orders": {"kafka_topics": {"publish": "legacy.in", "sow": "legacy.state"}}}
    tree = Config(topic_prefix="acme.", topics=topics, conflated={"slow": {"underlying": "orders"}})
    orders, slow = pipelines(tree, [])
    assert (orders.source, orders.output("sow"), orders.output("delta")) == (
        "legacy.in", "legacy.state", "acme.orders.delta",
    )  # fmt: skip
    assert (slow.source, slow.derived_from, slow.output("sow")) == ("legacy.state", "legacy.state", "acme.slow.sow")
    assert {spec.name: spec.family for spec in needed([slow])} == {
        "acme.slow.sow": "slow", "acme.slow.delta": "slow", "acme.slow.dlq": "slow", "acme.slow.mark": "slow",
        "legacy.state": "orders",
    }  # fmt: skip


def test_copies_and_processors_map_their_topics_in_their_own_section():
    """Copies and processors map their topics in their own section: the section of the underlying does not count."""
    conflated = {"slow": {"underlying": "orders", "kafka_topics": {"sow": "slow.state"}}}
    tree = Config(topics={"orders": {"kafka_topics": {"sow": "state"}}}, conflated=conflated)
    assert [tree.kafka_names.topic(name, "sow") for name in ("orders", "slow")] == ["state", "slow.state"]
    third = {"p": {"use": "x", "topic": {"kafka_topics": {"sow": "a"}}}}
    assert "set processors.p.kafka_topics" in refusal(processors=third)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (
            {"topics": {"a": {"kafka_topics": {"publish": "in"}}, "b": {"kafka_topics": {"publish": "in"}}}},
            "a (publish) and b (publish) would both be the Kafka topic 'in'",
        ),
        ({"topics": {"a": {"kafka_topics": {"publish": "in", "sow": "in"}}}}, "a (publish) and a (sow) would both be"),
        (
            {"topics": {"a": {"kafka_topics": {"publish": "b.sow"}}, "b": {}}},
            "a (publish) and b (sow) would both be the Kafka topic 'b.sow'",
        ),
        ({"topics": {"a": {"kafka_topics": {"publish": "a_sow"}}}}, "differ from it by '.' and '_' only"),
        (
            {"topic_prefix": "x.", "topics": {"a": {"kafka_topics": {"sow": "x._sowstream.topics"}}}},
            "Sowstream's own x._sowstream.topics and a (sow)",
        ),
        ({"topics": {"a": {"kafka_topics": {"sow": "ü"}}}}, "Kafka's names have letters"),
        ({"topics": {"a": {"kafka_topics": {"sow": ""}}}}, "Kafka's names have letters"),
        ({"topics": {"a": {"kafka_topics": {"sow": ".."}}}}, "Kafka's names have letters"),
        ({"topics": {"a": {"kafka_topics": {"sow": "__consumer_offsets"}}}}, "are Kafka's own"),
        ({"topics": {"a": {"kafka_topics": {"sow": "a" * 250}}}}, "it has 250 characters, and Kafka takes 249"),
        ({"topic_prefix": "p" * 90 + ".", "topics": {"a" * 160: {}}}, "shorten the name or the prefix"),
        ({"topics": {"a": {"kafka_topics": {"input": "x"}}}}, "Input should be 'publish', 'sow'"),
        ({"topic_prefix": "acme"}, "topic_prefix"),
        ({"topic_prefix": ".acme."}, "topic_prefix"),
        ({"topic_prefix": "ac me."}, "topic_prefix"),
        ({"topic_prefix": "acme.\n"}, "topic_prefix"),
    ],
)
def test_illegal_names_are_refused(tree, problem):
    """Illegal and duplicate names are refused with the topics concerned, before any request to Kafka."""
    assert problem in refusal(**tree)


def test_remedies_name_the_real_topics():
    """Remedies contain the real topic names, with prefix and mapping, as an operator will type them."""
    tree = config(topic_prefix="acme.").model_copy(
        update={"topics": Config(topics={"orders": {"kafka_topics": {"mark": "old.marks"}}}).topics}
    )
    wanted = specs(tree)
    actual = {spec.name: ActualTopic(4, dict(spec.config), topic_id="1") for spec in wanted}
    (deleted,) = changes(wanted, actual, {name: topic for name, topic in actual.items() if name != "acme.orders.sow"})
    assert "delete acme.orders.sow and acme.orders.delta, and old.marks if there is one" in deleted.to_do
    anew = rebuild_steps("orders_5s", "acme.orders.sow", tree.kafka_names)
    assert "acme.orders_5s.dlq" in anew
    assert "all topics acme.orders_5s.*;" in anew
    assert KafkaNames("p.", {"a": {"sow": "s"}}).family_text("a") == "p.a.* and s"


def test_no_other_place_makes_a_kafka_name():
    """No other place joins a topic and a role into a Kafka name, which would omit the prefix."""
    joined = re.compile(r"""\}\.(publish|sow|delta|ack|dlq|mark)\b|["']\.(publish|sow|delta|ack|dlq|mark)["']""")
    allowed = {
        "processor/config/kafka_names.py",
        "processor/trial/demo",  # Labels of the picture and of findings.
        "processor/topics/family.py",  # Outputs of a processor.
        "processor/config/families.py",  # A group.
        "spark_integration/foundation/options.py",  # The role, in a message.
        "spark_integration/read/source/source_options.py",  # As well.
    }
    others = []
    for folder in ("processor", "spark_integration"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if any(name.startswith(beginning) for beginning in allowed):
                continue
            others += [f"{name}: {line.strip()}" for line in file.read_text().splitlines() if joined.search(line)]
            others += [f"{name}: topic_name" for _ in re.findall(r"import .*\btopic_name\b", file.read_text())]
    assert others == []


def loaded_config(tmp_path, kafka, **runtime):
    """The settings of a file with these two sections."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(f"kafka: {kafka}\nruntime: {runtime}\n")
    return load(file)


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ("{transaction.timeout.ms: 5000}", "set runtime.transaction_timeout_s"),
        ("{group.instance.id: a}", "set runtime.static_membership"),
        ("{transactional.id: a}", "set application_id"),
        ("{session.timeout.ms: 6000}", "is not what runtime.session_timeout_s says"),
        ("{heartbeat.interval.ms: 11000}", "at most half of runtime.session_timeout_s"),
        ("{max.poll.interval.ms: 9000}", "at least runtime.session_timeout_s"),
        ("{max.poll.interval.ms: 29000}", "at least three times runtime.transaction_timeout_s"),
        ("{max.poll.interval.ms: soon}", "'soon' is not a number of milliseconds"),
        ("{group.protocol: consumer, session.timeout.ms: 20000}", "the brokers' to say"),
        ("{group.protocol: consumer, heartbeat.interval.ms: 1000}", "the brokers' to say"),
    ],
)
def test_a_contradicting_property_is_refused_with_the_setting(tmp_path, kafka, problem):
    """A contradicting property is refused at the start, with the setting to use instead."""
    with pytest.raises(ConfigurationError, match="kafka: ") as caught:
        loaded_config(tmp_path, kafka)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "kafka",
    [
        "{session.timeout.ms: 20000, heartbeat.interval.ms: 3000}",
        "{max.poll.interval.ms: 30000}",
        "{message.timeout.ms: 300000}",
        "{group.protocol: consumer, group.remote.assignor: range}",
    ],
)
def test_a_property_that_agrees_is_accepted(tmp_path, kafka):
    """A property that agrees with the settings, or concerns other clients than workers, is accepted."""
    assert loaded_config(tmp_path, kafka).kafka


def test_a_transaction_outlasts_two_commits_and_a_watchdog_three_transactions(tmp_path):
    """A transaction outlasts two commits, and a watchdog outlasts three transactions."""
    with pytest.raises(ConfigurationError, match="commit_interval_s must be at most half of transaction_timeout_s"):
        loaded_config(tmp_path, "{}", commit_interval_s=3, transaction_timeout_s=5)
    with pytest.raises(ConfigurationError, match="stuck_timeout_s must be at least three times transaction_timeout_s"):
        loaded_config(tmp_path, "{}", stuck_timeout_s=40, transaction_timeout_s=20)


@pytest.mark.parametrize(("transaction_timeout_s", "stuck_after_s"), [(10, 120), (60, 180)])
def test_a_watchdog_without_a_setting_outlasts_three_transactions(tmp_path, transaction_timeout_s, stuck_after_s):
    """A watchdog without a time of its own outlasts three transactions of any length."""
    assert (
        loaded_config(tmp_path, "{}", transaction_timeout_s=transaction_timeout_s).runtime.stuck_after_s
        == stuck_after_s
    )
