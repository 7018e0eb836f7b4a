"""Readers with an address alone, workers that contradict the directory, prefixes and mapped inputs."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from processor.cli.main import run
from processor.client import Client
from processor.config import load
from processor.errors import ConfigurationError
from processor.installation.configured_pipelines import specs
from processor.installation.topic_directory import TopicDirectory
from processor.kafka.admin.admin import Admin
from processor.topics.family import directory_spec
from tests import forked
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.broker

AVRO = {
    "type": "record",
    "name": "Quote",
    "fields": [{"name": "id", "type": "long"}, {"name": "px", "type": ["null", "double"], "default": None}],
}


@pytest.fixture
def world(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[World]:
    """Create described topics with one key field, with two, and of Avro from a file."""
    (tmp_path / "quote.avsc").write_text(json.dumps(AVRO, indent=1))
    others = {
        f"{unique}_pairs": {"key": ["/a", "/b"], "partitions": 2},
        f"{unique}_quotes": {"message_type": "avro", "schema": str(tmp_path / "quote.avsc"), "partitions": 2},
    }
    made = World(bootstrap, tmp_path, unique, others=others)
    assert run(["topics", "apply", "-c", str(made.file)]) == 0
    yield made
    made.close()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a directory without a settings file."""
    place = tmp_path / "elsewhere"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def change(world: World, **topic: object) -> None:
    """Edit the settings file of a world for one topic."""
    tree = yaml.safe_load(world.file.read_text())
    tree["topics"][world.name] |= topic
    world.file.write_text(yaml.safe_dump(tree))


def test_a_client_with_an_address_alone_publishes_gets_and_subscribes(world: World, elsewhere: Path):
    """No settings are needed for JSON, two key fields, Avro from a file, and conflated topics."""
    world.start()
    world.start("conflate", world.conflated)
    given = {
        world.name: ({"id": 7, "n": 1}, {"id": 7, "m": 2}, "7", {"id": 7, "n": 1, "m": 2}),
        world.names[1]: ({"a": "x", "b": 1}, {"a": "x", "b": 1, "n": 5}, '["x","1"]', {"a": "x", "b": 1, "n": 5}),
        world.names[2]: ({"id": 3, "px": None}, {"id": 3, "px": 1.5}, "3", {"id": 3, "px": 1.5}),
    }
    with Client("desk", bootstrap=world.bootstrap) as desk:
        for name, (first, second, key, whole) in given.items():
            with desk.sow_and_subscribe(name, timeout_s=PATIENCE_S) as messages:
                assert [next(messages).command for _ in range(2)] == ["group_begin", "group_end"]
                desk.publish(name, first, ack="persisted")
                assert next(messages).data == first
                desk.delta_publish(name, second, ack="persisted")
                assert next(messages).data == whole
            desk.flush(120)
            message = desk.get(name, key)
            assert message is not None
            assert message.data == whole
        with desk.subscribe(world.conflated, timeout_s=PATIENCE_S) as messages:
            desk.publish(world.name, {"id": 8})
            # The conflater may still have had the record before it.
            assert any(message.data == {"id": 8} for message in messages)
        with pytest.raises(ConfigurationError, match="a worker makes"):
            desk.publish(world.conflated, {"id": 1})
        schema = desk.config.topic(world.names[2]).message_schema
        assert schema is not None
        assert schema.file is None


def test_commands_need_an_address_alone(world: World, elsewhere: Path, capfd: pytest.CaptureFixture[str]):
    """`publish`, `sow`, `get` and `delete` with --bootstrap find the topic; for another name they list the topics."""
    world.start(name=world.name)

    def command(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return forked.run(*words, "--bootstrap", world.bootstrap, given=given)

    sent = command("publish", world.name, "--ack", "persisted", given='{"id":1,"n":1}\n')
    assert sent.returncode == 0, sent.stderr
    assert command("get", world.name, "1").stdout == '{"id":1,"n":1}\n'
    assert command("sow", world.name).stdout.count('"sow"') == 1
    assert command("delete", world.name, "--key", "1").returncode == 0
    unknown = command("get", f"{world.name}x", "1")
    assert unknown.returncode == 2
    assert f"did you mean '{world.name}'" in unknown.stderr
    assert "topic directory" in unknown.stderr


def test_without_a_directory_a_reader_fails_with_the_remedy(
    bootstrap: str, unique: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    """A client without settings fails at once with both ways out."""
    spec = directory_spec()._replace(name=f"{unique}_sowstream.topics")
    monkeypatch.setattr("processor.installation.topic_directory.directory_spec", lambda _prefix: spec)
    with pytest.raises(
        ConfigurationError, match=rf"no topic directory \({unique}_sowstream\.topics\); name a settings"
    ):
        Client("desk", bootstrap=bootstrap)


def test_a_settings_file_beats_the_directory_and_the_contradiction_is_logged(
    world: World, elsewhere: Path, caplog: pytest.LogCaptureFixture
):
    """A reader's own settings apply, and the log has the values of both."""
    change(world, key=["/other"])
    with Client("desk", load(world.file)) as desk:
        assert desk.get(world.name, "1") is None
    assert desk.config.topic(world.name).key == ("/other",)
    told = f"topic {world.name} key is /other in the settings and /id in the topic directory"
    assert [told in record.getMessage() for record in caplog.records].count(True) == 1


def test_a_worker_refuses_settings_that_contradict_the_directory(world: World):
    """It ends before it reads a record, with both values and the remedy; after `topics apply` it runs."""
    change(world, key=["/sku"])
    worker = world.start(name=world.name)
    worker.is_expected_to_end = True
    assert worker.process.wait(PATIENCE_S) == 2
    assert f"{world.name} key is /sku in the settings and /id in the topic directory" in worker.log()
    assert "sowstream topics apply if the settings are right" in worker.log()
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    world.start(name=world.name)
    world.publish([(b"x", {"sku": "x"}, {})])
    world.settle()
    assert [record.key for record in world.read("sow")] == [b"x"]


def test_a_topic_with_records_keeps_what_its_records_need(world: World, capfd: pytest.CaptureFixture[str]):
    """`apply`, `check` and workers refuse other keys and formats, with both values; harmless changes are applied."""
    quotes, copy = world.names[2], world.conflated
    world.start()
    with Client("desk", world.config) as desk:
        desk.publish(world.name, {"id": 1, "sku": "x"}, ack="persisted").result(PATIENCE_S)
        desk.publish(quotes, {"id": 1, "px": 1.5}, ack="persisted").result(PATIENCE_S)
    before = TopicDirectory(world.config.kafka, Admin(world.config.kafka)).read()
    assert before is not None
    tree = yaml.safe_load(world.file.read_text())
    tree["topics"][world.name] |= {"key": ["/sku"], "message_type": "msgpack", "default_command": "publish"}
    schema = world.directory / "quote.avsc"
    schema.write_text(schema.read_text().replace("double", "string"))
    tree["topics"][world.names[1]] |= {"default_command": "publish", "key": ["/a"]}
    world.file.write_text(yaml.safe_dump(tree))

    records = f"{world.name}.publish and {world.name}.sow have records"
    other_key = f"key is /sku in the settings and /id in the topic directory; {records}: updates would not find them"
    refusals = [
        f"{world.name}\t{other_key}\tset key back; or configure a topic of a new name",
        f"{world.name}\tmessage_type is msgpack in the settings and json in the topic directory",
        f"{copy}\t{other_key}",
        f"{quotes}\tschema is ",
        f"{quotes}.sow have records: they are written in the former way\tset schema back",
    ]
    for command, is_done in (("check", False), ("apply", True), ("check", True)):
        capfd.readouterr()
        assert run(["topics", command, "-c", str(world.file)]) == 1
        told = capfd.readouterr()
        assert [refusal for refusal in refusals if refusal not in told.out] == []
        assert (f"{world.names[1]}\tkey is" in told.out) is not is_done
    after = TopicDirectory(world.config.kafka, Admin(world.config.kafka)).read()
    assert after is not None
    for name in (world.name, copy, quotes):
        assert after.descriptions[name] == before.descriptions[name]
    assert after.descriptions[world.names[1]].key == ("/a",), "no records, so it may change"
    worker = world.start(name=world.name)
    worker.is_expected_to_end = True
    assert worker.process.wait(PATIENCE_S) == 2
    assert "have records: updates would not find them" in worker.log()


def test_a_worker_runs_where_nothing_is_described(bootstrap: str, tmp_path: Path, unique: str):
    """Topics without a directory need no description."""
    world = World(bootstrap, tmp_path, unique)
    try:
        world.start()
        world.publish([(b"1", {"id": 1}, {})])
        world.settle()
        assert len(world.read("sow")) == 1
    finally:
        world.close()


def test_only_changes_are_written_to_the_directory(world: World, capfd: pytest.CaptureFixture[str]):
    """A second apply writes no record, one after a change writes that topic and its copy, and `check` predicts it."""
    config = load(world.file)
    admin = Admin(config.kafka)
    topic = directory_spec().name

    def end() -> int:
        return sum(admin.end_offsets(topic, range(admin.cluster().topics[topic])).values())

    before = end()
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    assert end() == before
    change(world, default_command="publish")
    capfd.readouterr()
    assert run(["topics", "check", "-c", str(world.file)]) == 0
    assert "default_command is publish in the settings and delta_publish" in capfd.readouterr().out
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    assert end() == before + 2
    entries = TopicDirectory(config.kafka, admin).read()
    assert entries is not None
    assert entries.descriptions[world.name].default_command == "publish"


def test_topics_gone_from_the_settings_are_reported_and_pruned(world: World, capfd: pytest.CaptureFixture[str]):
    """Names that are no longer configured stay described until they are pruned; one warning has all of them."""
    tree = yaml.safe_load(world.file.read_text())
    tree["topics"][f"{world.name}b"] = {"key": ["/id"], "partitions": 1}
    world.file.write_text(yaml.safe_dump(tree))
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    del tree["topics"][f"{world.name}b"]
    del tree["conflated"]
    world.file.write_text(yaml.safe_dump(tree))
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    gone = ", ".join(sorted([world.conflated, f"{world.name}b"]))
    assert f"{gone}\tare in the topic directory for application_id" in capfd.readouterr().out
    config = load(world.file)
    directory = TopicDirectory(config.kafka, Admin(config.kafka))
    entries = directory.read()
    assert entries is not None
    assert world.conflated in entries.descriptions
    assert run(["topics", "apply", "--prune", "-c", str(world.file)]) == 0
    entries = directory.read()
    assert entries is not None
    assert world.conflated not in entries.descriptions
    assert world.name in entries.descriptions


class Tenant(World):
    """An installation on a shared cluster, whose input is an existing topic."""

    def __init__(self, bootstrap: str, directory: Path, unique: str, number: int) -> None:
        self.prefix = f"{unique}.t{number}."
        self.input = f"legacy.{unique}-{number}.in"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        directory.mkdir()
        # Kafka's own settings, as somebody else made it.
        for made in admin.create_topics([NewTopic(self.input, 4, 1, config={"max.message.bytes": "1048588"})]).values():
            made.result(120)
        super().__init__(
            bootstrap,
            directory,
            unique,
            kafka_topics={"publish": self.input},
            source_header=True,
            more={"topic_prefix": self.prefix, "application_id": "app"},
        )


@pytest.fixture
def tenants(bootstrap: str, tmp_path: Path, unique: str) -> Iterator[list[Tenant]]:
    """Create two tenants with the same topic and the same application_id."""
    made = [Tenant(bootstrap, tmp_path / str(number), unique, number) for number in (0, 1)]
    yield made
    for tenant in made:
        tenant.close()
        Admin(tenant.config.kafka).delete([tenant.config.kafka_names.directory])


class Commands:
    """Commands with a tenant's settings."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, tenant: Tenant, *words: str) -> list[str]:
        """Run one command to its end; returns its output lines."""
        self._capsys.readouterr()
        code = run([*words, "-c", str(tenant.file)])
        told = self._capsys.readouterr()
        assert code == 0, f"{words}: {told.out}\n{told.err}"
        return told.out.splitlines()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Commands:
    """Create the object that runs commands."""
    return Commands(capsys)


@pytest.mark.long
def test_two_tenants_share_a_cluster_and_nothing_else(
    tenants: list[Tenant], bootstrap: str, cli: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Every command and call, with settings and with an address alone, sees the records of one tenant."""
    for number, tenant in enumerate(tenants):
        name = tenant.name
        assert cli(tenant, "topics", "apply")[0] == tenant.config.kafka_names.directory
        tenant.start("worker")
        tenant.start("conflate", tenant.conflated)
        with Client("desk", tenant.config) as client:
            client.publish(name, {"id": 1, "of": number}, ack="persisted").result(120)
            client.publish(name, b"{", key="2")
            client.delta_publish(name, {"id": 1, "n": 7}, ack="completed").result(120)
        tenant.settle()
    for number, tenant in enumerate(tenants):
        name, record = tenant.name, {"id": 1, "of": number, "n": 7}
        tenant.wait(lambda tenant=tenant: len(tenant.read("sow", tenant.conflated)) > 0, "the copy")  # type: ignore[misc]
        assert [json.loads(seen.value or b"") for seen in tenant.read("sow")][-1] == record
        # What says where a record came from has the name that Kafka has.
        assert {seen.headers["source"].partition("/")[0] for seen in tenant.read("sow")} == {tenant.input}
        assert {seen.headers["source"].partition("/")[0] for seen in tenant.read("sow", tenant.conflated)} == {
            f"{tenant.prefix}{name}.sow"
        }
        assert json.loads(cli(tenant, "sow", name)[1])["data"] == record
        assert json.loads(cli(tenant, "get", name, "1")[0]) == record
        # The existing topic has Kafka's own limit, which is told; nothing else is wrong.
        assert [line.split()[1] for line in cli(tenant, "topics", "check")] == [tenant.input]
        cli(tenant, "doctor")
        letters = cli(tenant, "dlq", "list", name)
        assert f"{tenant.input}/" in "".join(letters)
        cli(tenant, "dlq", "replay", name)
        tenant.wait(lambda tenant=tenant: len(tenant.read("dlq")) == 2, "the second rejection")  # type: ignore[misc]
    monkeypatch.chdir(tmp_path)
    for number, tenant in enumerate(tenants):
        with Client("far", bootstrap=bootstrap, topic_prefix=tenant.prefix) as far:
            assert far.config.kafka_names == tenant.config.kafka_names
            message = far.get(tenant.name, "1")
            assert message is not None
            assert message.data == {"id": 1, "of": number, "n": 7}
            with far.sow_and_delta_subscribe(tenant.name, timeout_s=60) as live:
                first = next(m for m in live if m.command == "sow")
                far.delta_publish(tenant.name, {"id": 1, "n": 8})
                assert first.data["of"] == number
                assert next(m.data for m in live if m.command == "publish") == {"id": 1, "n": 8}
            with far.delta_subscribe(tenant.name, timeout_s=60) as live:
                far.delta_publish(tenant.name, {"id": 1, "n": 9}, ack="completed").result(120)
                assert next(m.data for m in live) == {"id": 1, "n": 9}
    for tenant in tenants:
        # `settle` has found its workers' offsets under that group.
        assert tenant.config.group_prefix == f"{tenant.prefix}app"
        wanted = {spec.name for spec in specs(tenant.config)}
        assert {name for name in wanted if not name.startswith(tenant.prefix)} == {tenant.input}


@pytest.mark.long
def test_a_reader_without_the_prefix_gets_a_list_of_prefixes(
    tenants: list[Tenant], bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A directory under another prefix is never chosen by guess."""
    tenant = tenants[0]
    assert run(["topics", "apply", "-c", str(tenant.file)]) == 0
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"{tenant.prefix}nobody\._sowstream\.topics.*with topic_prefix"):
        Client("far", bootstrap=bootstrap, topic_prefix=f"{tenant.prefix}nobody.")
