"""docker-compose.yml keeps its promises and agrees with the settings that its services read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from processor.config import Config
from processor.config import load as load_settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ["topics", "worker", "conflate"]
SCALABLE = ["worker", "conflate"]


@pytest.fixture
def settings(monkeypatch) -> Config:
    """deploy/sowstream.yaml as the services read it, with nothing from this machine's environment."""
    monkeypatch.delenv("SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS", raising=False)
    return load_settings(ROOT / "deploy" / "sowstream.yaml")


def default_of(text: str) -> str:
    """`${NAME:-default}` → `default`, anywhere in a text."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)


def test_no_version_key_and_a_fixed_project_name() -> None:
    """Compose calls the version key obsolete; the project's name does not hang on the directory's."""
    assert "version" not in COMPOSE
    assert COMPOSE["name"] == "sowstream"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_image_has_a_fixed_tag_that_can_be_overridden(name: str) -> None:
    """No image floats, and each can be replaced by a variable."""
    image = SERVICES[name]["image"]
    assert image.startswith("${")
    assert re.fullmatch(r"[\w./-]+:\d+\.\d+\.\d+", default_of(image))


@pytest.mark.parametrize("name", SCALABLE)
def test_any_number_of_containers_run_side_by_side(name: str) -> None:
    """A scaled service has no fixed name, no port of the machine and no volume that its containers share."""
    service = SERVICES[name]
    assert not {"container_name", "hostname", "ports", "network_mode"} & set(service)
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == []


def test_published_ports_are_for_this_machine_only() -> None:
    """Nothing listens on the network: every published port is bound to the loopback address."""
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", OURS)
def test_least_privilege(name: str) -> None:
    """No service of ours writes to its image, holds a capability or can gain one."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_services_start_in_order() -> None:
    """Kafka is healthy before the topics are made, and they are made before anything reads them."""
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert SERVICES["topics"]["command"][:2] == ["topics", "apply"]
    assert "restart" not in SERVICES["topics"]
    for name in SCALABLE:
        assert SERVICES[name]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["command"][0] == name


def test_broker_listens_where_its_readers_look(settings: Config) -> None:
    """Containers find it under the settings' address, the machine under the published port."""
    environment = SERVICES["kafka"]["environment"]
    advertised = default_of(environment["KAFKA_ADVERTISED_LISTENERS"]).split(",")
    (published,) = SERVICES["kafka"]["ports"]
    _, host_port, container_port = default_of(published).split(":")
    assert f"PLAINTEXT://{settings.kafka['bootstrap.servers']}" in advertised
    assert f"PLAINTEXT_HOST://localhost:{host_port}" in advertised
    assert f"PLAINTEXT_HOST://:{container_port}" in environment["KAFKA_LISTENERS"].split(",")
    for name in OURS:
        assert (
            SERVICES[name]["environment"]["SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS"] == settings.kafka["bootstrap.servers"]
        )


def test_one_broker_can_commit_transactions() -> None:
    """Replication and minimum of in-sync replicas are 1 everywhere, else no transaction would ever commit."""
    environment = SERVICES["kafka"]["environment"]
    replication = {
        name: value for name, value in environment.items() if re.search("REPLICATION_FACTOR|_ISR|INSYNC", name)
    }
    assert set(replication.values()) == {"1"}
    assert {
        "KAFKA_MIN_INSYNC_REPLICAS",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR",
    } <= set(replication)


@pytest.mark.parametrize("name", SCALABLE)
def test_a_stop_is_given_longer_than_it_may_take(name: str, settings: Config) -> None:
    """Compose kills only after the process's own deadline has passed."""
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > settings.runtime.shutdown_timeout_s


@pytest.mark.parametrize("name", SCALABLE)
def test_health_is_asked_where_metrics_are_served(name: str, settings: Config) -> None:
    """The health check goes to the port of the settings, and not to Kafka."""
    check = " ".join(SERVICES[name]["healthcheck"]["test"])
    assert f"http://127.0.0.1:{settings.runtime.metrics_port}/metrics" in check


def test_state_goes_to_the_images_volume(settings: Config) -> None:
    """The one place that a container may write to is where the settings put the state."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"\nVOLUME {settings.state_dir}\n" in dockerfile
