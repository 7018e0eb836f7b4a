"""Tests of an installation with a prefix and a mapped input: every command finds its topics."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from processor.cli.main import run
from processor.client import Client
from processor.errors import ConfigurationError
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from tests.endtoend.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.long]


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


def test_a_reader_without_the_prefix_gets_a_list_of_prefixes(
    tenants: list[Tenant], bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A directory under another prefix is never chosen by guess."""
    tenant = tenants[0]
    assert run(["topics", "apply", "-c", str(tenant.file)]) == 0
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"{tenant.prefix}nobody\._sowstream\.topics.*with topic_prefix"):
        Client("far", bootstrap=bootstrap, topic_prefix=f"{tenant.prefix}nobody.")
