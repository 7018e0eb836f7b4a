"""Tests on a Kafka whose policy limits messages to 8 MiB and segments to 50 MiB, with default settings."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from processor.cli.main import run
from processor.client import Client
from processor.errors import Stop
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.topics.family import TopicSpec, family_specs
from processor.trial.broker import EmbeddedBroker, server
from processor.trial.broker.jars import class_path
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(600)]

POLICY = """
import java.util.Map;
import org.apache.kafka.common.errors.PolicyViolationException;
import org.apache.kafka.server.policy.CreateTopicPolicy;

public class Managed implements CreateTopicPolicy {
    public void configure(Map<String, ?> settings) {}
    public void close() {}
    public void validate(RequestMetadata topic) {
        within(topic, "max.message.bytes", 0, 8388608);
        within(topic, "segment.bytes", 52428800, 1073741824);
        if (topic.topic().startsWith("strict."))
            for (String name : new String[] {"segment.ms", "segment.bytes", "min.cleanable.dirty.ratio"})
                if (topic.configs().containsKey(name))
                    throw new PolicyViolationException(name + " cannot be set here");
    }
    private static void within(RequestMetadata topic, String name, long least, long most) {
        String text = topic.configs().get(name);
        if (text != null && (Long.parseLong(text) < least || Long.parseLong(text) > most))
            throw new PolicyViolationException(topic.topic() + ": " + name + " must be " + least + " to " + most);
    }
}
"""


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a broker with the policy."""
    if shutil.which("javac") is None:
        pytest.skip("no javac to compile the policy with")
    directory = tmp_path_factory.mktemp("policy")
    jars = class_path()
    (directory / "Managed.java").write_text(POLICY)
    compiled = subprocess.run(
        ["javac", "-cp", jars, "-d", str(directory), str(directory / "Managed.java")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("processor.trial.broker.embedded.class_path", lambda: f"{jars}{os.pathsep}{directory}")
        patch.setattr(server, "_SETTINGS", f"{server._SETTINGS}create.topic.policy.class.name=Managed\n")
        with EmbeddedBroker() as broker:
            yield broker.bootstrap


@pytest.fixture
def world(managed: str, tmp_path: Path) -> Iterator[World]:
    """Create a topic and its conflated copy."""
    made = World(managed, tmp_path, "orders")
    yield made
    made.close()


def test_the_policy_is_in_force(managed: str):
    """The broker refuses the settings of older versions: otherwise the other tests would prove nothing."""
    for name, value in (("max.message.bytes", "16777216"), ("segment.bytes", "16777216")):
        with pytest.raises(Stop, match=f"{name} must be"):
            Admin({"bootstrap.servers": managed}).create([TopicSpec("old.sow", "sow", 1, {name: value})])


def test_settings_as_shipped_work_where_messages_are_capped(world: World, capsys):
    """Topics are created and pass the check; a record of the largest size is merged, copied and read."""
    Admin(world.config.kafka).delete([spec.name for spec in specs(world.config)])
    world.wait(lambda: not any("orders" in name for name in Admin(world.config.kafka).cluster().topics), "deleting")
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    assert run(["topics", "check", "-c", str(world.file)]) == 0
    told = capsys.readouterr().err
    assert "topics are as they should be" in told
    largest = world.config.topics["orders"].max_record_bytes
    body = b'{"id": 1, "text": "' + b"x" * (largest - 21) + b'"}'
    assert len(body) == largest
    world.start("worker")
    world.start("conflate", world.conflated)
    with Client("desk", world.config) as client:
        client.publish("orders", body, ack="persisted").result(120)
        client.delta_publish("orders", {"id": 1, "n": 1}, ack="completed")
        client.publish("orders", {"id": 2, "text": "y" * (largest - 100)}, ack="persisted").result(120)
        client.flush(60)
    world.settle()
    world.wait(lambda: {record.key for record in world.read("sow", world.conflated)} == {b"1", b"2"}, "the copies")
    sow = {record.key: record.value for record in world.read("sow")}
    assert (len(sow[b"1"]), len(sow[b"2"]) > largest - 100) == (largest - 3, True)  # Three blanks are gone.
    # The delta that would make a record larger than the limit is a dead letter, and stops nobody.
    assert [record.headers["dlq_reason"] for record in world.read("dlq")] == ["too_large"]


def test_optional_settings_that_the_policy_refuses_are_left_out(managed: str):
    """If segment settings are refused, the topics have Kafka's own."""
    admin = Admin({"bootstrap.servers": managed})
    wanted = [
        spec._replace(name=f"strict.{spec.name}")
        for spec in family_specs("orders", ("publish", "sow", "mark"), partitions=1)
    ]
    assert admin.create(wanted) == ["strict.orders.publish", "strict.orders.sow", "strict.orders.mark"]
    found = admin.describe_topics(["strict.orders.mark"])["strict.orders.mark"].config
    assert (found["cleanup.policy"], found["segment.bytes"]) == ("compact", str(2**30))
    settings = {"max.message.bytes": "9000000"}
    (own,) = family_specs("mine", ("sow",), partitions=1, settings=settings)
    with pytest.raises(Stop, match=r"max\.message\.bytes must be"):
        admin.create([own])
