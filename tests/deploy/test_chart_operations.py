"""The chart's parts for operators: worker groups, monitoring, autoscaling, network policy, accounts and Secrets."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from processor.runtime.metrics import PARTITION_LAG
from tests.deploy.test_chart import CHART, FULL, needs_helm, one, pods, render, settings
from tests.deploy.test_commands import accepted
from tests.deploy.test_monitoring import RULES, rules

OPERATED = CHART / "ci" / "operated-values.yaml"
CRDS = Path(os.environ.get("SOWSTREAM_TEST_CRDS") or Path(__file__).parents[3] / "shared" / "suites" / "crds")
"""Schemas of custom resources, as datreeio/CRDs-catalog has them."""
OPTIONAL = {"PodMonitor", "PrometheusRule", "NetworkPolicy", "ScaledObject", "ServiceAccount"}
PARTS_OF = {
    "PodMonitor": "monitoring.coreos.com/podmonitor_v1.json",
    "PrometheusRule": "monitoring.coreos.com/prometheusrule_v1.json",
    "ScaledObject": "keda.sh/scaledobject_v1alpha1.json",
}
"""The kinds that Kubernetes itself does not have, with their schemas."""

pytestmark = needs_helm


@pytest.fixture(scope="module")
def operated() -> list[dict[str, Any]]:
    """The manifests with all that is for operators."""
    return render("-f", str(OPERATED))


def workers(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The StatefulSets, by the end of their names."""
    sets = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    return {each["metadata"]["name"].removeprefix("desk-sowstream-"): each for each in sets}


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    """The one container of an owner of pods."""
    [only] = manifest["spec"]["template"]["spec"]["containers"]
    return dict(only)


def secrets(manifest: dict[str, Any]) -> set[str]:
    """The Secrets that a pod takes variables or Kafka's files from."""
    env = {one["valueFrom"]["secretKeyRef"]["name"] for one in container(manifest)["env"] if "valueFrom" in one}
    volumes = manifest["spec"]["template"]["spec"]["volumes"]
    return env | {each["secret"]["secretName"] for each in volumes if each["name"] == "kafka"}


@pytest.mark.parametrize("values", [["-f", str(FULL)], []], ids=["full", "bare"])
def test_nothing_of_it_is_there_unless_switched_on(values: list[str]) -> None:
    """A cluster without the operators of Prometheus and KEDA can install the chart as shipped."""
    assert not OPTIONAL & {manifest["kind"] for manifest in render(*values)}


@pytest.mark.skipif(not CRDS.is_dir(), reason=f"no schemas of custom resources in {CRDS} (SOWSTREAM_TEST_CRDS)")
def test_objects_of_operators_fit_their_schemas(operated: list[dict[str, Any]]) -> None:
    """Each custom object is valid for its operator, with unknown fields forbidden."""
    for kind, name in PARTS_OF.items():
        schema = json.loads((CRDS / name).read_text(encoding="utf-8"))
        objects = [manifest for manifest in operated if manifest["kind"] == kind]
        assert objects
        for manifest in objects:
            assert [error.message for error in Draft7Validator(schema).iter_errors(manifest)] == []


@pytest.mark.skipif(
    importlib.util.find_spec("kubernetes_validate") is None, reason="kubernetes-validate is not installed"
)
def test_other_manifests_are_valid_kubernetes(operated: list[dict[str, Any]]) -> None:
    """Every manifest of a kind of Kubernetes' own is valid, with unknown fields forbidden."""
    import kubernetes_validate

    for manifest in operated:
        if manifest["kind"] not in PARTS_OF:
            kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_prometheus_reads_every_pod_that_serves_metrics(operated: list[dict[str, Any]]) -> None:
    """The PodMonitor selects the pods of all components, and names a port that each of them has."""
    spec = one(operated, "PodMonitor")["spec"]
    owners = [manifest for manifest in operated if manifest["kind"] in {"StatefulSet", "Deployment"}]
    assert len(owners) == 4
    ports = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
    for owner in owners:
        labels = owner["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        assert len(ports & {port["name"] for port in container(owner)["ports"]}) == 1


def test_the_chart_has_all_alerts_and_dashboards(operated: list[dict[str, Any]]) -> None:
    """Rules and dashboards are those of deploy/, and an alert leads to the installation's own runbook."""
    shipped = [rule for group in one(operated, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
    expected = json.loads(json.dumps(rules()).replace("deploy/RUNBOOK.md", "https://runbooks.example/sowstream"))
    assert shipped == expected
    assert len(RULES) == 2
    boards = one(operated, "ConfigMap", "dashboards")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = sorted((CHART / "files" / "grafana").glob("*.json"))
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        f"sowstream-{file.name}": json.loads(file.read_text(encoding="utf-8")) for file in files
    }


def test_the_network_policy_opens_the_ports_of_the_pods(operated: list[dict[str, Any]]) -> None:
    """All pods are selected; metrics and the gateway can be reached, and Kafka and names can be used."""
    spec = one(operated, "NetworkPolicy")["spec"]
    opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
    for manifest in operated:
        if manifest["kind"] in {"StatefulSet", "Deployment", "Job"}:
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert spec["podSelector"]["matchLabels"].items() <= labels.items()
            assert {port["containerPort"] for port in container(manifest).get("ports", ())} <= opened
    assert [[port["port"] for port in rule["ports"]] for rule in spec["egress"]] == [[53, 53], [9093], [8081]]
    assert spec["policyTypes"] == ["Ingress", "Egress"]


def test_prometheus_reaches_the_metrics_of_a_gateway_that_is_open_to_its_clients_alone() -> None:
    """The gateway serves its metrics at the port of its clients; without `metricsFrom` that stays theirs alone."""
    peers = {name: [{"podSelector": {"matchLabels": {"is": name}}}] for name in ("ingress", "prometheus")}

    def may_reach_the_gateway(metrics_from: list[Any]) -> list[Any]:
        policy = {"gatewayFrom": peers["ingress"], "metricsFrom": metrics_from}
        words = ["--set", "gateway.enabled=true"]
        for name, each in policy.items():
            words += ["--set-json", f"networkPolicy.{name}={json.dumps(each)}"]
        manifests = render("-f", str(OPERATED), *words)
        rules = one(manifests, "NetworkPolicy")["spec"]["ingress"]
        return [rule["from"] for rule in rules if 8080 in {port["port"] for port in rule["ports"]}]

    assert may_reach_the_gateway(peers["prometheus"]) == [peers["ingress"], peers["prometheus"]]
    assert may_reach_the_gateway([]) == [peers["ingress"]]


def test_each_group_of_workers_runs_its_topics_and_the_workers_the_rest(operated: list[dict[str, Any]]) -> None:
    """A group has the values of `worker` and its own, a name, a Service and a disruption budget."""
    sets = workers(operated)
    topics = {name: accepted(container(each)["args"])["names"] for name, each in sets.items()}
    assert topics == {"worker": ["prices", "trades"], "worker-desk": ["orders"]}
    limits = {name: container(each)["resources"]["limits"]["memory"] for name, each in sets.items()}
    assert limits == {"worker": "1Gi", "worker-desk": "4Gi"}
    for name, each in sets.items():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert accepted(container(each)["args"])["processes"] == 2
        assert one(operated, "Service", f"sowstream-{name}")["spec"]["selector"].items() <= labels.items()
        budget = one(operated, "PodDisruptionBudget", f"sowstream-{name}")["spec"]["selector"]["matchLabels"]
        assert budget.items() <= labels.items()
        others = [other for other in sets.values() if other is not each]
        assert not any(budget.items() <= o["spec"]["template"]["metadata"]["labels"].items() for o in others)


def test_without_a_topic_left_there_are_the_groups_alone() -> None:
    """The workers of no group are left out once every topic has one."""
    more = ["--set-json", 'workerGroups.rest={"topics":["prices","trades"]}']
    assert set(workers(render("-f", str(OPERATED), *more))) == {"worker-desk", "worker-rest"}


def test_plug_ins_alone_have_workers() -> None:
    """Processors of third parties run without a topic of our own beside them."""
    manifests = render("--set-json", 'config.processors.audit={"use":"audit","topic":{"key":["/id"]}}')
    assert set(workers(manifests)) == {"worker"}
    assert one(manifests, "Job")


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ('workerGroups.desk={"topics":["typo"]}', "config has no topic typo"),
        ('workerGroups.two={"topics":["orders"]}', "another group has orders, too"),
        ('workerGroups.a-name-too-long={"topics":["orders"]}', "a-name-too-long"),
        ("workerGroups.empty={}", "topics"),
        (
            'config.kafka.sasl\\.password="hunter2"',
            r"config\.kafka: sasl\.password is a secret.*kafkaSecret: {name: SECRET",
        ),
        ("config.topics.orders.partition=4", "partition"),
        ('config.conflated.orders_5s={"underlyin":"orders"}', "underlyin"),
        ("config.topcs={}", "topcs"),
        ('config.kafka.ssl\\.key\\.pem="-----BEGIN"', "config.kafka"),
        ('config.kafka.sasl\\.oauthbearer\\.client\\.secret="hunter2"', "config.kafka"),
        ('config.kafka.sasl\\.oauthbearer\\.assertion\\.private\\.key\\.passphrase="hunter2"', "config.kafka"),
        (
            'config.schema_registry={"url":"https://r","basic.auth.user.info":"svc:hunter2"}',
            r"config\.schema_registry: basic\.auth\.user\.info is a secret.*extraEnv: \[{name: SOWSTREAM_SCHEMA",
        ),
        ('config.schema_registry={"url":"https://r","ssl.key.password":"hunter2"}', "ssl.key.password is a secret"),
        ('config.schema_registry={"url":"https://r","bearer.auth.token":"hunter2"}', "bearer.auth.token is a secret"),
        ('config.schema_registry={"url":"https://svc:hunter2@r:8081"}', "url is a secret"),
        ('image.digest="sha256:12"', "image.digest"),
        ('autoscaling.prometheusUrl=""', "autoscaling"),
        ('kafkaSecret.files={"sasl.password":"p"}', "kafkaSecret.files"),
    ],
)
def test_a_wrong_value_is_refused(setting: str, problem: str) -> None:
    """Helm stops with the name of the value, and no secret reaches a ConfigMap."""
    with pytest.raises(ValueError, match=problem) as error:
        render("-f", str(OPERATED), "--set-json", setting)
    assert "hunter2" not in str(error.value)


def test_credentials_of_the_registry_come_from_a_secret(tmp_path: Path, monkeypatch: Any) -> None:
    """The variables of the refusal and of the page are read as properties; the kind of the credentials is no secret."""
    registry = {"url": "https://r:8081", "basic.auth.credentials.source": "USER_INFO"}
    manifests = render("-f", str(OPERATED), "--set-json", f"config.schema_registry={json.dumps(registry)}")
    monkeypatch.setenv("SOWSTREAM_SCHEMA_REGISTRY__BASIC_AUTH_USER_INFO", "svc:hunter2")
    monkeypatch.setenv("SOWSTREAM_SCHEMA_REGISTRY__ssl.key.password", "hunter3")
    read = settings(one(manifests, "ConfigMap", "sowstream"), tmp_path).schema_registry
    assert read == registry | {"basic.auth.user.info": "svc:hunter2", "ssl.key.password": "hunter3"}


def test_each_role_has_its_own_secret(operated: list[dict[str, Any]], tmp_path: Path, monkeypatch: Any) -> None:
    """The topics job and conflation use Secrets of their own; certificates are files whose places the program reads."""
    assert secrets(workers(operated)["worker-desk"]) == {"kafka-worker"}
    assert secrets(one(operated, "Deployment", "conflate")) == {"kafka-conflate"}
    assert secrets(one(operated, "Job")) == {"kafka-topics"}
    pod = container(workers(operated)["worker"])
    assert {"name": "kafka", "mountPath": "/etc/sowstream-kafka", "readOnly": True} in pod["volumeMounts"]
    for variable in pod["env"]:
        monkeypatch.setenv(variable["name"], variable.get("value", "of the Secret"))
    kafka = settings(one(operated, "ConfigMap", "sowstream"), tmp_path).kafka
    assert kafka["ssl.key.location"] == "/etc/sowstream-kafka/tls.key"
    assert kafka["ssl.key.password"] == "of the Secret"
    [volume] = [
        each for each in workers(operated)["worker"]["spec"]["template"]["spec"]["volumes"] if each["name"] == "kafka"
    ]
    assert {item["path"] for item in volume["secret"]["items"]} == {"ca.crt", "tls.crt", "tls.key"}


def test_pods_have_the_extras_of_their_component(operated: list[dict[str, Any]]) -> None:
    """Digest, labels, variables, priority, rollout, limits of directories and the account are those of the values."""
    worker = workers(operated)["worker"]
    pod = worker["spec"]["template"]["spec"]
    assert container(worker)["image"].startswith("registry.example/sowstream@sha256:")
    assert container(worker)["envFrom"] == [{"configMapRef": {"name": "proxies"}}]
    assert worker["spec"]["template"]["metadata"]["labels"]["example.com/cost-centre"] == "42"
    assert pod["priorityClassName"] == "streaming"
    assert (worker["spec"]["minReadySeconds"], worker["spec"]["updateStrategy"]) == (
        10,
        {"rollingUpdate": {"partition": 1}},
    )
    sizes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each}
    assert sizes == {"tmp": "256Mi", "state": "20Gi"}
    account = one(operated, "ServiceAccount")
    assert {each.get("serviceAccountName") for each in pods(operated)} == {account["metadata"]["name"], None}
    # A hook runs before the account exists.
    assert "serviceAccountName" not in one(operated, "Job")["spec"]["template"]["spec"]
    assert account["automountServiceAccountToken"] is False


def test_pods_of_a_kind_are_spread_over_nodes_where_there_is_room(operated: list[dict[str, Any]]) -> None:
    """The default asks for different nodes, and keeps no pod from starting; a constraint of the values stands alone."""
    for name, each in workers(operated).items():
        [constraint] = each["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
        assert constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == name
    full = render("-f", str(FULL))
    [own] = workers(full)["worker"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert own == yaml.safe_load(FULL.read_text(encoding="utf-8"))["worker"]["topologySpreadConstraints"][0]
    off = workers(render("-f", str(OPERATED), "--set", "spreadOverNodes=false"))["worker"]
    assert "topologySpreadConstraints" not in off["spec"]["template"]["spec"]


def test_the_number_of_workers_follows_their_own_lag(operated: list[dict[str, Any]]) -> None:
    """Each group scales by the lag of its topics, one pod less at a time, and Helm does not set its replicas."""
    for name, topics in (("worker", "prices|trades"), ("worker-desk", "orders")):
        scaled = one(operated, "ScaledObject", f"sowstream-{name}")["spec"]
        assert scaled["scaleTargetRef"] == {"kind": "StatefulSet", "name": f"desk-sowstream-{name}"}
        [trigger] = scaled["triggers"]
        query = trigger["metadata"]["query"]
        assert query == f'sum({PARTITION_LAG._name}{{namespace="default", processor=~"{topics}"}})'
        assert "replicas" not in workers(operated)[name]["spec"]
        [policy] = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)
