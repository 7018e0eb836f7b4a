"""The rights of each role on a secured cluster: the printed commands, the table in the README, and their limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from processor.config import Config
from processor.installation.acls import Grant, commands, grants
from processor.installation.configured_pipelines import pipelines
from tests.cli.conftest import Cli

COLUMNS = ("DEPLOYER", "WORKER", "CONFLATER", "GATEWAY", "PUBLISHER", "SUBSCRIBER", "DLQ", "SETTLER")
TABLE = Path(__file__).parents[2] / "deploy" / "README.md"


def wanted() -> list[Grant]:
    """The grants for the topics of the table."""
    config = Config(topics={"orders": {}}, conflated={"orders_5s": {"underlying": "orders"}})
    return list(grants(config, pipelines(config, [])))


def test_the_table_has_the_same_rights():
    """The printed commands and the table have the same rights, by topic and role."""
    told: dict[tuple[str, str], set[str]] = {}
    for topic, cells in re.findall(
        r"^\| `((?:orders|orders_5s|_sowstream)\.\w+|__\w+)` \|(.*)\|$", TABLE.read_text(), re.MULTILINE
    ):
        for who, cell in zip(COLUMNS, cells.split("|"), strict=True):
            if operations := set(re.findall(r"Read|Write", cell)):
                told[topic, who] = operations
    granted: dict[tuple[str, str], set[str]] = {}
    for grant in wanted():
        if grant.kind == "topic":
            operations = set(grant.operations) & {"Read", "Write"}
            if operations:
                granted.setdefault((grant.name, grant.who), set()).update(operations)
    assert granted == told


def test_the_table_of_queues_has_the_same_rights():
    """The rights on a queue's topics are those of the table of queues, by topic and role."""
    config = Config(topics={"orders": {}}, queues={"to_ship": {"underlying": "orders"}})
    told: dict[tuple[str, str], set[str]] = {}
    for topic, cells in re.findall(r"^\| `(to_ship\.\w+)` \|(.*)\|$", TABLE.read_text(), re.MULTILINE):
        for who, cell in zip(("WORKER", "CONSUMER", "DLQ", "SETTLER"), cells.split("|"), strict=True):
            told[topic, who] = set(re.findall(r"Read|Write", cell))
    granted: dict[tuple[str, str], set[str]] = {}
    for grant in grants(config, pipelines(config, [])):
        if grant.kind == "topic" and grant.name.startswith("to_ship.") and grant.who != "DEPLOYER":
            granted.setdefault((grant.name, grant.who), set()).update({*grant.operations} & {"Read", "Write"})
    assert granted == told
    groups = {grant.operations for grant in grants(config, []) if grant.kind == "group" and grant.who == "CONSUMER"}
    assert groups == {("Read", "DescribeConfigs")}


def test_only_its_worker_writes_to_a_conflated_topic():
    """Only its worker writes to a conflated topic, and that worker does not write to the underlying topic."""
    writers = {(grant.who, grant.name) for grant in wanted() if "Write" in grant.operations and grant.kind == "topic"}
    assert {who for who, name in writers if name.startswith("orders_5s.")} == {"CONFLATER"}
    assert {name for who, name in writers if who == "CONFLATER"} == {
        *("orders_5s.sow", "orders_5s.delta", "orders_5s.mark", "orders_5s.dlq", "_sowstream.control")
    }


def test_only_its_stages_write_to_a_view():
    """The stages of a view write to its topics alone, and read its inputs; no other role reads its internal topics."""
    joined = {"underlying": "orders", "join": [{"topic": "people", "on": {"/who": "/id"}}], "fields": {"/id": "/id"}}
    grouped = {"underlying": "orders", "group_by": ["/who"], "fields": {"/n": "COUNT(*)"}}
    config = Config(topics={"orders": {}, "people": {}}, views={"by_who": grouped, "named": joined})
    granted = [grant for grant in grants(config, pipelines(config, [])) if grant.kind == "topic"]
    writers = {grant.name: set() for grant in granted}
    readers = {grant.name: set() for grant in granted}
    for grant in granted:
        for operation, roles in (("Write", writers), ("Read", readers)):
            if operation in grant.operations:
                roles[grant.name].add(grant.who)
    of_views = {name for name in writers if name.startswith(("by_who.", "named."))}
    internal = {name for name in of_views if name.endswith(".parts") or ".split" in name}
    assert {"by_who.parts", "named.parts", "named.join.parts", "by_who.split.sow", "named.split1.sow"} <= internal
    assert all(writers[name] == {"VIEWER"} for name in of_views if name.endswith((".sow", ".delta", ".mark")))
    assert all(writers[name] <= {"VIEWER", "DLQ"} for name in of_views), "dead letters go back to the input"
    assert all(readers[name] <= {"VIEWER", "DLQ", "SETTLER"} for name in internal)
    assert readers["by_who.sow"] >= {"SUBSCRIBER", "GATEWAY"}
    assert "VIEWER" in readers["orders.sow"] & readers["people.sow"]
    assert {name for name, roles in writers.items() if "VIEWER" in roles} <= {*of_views, "_sowstream.control"}


def test_roles_that_read_the_settings_of_topics():
    """Workers read the settings of all topics they write, dead-letter readers too, subscribers of their views."""
    readers: dict[str, set[str]] = {}
    for grant in wanted():
        if "DescribeConfigs" in grant.operations:
            readers.setdefault(grant.who, set()).add(grant.name)
    assert readers["SUBSCRIBER"] == {"orders.sow", "orders_5s.sow"}
    assert readers["DLQ"] == {"orders.dlq", "orders_5s.dlq"}
    assert readers["CONFLATER"] == {
        *("orders.sow", "orders_5s.sow", "orders_5s.delta", "orders_5s.mark", "orders_5s.dlq")
    }
    assert "PUBLISHER" not in readers


def test_the_deployer_may_create_each_topic_and_no_other():
    """The principal of `topics apply` has Create by name, and for the topics of queues and both shared topics too."""
    config = Config(topics={"orders": {}}, queues={"to_ship": {"underlying": "orders"}})
    created = {grant.name for grant in grants(config, pipelines(config, [])) if "Create" in grant.operations}
    assert created == {
        *("orders.publish", "orders.sow", "orders.delta", "orders.ack", "orders.dlq", "orders.mark"),
        *("to_ship.queue", "to_ship.dlq", "_sowstream.topics", "_sowstream.control"),
    }


@pytest.mark.parametrize("prefix", ["acme.", "acme-", "acme_"])
def test_the_deployer_may_create_topics_behind_any_prefix(prefix: str) -> None:
    """Create is granted by prefix where all names begin with one, also where that ends with `-` or `_`."""
    config = Config(topic_prefix=prefix, topics={"orders": {}}, queues={"to_ship": {"underlying": "orders"}})
    created = [grant for grant in grants(config, pipelines(config, [])) if "Create" in grant.operations]
    assert {(grant.name, grant.is_prefix) for grant in created} == {(prefix, True)}
    [line] = [line for line in commands(created, "h:1") if "--operation Create" in line]
    assert line.endswith(f"--resource-pattern-type prefixed --topic {prefix}")


def test_a_topic_whose_name_ends_with_a_dot_is_no_prefix() -> None:
    """A Kafka name of the settings is granted as it stands: as a prefix it would cover topics of other owners."""
    config = Config(topics={"orders": {"kafka_topics": {"publish": "legacy."}}})
    of_topic = [grant for grant in grants(config, pipelines(config, [])) if grant.name == "legacy."]
    assert of_topic
    assert not any(grant.is_prefix for grant in of_topic)


def test_operators_may_look_at_every_group_and_topic_that_status_asks_for():
    """Operators may read the owners, positions and ends of the input and SOW topics."""
    implied = {"Describe", "Read", "Write"}
    looked_at = {(grant.kind, grant.name) for grant in wanted() if grant.who == "DLQ" and implied & {*grant.operations}}
    assert looked_at >= {
        *(("group", "sowstream.orders"), ("group", "sowstream.orders_5s"), ("group", "_sowstream.control")),
        *(("topic", "orders.publish"), ("topic", "orders.sow"), ("topic", "orders_5s.sow")),
    }


def test_a_replay_may_use_its_transactional_id_and_a_worker_may_count_dead_letters():
    """The id and group of replays are those of `Config.letters_group`: rights to another name are refused by Kafka."""
    config = Config(topics={"orders": {}})
    letters = config.letters_group("orders")
    given = {(grant.who, grant.kind, grant.operations) for grant in wanted() if grant.name == letters}
    assert {("DLQ", "transactional-id", ("Write",)), ("DLQ", "group", ("Read",))} <= given
    assert ("WORKER", "group", ("Describe",)) in given
    names = {grant.name for grant in wanted() if (grant.who, grant.kind) == ("DLQ", "transactional-id")}
    assert names == {letters, "sowstream.orders.heal"}


def test_equal_rights_share_a_command():
    """The role is a shell variable that must be set; a prefix of names is granted as a prefix."""
    grant = Grant("WORKER", "topic", ("Read", "Write"), "a.sow")
    ids = Grant("WORKER", "transactional-id", ("Write",), "app.a.", is_prefix=True)
    assert commands([grant, ids, grant._replace(name="b.sow"), grant], "h:1") == [
        (
            'kafka-acls --bootstrap-server h:1 --add --allow-principal "User:${WORKER:?}" --operation Read '
            "--operation Write --topic a.sow --topic b.sow"
        ),
        (
            'kafka-acls --bootstrap-server h:1 --add --allow-principal "User:${WORKER:?}" --operation Write '
            "--resource-pattern-type prefixed --transactional-id app.a."
        ),
    ]


def test_they_are_printed_without_a_broker(offline: Cli):
    """One command per line is the only output, and nothing is created."""
    done = offline("topics", "apply", "--acls")
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("kafka-acls --bootstrap-server 127.0.0.1:1 --add ") for line in done.stdout.splitlines())
    roles = "WORKER, CONFLATER, VIEWER, GATEWAY, PUBLISHER, SUBSCRIBER, CONSUMER, DLQ and SETTLER"
    assert f"Set DEPLOYER (who runs `topics apply`), {roles}" in done.stderr


def test_objects_for_strimzi_are_printed_without_a_broker(offline: Cli):
    """The only output is YAML that `kubectl apply` takes."""
    done = offline("topics", "apply", "--strimzi", "main")
    assert done.returncode == 0, done.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(done.stdout)]
    assert f"{kinds.count('KafkaTopic')} KafkaTopics and {kinds.count('KafkaUser')} KafkaUsers" in done.stderr
    assert set(kinds) == {"KafkaTopic", "KafkaUser"}


def test_a_prefix_is_granted_as_such_and_a_mapped_topic_by_its_name():
    """A worker gets the rights for its own family's names under the installation's prefix, and no others."""
    topics = {"orders": {"kafka_topics": {"publish": "legacy.in"}}}
    config = Config(topic_prefix="acme.desk.", topics=topics, conflated={"orders_5s": {"underlying": "orders"}})
    granted = list(grants(config, pipelines(config, [])))
    of_worker = {grant.name: grant for grant in granted if (grant.who, grant.kind) == ("WORKER", "topic")}
    assert set(of_worker) == {
        "acme.desk.orders.", "legacy.in", "acme.desk._sowstream.topics", "acme.desk._sowstream.control",
    }  # fmt: skip
    assert of_worker["acme.desk.orders."].operations == ("Read", "Write", "DescribeConfigs")
    assert of_worker["legacy.in"].operations == ("Read", "Write", "DescribeConfigs")
    writers = {(grant.who, grant.name) for grant in granted if "Write" in grant.operations and grant.kind == "topic"}
    assert {name for who, name in writers if who == "CONFLATER"} == {
        "acme.desk.orders_5s.",
        "acme.desk._sowstream.control",
    }
    assert {name for who, name in writers if who == "PUBLISHER"} == {"legacy.in"}
    assert {grant.name for grant in granted if grant.kind != "topic"} >= {
        "acme.desk.sowstream.orders", "acme.desk.sowstream.orders.", "acme.desk.sowstream.client.",
        "acme.desk._sowstream.topics",
    }  # fmt: skip
    (line,) = [
        line for line in commands(granted, "h:1") if "{WORKER:?}" in line and "prefixed" in line and "--topic" in line
    ]
    assert line.endswith("--resource-pattern-type prefixed --topic acme.desk.orders.")
