"""The Helm chart is consistent in its files and in the manifests that Helm renders from them."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from processor.config import Config
from processor.config import load as load_settings

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sowstream"
FULL = CHART / "ci" / "full-values.yaml"

needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


def render(*arguments: str) -> list[dict[str, Any]]:
    """Render the manifests of a release `desk`; a helm built from source assumes an old Kubernetes by default."""
    command = ["helm", "template", "desk", str(CHART), "--kube-version", "1.31.0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr)
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest is not None]


@pytest.fixture(scope="module")
def full() -> list[dict[str, Any]]:
    """The manifests with everything switched on."""
    return render("-f", str(FULL))


def names_of(section: str | None) -> list[str]:
    """The names of the settings of a section, or of all sections."""
    model: Any = Config if section is None else Config.model_fields[section].annotation.__args__[1]  # type: ignore[union-attr]
    return sorted(field.alias or name for name, field in model.model_fields.items())


def test_the_chart_knows_the_names_of_all_settings() -> None:
    """A misspelt section, or setting of a topic, is refused when the chart is rendered: its schema lists the names."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]["config"]
    assert schema["propertyNames"]["enum"] == names_of(None)
    for section in ("topics", "conflated", "views", "queues", "processors"):
        listed = schema["properties"][section]["additionalProperties"]["propertyNames"]["enum"]
        assert listed == names_of(section), section


KINDS = (("StatefulSet", "worker"), ("Deployment", "conflate"), ("Deployment", "view"))
"""The owners of our pods, by kind and the end of their names."""


def one(manifests: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    """Return the one manifest of a kind whose name has this suffix."""
    (manifest,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(suffix)]
    return manifest


def pods(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specification of every pod, from any owner."""
    owners = [m for m in manifests if m["kind"] in {"StatefulSet", "Deployment", "Job"}]
    bare = [m["spec"] for m in manifests if m["kind"] == "Pod"]
    return [owner["spec"]["template"]["spec"] for owner in owners] + bare


def settings(manifest: dict[str, Any], directory: Path) -> Config:
    """A ConfigMap's sowstream.yaml, read as the program reads it."""
    file = directory / "sowstream.yaml"
    file.write_text(manifest["data"]["sowstream.yaml"], encoding="utf-8")
    return load_settings(file)


def test_app_version_is_the_projects() -> None:
    """The chart installs the project's own version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["appVersion"] == project["version"]


def test_every_value_is_explained_by_name() -> None:
    """Each value has a comment that begins with its name, except for Kubernetes' own structures."""
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    kubernetes_own = re.compile(
        r"^ *(requests|limits|run\w+|fsGroup\w*|seccompProfile|allow\w+|readOnly\w+|capabilities):"
    )
    unexplained = []
    for index, line in enumerate(lines):
        match = re.match(r"^( {0,2})(\w+):", line)
        if match is None or kubernetes_own.match(line):
            continue
        start = index
        while start > 0 and lines[start - 1].startswith(f"{match[1]}#"):
            start -= 1
        if not lines[start].startswith(f"{match[1]}# {match[2]} "):
            unexplained.append(match[2])
    assert unexplained == []


def test_value_schema_knows_exactly_the_values() -> None:
    """The values schema has exactly the chart's values: others would be refused or have no effect."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name in ("worker", "conflate", "view"):
        assert set(schema["definitions"]["component"]["properties"]) == set(values[name])


def test_no_template_names_a_namespace() -> None:
    """No template names a namespace, which is chosen at the installation."""
    templates = {path.name: path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*.yaml")}
    assert templates
    assert not [name for name, text in templates.items() if re.search(r"^\s*namespace:", text, re.MULTILINE)]


@needs_helm
def test_settings_in_the_config_map_are_the_programs(full, tmp_path) -> None:
    """The rendered sowstream.yaml loads without an unknown key or a number of another type."""
    config = settings(one(full, "ConfigMap", "sowstream"), tmp_path)
    assert config.topics["prices"].max_record_bytes == 8_388_608
    assert config.conflated["orders_large"].interval_range_ms == (200, 10_000)
    assert config.conflated["orders_large"].max_pending_bytes == 16_777_216
    assert config.runtime.write_back_bytes == 268_435_456
    assert config.kafka["enable.ssl.certificate.verification"] == "true"
    [join] = config.views["priced"].join
    assert join.on == {"/pair": "/pair"}, "Helm takes the name `on` for true"
    assert config.queues["to_ship"].lease_ms == 45_000
    assert settings(one(full, "ConfigMap", "topics"), tmp_path) == config


@needs_helm
def test_state_and_metrics_agree_with_the_pods(full, tmp_path) -> None:
    """The settings' state directory is a mounted volume, and their metrics port is the one of the probes."""
    config = settings(one(full, "ConfigMap", "sowstream"), tmp_path)
    for kind, suffix in KINDS:
        (container,) = one(full, kind, suffix)["spec"]["template"]["spec"]["containers"]
        assert str(config.state_dir) in {mount["mountPath"] for mount in container["volumeMounts"]}
        assert [port["containerPort"] for port in container["ports"]] == [config.runtime.metrics_port]
        pages = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
        for probe, page in pages.items():
            assert container[probe]["httpGet"] == {"path": page, "port": "metrics"}


@needs_helm
def test_pods_have_least_privilege(full) -> None:
    """Every pod runs without root, writable image, capabilities, token and variables of other services."""
    assert len(pods(full)) == 6
    for pod in pods(full):
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@needs_helm
@pytest.mark.parametrize(
    ("interval", "grace_s"), [("20", 30), ("1m", 70), ("2500ms", 13), ("0.5h", 1810), ("90s", 100)]
)
def test_pods_get_more_time_than_the_shutdown_takes(interval: str, grace_s: int) -> None:
    """Kubernetes waits ten seconds longer than the shutdown deadline, in any notation of it."""
    manifests = render("-f", str(FULL), "--set", f"config.runtime.shutdown_timeout_s={interval}")
    for kind, suffix in KINDS:
        assert one(manifests, kind, suffix)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == grace_s


@needs_helm
def test_worker_keeps_its_name_and_its_state(full) -> None:
    """Workers are a StatefulSet with a volume claim each, since the pod's name is part of the transactional id."""
    spec = one(full, "StatefulSet")["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "state"
    assert "helm.sh/chart" not in claim["metadata"]["labels"]
    assert "state" not in {volume["name"] for volume in spec["template"]["spec"]["volumes"]}


@needs_helm
def test_without_persistence_the_name_stays() -> None:
    """Without persistence the state is in the pod's own directory, and the StatefulSet with its names stays."""
    spec = one(render("-f", str(FULL), "--set", "persistence.enabled=false"), "StatefulSet")["spec"]
    assert "volumeClaimTemplates" not in spec
    assert {"name": "state", "emptyDir": {}} in spec["template"]["spec"]["volumes"]


@needs_helm
def test_secret_reaches_the_settings(full, tmp_path, monkeypatch) -> None:
    """The environment that a pod gets from the Secret is read as Kafka properties; none of it is in a ConfigMap."""
    (container,) = one(full, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    for variable in container["env"]:
        if "valueFrom" in variable:
            monkeypatch.setenv(variable["name"], f"value of {variable['valueFrom']['secretKeyRef']['key']}")
    config = settings(one(full, "ConfigMap", "sowstream"), tmp_path)
    assert config.kafka["sasl.username"] == "value of username"
    assert config.kafka["sasl.password"] == "value of password"
    assert config.kafka["bootstrap.servers"] == "kafka-0:9093,kafka-1:9093"


@needs_helm
def test_topics_are_created_before_the_release() -> None:
    """The job and its settings are hooks before install and upgrade, settings first; switched off, both are gone."""
    manifests = render("-f", str(FULL))
    job, config = one(manifests, "Job"), one(manifests, "ConfigMap", "topics")
    for hook in (job, config):
        assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    weights = [int(hook["metadata"]["annotations"]["helm.sh/hook-weight"]) for hook in (config, job)]
    assert weights == sorted(set(weights))
    without = render("-f", str(FULL), "--set", "topicsJob.enabled=false")
    assert not [m for m in without if m["kind"] == "Job"]
    assert len(manifests) - len(without) == 2


@needs_helm
def test_one_pod_of_a_kind_is_drained_at_a_time(full) -> None:
    """Workers and conflation each have a disruption budget that selects their own pods."""
    for kind, suffix in KINDS:
        budget = one(full, "PodDisruptionBudget", suffix)["spec"]
        assert budget["maxUnavailable"] == 1
        labels = one(full, kind, suffix)["spec"]["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()


@needs_helm
def test_changed_settings_restart_the_pods() -> None:
    """Changed settings restart the pods, since their checksum is part of the pod."""
    before, after = render("-f", str(FULL)), render("-f", str(FULL), "--set", "config.runtime.batch_records_max=10")
    for kind, suffix in KINDS:
        annotations = [one(m, kind, suffix)["spec"]["template"]["metadata"]["annotations"] for m in (before, after)]
        assert annotations[0]["checksum/config"] != annotations[1]["checksum/config"]


@needs_helm
def test_without_topics_nothing_runs() -> None:
    """The chart without topics renders, but starts no worker, no conflation and no job."""
    assert not {"StatefulSet", "Deployment", "Job"} & {manifest["kind"] for manifest in render()}


@needs_helm
@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("image.tag=latest", "image.tag"),
        ("worker.replica=3", "replica"),
        ("config.state_dir=/data", "config.state_dir"),
        ("persistence.whenScaled=Keep", "persistence.whenScaled"),
        ("config.runtime.shutdown_timeout_s=soon", "not an interval"),
        (r"config.kafka.sasl\.username=83", "sasl.username"),
        (r"config.kafka.client\.id=true", "client.id"),
        ("config.processors.p.settings.account=12345678901234567", "account"),
        ("config.topics.orders.sequence_jump_max=9007199254740993", "sequence_jump_max"),
    ],
)
def test_wrong_value_is_refused(setting: str, problem: str) -> None:
    """A wrong value stops Helm with the name.

    Among them are a floating tag, a misspelt name, a value that the chart sets itself, and a text or a long number
    without quotes, of which Helm would make another one.
    """
    with pytest.raises(ValueError, match=problem):
        render("-f", str(FULL), "--set", setting)


@needs_helm
@pytest.mark.parametrize("values", [["-f", str(FULL)], []], ids=["full", "bare"])
def test_chart_lints(values: list[str]) -> None:
    """The chart passes Helm's own linter."""
    command = ["helm", "lint", "--strict", str(CHART), *values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)
@pytest.mark.parametrize("version", ["1.28", "1.31", "1.34"])
def test_manifests_are_valid_kubernetes(full, version: str) -> None:
    """Every manifest is valid for an old and a new Kubernetes, with unknown fields forbidden."""
    import kubernetes_validate

    for manifest in full:
        kubernetes_validate.validate(manifest, version, strict=True)


@needs_helm
def test_gateway_gets_its_files_its_probes_and_its_service(tmp_path: Path) -> None:
    """The gateway's pods mount their Secret, are probed over TLS if they serve it, and are reached by a Service."""
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "config": {
                    "kafka": {"bootstrap.servers": "kafka:9092"},
                    "topics": {"orders": {"key": ["/id"]}},
                    "gateway": {
                        "auth": {"tokens_file": "/etc/sowstream-gateway/tokens.yaml"},
                        "entitlements": "/etc/sowstream-gateway/entitlements.yaml",
                        "tls": {
                            "certificate": "/etc/sowstream-gateway/tls.crt",
                            "key": "/etc/sowstream-gateway/tls.key",
                        },
                    },
                },
                "gateway": {"enabled": True, "replicas": 3, "secretName": "desk-gateway"},
            }
        )
    )
    manifests = render("-f", str(values))
    deployment = one(manifests, "Deployment", "-gateway")
    assert deployment["spec"]["replicas"] == 3
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert mounts["gateway"] == {"name": "gateway", "mountPath": "/etc/sowstream-gateway", "readOnly": True}
    assert {"name": "gateway", "secret": {"secretName": "desk-gateway", "defaultMode": 0o440}} in pod["volumes"]
    assert container["args"] == ["gateway", "-c", "/etc/sowstream/sowstream.yaml", "--listen", "0.0.0.0:8080"]
    for name, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[name]["httpGet"] == {"path": path, "port": "http", "scheme": "HTTPS"}
    service = one(manifests, "Service", "-gateway")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert one(manifests, "PodDisruptionBudget", "-gateway")
    served = settings(one(manifests, "ConfigMap", "sowstream"), tmp_path).gateway
    assert served.tls is not None
    plain = one(render("-f", str(FULL), "--set", "gateway.secretName="), "Deployment", "-gateway")
    [container] = plain["spec"]["template"]["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTP"
    assert "gateway" not in {mount["name"] for mount in container["volumeMounts"]}
