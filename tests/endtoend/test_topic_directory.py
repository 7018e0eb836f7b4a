"""Tests of readers and publishers with an address alone, and of workers that contradict the topic directory."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from processor.cli.main import run
from processor.client import Client
from processor.config import load
from processor.errors import ConfigurationError
from processor.installation.topic_directory import TopicDirectory
from processor.kafka.admin.admin import Admin
from processor.topics.family import directory_spec
from tests import forked
from tests.endtoend.world import World
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker]

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
    """A name that is no longer configured stays described until it is pruned."""
    tree = yaml.safe_load(world.file.read_text())
    del tree["conflated"]
    world.file.write_text(yaml.safe_dump(tree))
    assert run(["topics", "apply", "-c", str(world.file)]) == 0
    assert f"{world.conflated}\tis in the topic directory for application_id" in capfd.readouterr().out
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
