"""The file docker-compose.yml is safe by default and agrees with the settings that its services read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from processor.config import Config
from processor.config import load as load_settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ["topics", "worker", "conflate", "view", "pipeline"]
SCALABLE = ["worker", "conflate", "view"]


@pytest.fixture
def settings(monkeypatch) -> Config:
    """deploy/sowstream.yaml as the services read it, with nothing from this machine's environment."""
    monkeypatch.delenv("SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS", raising=False)
    return load_settings(ROOT / "deploy" / "sowstream.yaml")


def default_of(text: str) -> str:
    """`${NAME:-default}` → `default`, anywhere in a text."""
    return re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", text)


def test_no_version_key_and_a_fixed_project_name() -> None:
    """The compose file has no obsolete version key, and a project name that does not depend on the directory."""
    assert "version" not in COMPOSE
    assert COMPOSE["name"] == "sowstream"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_image_has_a_fixed_tag_that_can_be_overridden(name: str) -> None:
    """Each image has a fixed tag, and can be replaced by a variable."""
    image = SERVICES[name]["image"]
    assert image.startswith("${")
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", default_of(image))


@pytest.mark.parametrize("name", SCALABLE)
def test_scaled_services_share_no_name_port_or_volume(name: str) -> None:
    """A scaled service has no fixed name, no port of the machine and no volume that its containers share."""
    service = SERVICES[name]
    assert not {"container_name", "hostname", "ports", "network_mode"} & set(service)
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == []


def test_published_ports_are_for_this_machine_only() -> None:
    """Every published port is bound to the loopback address, so nothing listens on the network."""
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", OURS)
def test_least_privilege(name: str) -> None:
    """None of Sowstream's services can write to its image, holds a capability or can gain one."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_services_start_in_order() -> None:
    """Kafka is healthy before the topics are created, and they are created before any service reads them."""
    assert SERVICES["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert SERVICES["topics"]["command"][:2] == ["topics", "apply"]
    assert "restart" not in SERVICES["topics"]
    for name in SCALABLE:
        assert SERVICES[name]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["command"][0] == name


def test_broker_listens_at_the_address_of_its_clients(settings: Config) -> None:
    """Containers reach the broker at the settings' address, and the machine at the published port."""
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
    """Replication and minimum in-sync replicas are 1 everywhere, since no transaction could commit otherwise."""
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
def test_a_stop_gets_more_time_than_it_may_take(name: str, settings: Config) -> None:
    """Compose kills a service only after the process's own deadline has passed."""
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > settings.runtime.shutdown_timeout_s


@pytest.mark.parametrize("name", SCALABLE)
def test_health_is_checked_at_the_metrics_port(name: str, settings: Config) -> None:
    """The health check asks the process on the metrics port of the settings, and not Kafka."""
    check = " ".join(SERVICES[name]["healthcheck"]["test"])
    assert f"http://127.0.0.1:{settings.runtime.metrics_port}/livez" in check


def test_the_pipeline_is_optional_and_alone() -> None:
    """The pipeline starts in its profile only, never twice on its checkpoints, and all its paths are in its volume."""
    service = SERVICES["pipeline"]
    assert service["profiles"] == ["spark"]
    assert [name for name, other in SERVICES.items() if other.get("profiles") == ["spark"]] == ["pipeline"]
    assert "pipeline:/var/lib/sowstream" in service["volumes"]
    assert "pipeline" in COMPOSE["volumes"]
    text = (ROOT / "deploy" / "spark" / "pipeline.yaml").read_text(encoding="utf-8")
    places = re.findall(r"(?:path|checkpoints|quarantine|dir): ([^,}\s]+)", text)
    assert len(places) == 7
    assert all(place.startswith("/var/lib/sowstream/") for place in places)
    dockerfile = (ROOT / "deploy" / "Dockerfile.spark").read_text(encoding="utf-8")
    assert "\nVOLUME /var/lib/sowstream\n" in dockerfile
    # A new volume has the directories of the image, and the source of files must exist.
    assert re.search(r"install --directory .* /var/lib/sowstream/incoming$", dockerfile, re.MULTILINE)


def test_the_pipeline_of_the_profile_is_accepted(settings: Config, tmp_path, monkeypatch) -> None:
    """The jobs of the profile load next to the settings of the services, and name topics of theirs."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
    from spark_integration.pipeline.pipeline_settings import PipelineSettings

    monkeypatch.delenv("SOWSTREAM_KAFKA__BOOTSTRAP.SERVERS", raising=False)
    for name, file in (("sowstream.yaml", "sowstream.yaml"), ("pipeline.yaml", "spark/pipeline.yaml")):
        (tmp_path / name).write_text((ROOT / "deploy" / file).read_text(encoding="utf-8"), encoding="utf-8")
    pipeline = PipelineSettings.load(tmp_path / "pipeline.yaml")
    assert set(pipeline.jobs) == {"ingest_orders", "archive", "book", "history"}
    assert pipeline.topics.topics == settings.topics
    assert f":{pipeline.metrics_port}/" in " ".join(SERVICES["pipeline"]["healthcheck"]["test"])


def test_state_goes_to_the_images_volume(settings: Config) -> None:
    """The settings put the state into the image's volume, the only place that a container may write to."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"\nVOLUME {settings.state_dir}\n" in dockerfile


def test_monitoring_is_optional_and_has_least_privilege() -> None:
    """Prometheus and Grafana start in their profile only, and can gain no right."""
    for name in ("prometheus", "grafana"):
        service = SERVICES[name]
        assert service["profiles"] == ["monitoring"]
        assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])


def test_prometheus_reads_every_service_that_serves_metrics(settings: Config) -> None:
    """Each service is found by its name at the port that its settings name, and the alert rules are loaded."""
    scrapes = yaml.safe_load((ROOT / "deploy" / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    places = {
        name: found["port"]
        for job in scrapes["scrape_configs"]
        for found in job["dns_sd_configs"]
        for name in found["names"]
    }
    assert places == dict.fromkeys((*SCALABLE, "pipeline"), settings.runtime.metrics_port) | {"gateway": 8080}
    assert scrapes["rule_files"] == ["/etc/prometheus/rules/*.yaml"]


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_mounted_files_of_monitoring_exist(name: str) -> None:
    """Docker would make a directory in place of a file that is missing."""
    mounted = [volume.split(":")[0] for volume in SERVICES[name]["volumes"] if volume.startswith("./")]
    assert len(mounted) in {2, 3}
    assert [path for path in mounted if not (ROOT / path).exists()] == []


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    """The data source is the service, and the directory of dashboards is the mounted one."""
    folder = ROOT / "deploy" / "compose" / "grafana"
    [source] = yaml.safe_load((folder / "datasource.yaml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load((folder / "dashboards.yaml").read_text(encoding="utf-8"))["providers"]
    targets = {volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]}
    assert provider["options"]["path"] in targets
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy" / "grafana" / Path(home).name).exists()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian's package prometheus)")
def test_prometheus_accepts_its_settings() -> None:
    """Prometheus' own checker reads the file; the rules are checked elsewhere, as they are mounted."""
    file = ROOT / "deploy" / "compose" / "prometheus.yml"
    command = ["promtool", "check", "config", "--syntax-only", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
