"""The chart's driver, and the executors that it describes, run the pipeline with no more rights than they need."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.deploy.test_chart import CHART, FULL, needs_helm, one, render

SPARK = CHART / "ci" / "spark-values.yaml"

pytestmark = needs_helm


@pytest.fixture(scope="module")
def manifests() -> list[dict[str, Any]]:
    """The manifests with everything switched on, the pipeline among it."""
    return render("-f", str(FULL), "-f", str(SPARK))


@pytest.fixture(scope="module")
def driver(manifests) -> dict[str, Any]:
    """The specification of the driver's pod."""
    return one(manifests, "StatefulSet", "spark")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def executor(manifests) -> dict[str, Any]:
    """The pod that Spark starts executors from."""
    return yaml.safe_load(one(manifests, "ConfigMap", "spark")["data"]["executor.yaml"])


@pytest.fixture(scope="module")
def pipeline(manifests) -> dict[str, Any]:
    """The file pipeline.yaml of the driver."""
    return yaml.safe_load(one(manifests, "ConfigMap", "spark")["data"]["pipeline.yaml"])


def violations(pod: dict[str, Any]) -> list[str]:
    """The reasons for which Kubernetes' Pod Security Standard `restricted` refuses a pod."""
    reasons = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    reasons += [f"volume {v['name']}" for v in pod["volumes"] if not set(v) - {"name"} <= allowed]
    context = pod["securityContext"]
    if context.get("runAsNonRoot") is not True or context.get("runAsUser") == 0:
        reasons.append("runAsNonRoot")
    if context.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        reasons.append("seccompProfile")
    for container in pod["containers"]:
        own = container["securityContext"]
        if own.get("allowPrivilegeEscalation") is not False:
            reasons.append("allowPrivilegeEscalation")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            reasons.append("capabilities")
    return reasons


def test_nothing_of_it_is_there_by_default() -> None:
    """Without the value no account, no right and no pod of Spark is created."""
    assert not {"Role", "RoleBinding", "ServiceAccount"} & {m["kind"] for m in render("-f", str(FULL))}


def test_driver_and_executors_are_restricted(driver, executor) -> None:
    """Both pods keep the Pod Security Standard `restricted`, with a read-only image; only the driver has a token."""
    assert violations(driver) == violations(executor["spec"]) == []
    for pod in (driver, executor["spec"]):
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"/tmp", "/var/lib/sowstream"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert executor["spec"]["automountServiceAccountToken"] is False


def test_the_driver_may_do_no_more_than_start_its_executors(manifests, driver) -> None:
    """The rights are those of the driver's own account, in its namespace, on pods and two kinds that Spark needs."""
    binding = one(manifests, "RoleBinding", "spark")
    assert [subject["name"] for subject in binding["subjects"]] == [driver["serviceAccountName"]]
    (rule,) = one(manifests, "Role", "spark")["rules"]
    assert set(rule["resources"]) == {"pods", "configmaps", "persistentvolumeclaims"}
    assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


def test_the_driver_leaves_services_alone(manifests, pipeline) -> None:
    """The driver has no right to delete services, and does not try: the one that Spark would make is not there."""
    (rule,) = one(manifests, "Role", "spark")["rules"]
    assert "services" not in rule["resources"]
    assert pipeline["spark"]["spark.kubernetes.driver.service.deleteOnTermination"] == "false"


def test_executors_find_the_driver_by_its_pods_name(manifests, driver, pipeline) -> None:
    """The driver's address is that of its pod in the headless service, with the ports that the pod opens."""
    conf = pipeline["spark"]
    service = one(manifests, "Service", "spark")
    name = one(manifests, "StatefulSet", "spark")["metadata"]["name"]
    assert conf["spark.driver.host"].split(".")[:2] == [f"{name}-0", service["metadata"]["name"]]
    assert conf["spark.kubernetes.driver.pod.name"] == f"{name}-0"
    assert service["spec"]["publishNotReadyAddresses"] is True
    ports = {port["name"]: str(port["containerPort"]) for port in driver["containers"][0]["ports"]}
    assert (ports["driver"], ports["blocks"]) == (conf["spark.driver.port"], conf["spark.driver.blockManager.port"])
    labels = one(manifests, "StatefulSet", "spark")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_pipeline_is_the_users_with_the_charts_connections(pipeline) -> None:
    """The jobs and settings of the user are there, and the settings that connect driver and executors."""
    assert set(pipeline["jobs"]) == {"archive", "book"}
    assert pipeline["settings"] == "/etc/sowstream/sowstream.yaml"
    conf = pipeline["spark"]
    assert conf["spark.master"].startswith("k8s://")
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.executor.instances"] == "3"
    assert conf["spark.kubernetes.container.image"] == "registry.example/sowstream-spark:0.1.0"
    assert all(isinstance(value, str) for value in conf.values())


def test_the_pipeline_is_accepted(manifests, pipeline, tmp_path) -> None:
    """`sowstream-spark` loads the file next to the settings of the same release."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
    from spark_integration.pipeline.pipeline_settings import PipelineSettings

    (tmp_path / "sowstream.yaml").write_text(one(manifests, "ConfigMap", "sowstream")["data"]["sowstream.yaml"])
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(pipeline | {"settings": "sowstream.yaml"}))
    assert set(PipelineSettings.load(tmp_path / "pipeline.yaml").jobs) == {"archive", "book"}


def test_one_driver_at_a_time_with_time_to_end(manifests, driver) -> None:
    """The driver is the single pod of a StatefulSet, and its program parses the jobs of the values."""
    from tests.deploy.test_commands import accepted

    assert one(manifests, "StatefulSet", "spark")["spec"]["replicas"] == 1
    assert driver["terminationGracePeriodSeconds"] == 120
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")
    from spark_integration.cli import app

    assert accepted(driver["containers"][0]["args"], app)["jobs"] == ["archive", "book"]


def test_the_executors_template_is_the_one_that_the_driver_mounts(driver, executor, pipeline) -> None:
    """The driver reads the template from its volume, and Spark finds the container by its name."""
    conf = pipeline["spark"]
    mounts = {mount["name"]: mount["mountPath"] for mount in driver["containers"][0]["volumeMounts"]}
    assert conf["spark.kubernetes.executor.podTemplateFile"] == f"{mounts['pipeline']}/executor.yaml"
    assert [c["name"] for c in executor["spec"]["containers"]] == [
        conf["spark.kubernetes.executor.podTemplateContainerName"]
    ]


@pytest.mark.parametrize(
    "setting",
    [
        "spark.pipeline.checkpoints=",
        "spark.pipeline.spark.x=1",
        "spark.image.tag=latest",
        "spark.executors=0",
        "spark.job=x",
    ],
)
def test_wrong_value_is_refused(setting: str) -> None:
    """A pipeline without checkpoints, settings in the wrong place, a floating tag and a misspelt name stop Helm."""
    with pytest.raises(ValueError, match="spark"):
        render("-f", str(FULL), "-f", str(SPARK), "--set", setting)


@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_manifests_are_valid_kubernetes(manifests, executor, version: str) -> None:
    """Every manifest and the executors' template are valid, with unknown fields forbidden."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for manifest in [*manifests, executor | {"metadata": executor["metadata"] | {"name": "executor"}}]:
        kubernetes_validate.validate(manifest, version, strict=True)
