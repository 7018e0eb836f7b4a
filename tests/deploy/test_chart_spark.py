"""The chart's driver, and the executors that it describes, run the pipeline with no more rights than they need."""

from __future__ import annotations

import json
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


def test_the_drivers_account_alone_has_rights(manifests, driver, executor) -> None:
    """The rights are those of the driver's own account, in its namespace, on pods; the executors' account has none."""
    binding = one(manifests, "RoleBinding", "spark")
    assert [subject["name"] for subject in binding["subjects"]] == [driver["serviceAccountName"]]
    (rule,) = one(manifests, "Role", "spark")["rules"]
    assert rule["resources"] == ["pods"]
    assert set(rule["verbs"]) == {"create", "get", "list", "watch", "delete", "deletecollection"}
    account = one(manifests, "ServiceAccount", "spark-executor")
    assert executor["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False


def test_spark_that_makes_claims_has_the_right_to() -> None:
    """A driver whose executors get claims of Spark's making has rights on claims, and owns them."""
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName"
    manifests = render("-f", str(FULL), "-f", str(SPARK), "--set-json", "spark.conf=" + json.dumps({claim: "OnDemand"}))
    rules = one(manifests, "Role", "spark")["rules"]
    assert [rule["resources"] for rule in rules] == [["pods"], ["persistentvolumeclaims"]]
    pipeline = yaml.safe_load(one(manifests, "ConfigMap", "spark")["data"]["pipeline.yaml"])
    assert "spark.kubernetes.driver.ownPersistentVolumeClaim" not in pipeline["spark"]


def test_the_driver_asks_for_nothing_that_it_has_no_right_to(pipeline) -> None:
    """Spark makes no config map and no claim for executors, and deletes no service."""
    conf = pipeline["spark"]
    assert conf["spark.kubernetes.executor.disableConfigMap"] == "true"
    assert conf["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert conf["spark.kubernetes.driver.service.deleteOnTermination"] == "false"


def test_driver_and_executors_have_a_secret_in_common(manifests, driver, executor, pipeline) -> None:
    """Connections are encrypted and need a key, which both pods read from a file of the Secret."""
    conf = pipeline["spark"]
    for name in ("authenticate", "network.crypto.enabled", "io.encryption.enabled"):
        assert conf[f"spark.{name}"] == "true"
    assert conf["spark.network.crypto.saslFallback"] == "false"
    assert "spark.authenticate.secret" not in conf
    for pod in (driver, executor["spec"]):
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "spark-auth"]
        assert mount["readOnly"] is True
        assert conf["spark.authenticate.secret.file"] == f"{mount['mountPath']}/secret"
        [volume] = [each for each in pod["volumes"] if each["name"] == "spark-auth"]
        assert volume["secret"]["secretName"] == "desk-spark"
        assert volume["secret"]["items"] == [{"key": "secret", "path": "secret"}]
        assert (volume["secret"]["defaultMode"], pod["securityContext"]["fsGroup"]) == (0o440, 10001)
    assert not [manifest for manifest in manifests if manifest["kind"] == "Secret"]


def test_the_ports_of_driver_and_executors_are_open_to_each_other_alone(manifests, driver, executor, pipeline) -> None:
    """Both are selected, also without the value `networkPolicy`; no other pod may use their ports, which are fixed."""
    conf = pipeline["spark"]
    policy = one(manifests, "NetworkPolicy", "spark")["spec"]
    (expression,) = policy["podSelector"]["matchExpressions"]
    of_driver = one(manifests, "StatefulSet", "spark")["spec"]["template"]["metadata"]["labels"]
    for labels in (of_driver, executor["metadata"]["labels"]):
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert labels[expression["key"]] in expression["values"]
    assert policy["policyTypes"] == ["Ingress"]
    between, metrics = policy["ingress"]
    assert [str(port["port"]) for port in between["ports"]] == [
        conf["spark.driver.port"],
        conf["spark.blockManager.port"],
    ]
    assert between["from"] == [{"podSelector": policy["podSelector"]}]
    assert [port["port"] for port in metrics["ports"]] == [9464]


def test_the_general_network_policy_leaves_out_the_pods_of_the_one_of_spark() -> None:
    """Driver and executors, those of `spark-submit` too, reach Kubernetes and tables: one of the policies has them."""
    operated = CHART / "ci" / "operated-values.yaml"
    policies = [
        each["spec"]["podSelector"]["matchExpressions"]
        for each in render("-f", str(operated), "-f", str(SPARK))
        if each["kind"] == "NetworkPolicy"
    ]
    [(general,), (of_spark,)] = sorted(policies, key=lambda found: found[0]["operator"], reverse=True)
    assert (general["operator"], of_spark["operator"]) == ("NotIn", "In")
    assert general["values"] == of_spark["values"]


def test_the_pods_of_spark_have_what_the_values_give_all_pods() -> None:
    """Kafka's key files and variables of Spark's own Secret, an image by digest, limits of directories and priority."""
    operated = CHART / "ci" / "operated-values.yaml"
    digest = "sha256:" + "ab" * 32
    more = ["kafkaSecretName=kafka-spark", "podLabels.team=a", "priorityClassName=low", f"image.digest={digest}"]
    sets = [word for setting in more for word in ("--set", f"spark.{setting}")]
    manifests = render("-f", str(operated), "-f", str(SPARK), *sets)
    template = one(manifests, "StatefulSet", "spark")["spec"]["template"]
    files = one(manifests, "ConfigMap", "spark")["data"]
    executor = yaml.safe_load(files["executor.yaml"])
    for pod in (template, executor):
        assert pod["metadata"]["labels"]["team"] == "a"
        assert pod["spec"]["priorityClassName"] == "low"
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"registry.example/sowstream-spark@{digest}"
        variables = {each["name"]: each for each in container["env"]}
        assert variables["SOWSTREAM_KAFKA__SSL.KEY.LOCATION"]["value"] == "/etc/sowstream-kafka/tls.key"
        password = variables["SOWSTREAM_KAFKA__SSL.KEY.PASSWORD"]["valueFrom"]["secretKeyRef"]
        assert password == {"name": "kafka-spark", "key": "key-password"}
        assert container["envFrom"] == [{"configMapRef": {"name": "proxies"}}]
        assert {"name": "kafka", "mountPath": "/etc/sowstream-kafka", "readOnly": True} in container["volumeMounts"]
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert volumes["kafka"]["secret"]["secretName"] == "kafka-spark"
        assert {item["path"] for item in volumes["kafka"]["secret"]["items"]} == {"ca.crt", "tls.crt", "tls.key"}
        assert volumes["scratch"]["emptyDir"] == {"sizeLimit": "20Gi"}
    assert yaml.safe_load(files["pipeline.yaml"])["spark"]["spark.kubernetes.container.image"].endswith(digest)


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
        "spark.authSecret.name=",
        "spark.authSecret.name=Not a name",
        "spark.authSecret.key=",
        "spark.authSecret.value=hunter2",
        r"spark.conf.spark\.authenticate=false",
        r"spark.conf.spark\.authenticate\.secret=hunter2",
        r"spark.conf.spark\.network\.crypto\.enabled=false",
        r"spark.conf.spark\.io\.encryption\.enabled=false",
        r"spark.conf.spark\.blockManager\.port=0",
        r"spark.conf.spark\.kubernetes\.executor\.podTemplateFile=x",
        r"spark.conf.spark\.hadoop\.fs\.s3a\.secret\.key=hunter2",
        r"spark.conf.spark\.hadoop\.fs\.s3a\.session\.token=hunter2",
        r"spark.conf.spark\.executorEnv\.AWS_SECRET_ACCESS_KEY=hunter2",
        r"spark.conf.spark\.hadoop\.javax\.jdo\.option\.ConnectionPassword=hunter2",
        r"spark.conf.spark\.executorEnv\.aws_secret_access_key=hunter2",
        r"spark.conf.spark\.hadoop\.fs\.azure\.account\.oauth2\.client\.secret\.acc\.dfs\.core\.windows\.net=hunter2",
        r"spark.conf.spark\.hadoop\.fs\.azure\.sas\.fixed\.token\.acc\.dfs\.core\.windows\.net=hunter2",
        r"spark.conf.spark\.hadoop\.fs\.azure\.account\.key\.acc\.dfs\.core\.windows\.net=hunter2",
        r"spark.conf.spark\.hadoop\.fs\.gs\.auth\.service\.account\.private\.key=hunter2",
        r"spark.conf.spark\.hadoop\.fs\.s3a\.encryption\.key=hunter2",
        r"spark.conf.spark\.sql\.catalog\.lake\.credential=hunter2",
        r"spark.conf.spark\.sql\.catalog\.lake\.uri=jdbc:postgresql://desk:hunter2@db/lake",
        r"spark.pipeline.kafka.sasl\.jaas\.config=hunter2",
        r"spark.pipeline.jobs.book.kafka.sasl\.jaas\.config=hunter2",
        r"spark.pipeline.kafka.ssl\.keystore\.key=hunter2",
    ],
)
def test_wrong_value_is_refused(setting: str) -> None:
    """Helm stops at a value that would have no effect, undo the protection of the pods, or lay a secret open."""
    with pytest.raises(ValueError, match="spark") as error:
        render("-f", str(FULL), "-f", str(SPARK), "--set-string" if "conf" in setting else "--set", setting)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.kubernetes.executor.secretKeyRef.AWS_ACCESS_KEY_ID", "aws:id"),
        ("spark.kubernetes.executor.secrets.certificates", "/etc/certificates"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "Provider"),
        ("spark.hadoop.fs.s3a.access.key", "AKIA"),
        ("spark.hadoop.fs.s3a.secret.key", "${env.S3_SECRET}"),
        ("spark.hadoop.fs.s3a.encryption.key", "arn:aws:kms:eu-central-1:1:key/2"),
        ("spark.hadoop.fs.azure.account.oauth2.token.file.acc.dfs.core.windows.net", "/var/run/token"),
        ("spark.hadoop.fs.gs.auth.service.account.private.key.id", "1"),
        ("spark.executorEnv.AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ("spark.security.credentials.hive.enabled", "false"),
        ("spark.redaction.regex", "(?i)secret|password|token"),
        ("spark.sql.catalog.lake.warehouse", "abfss://lake@acc.dfs.core.windows.net/x"),
        ("spark.kubernetes.executor.request.cores", "1"),
        ("spark.sql.shuffle.partitions", "8"),
        ("spark.network.timeout", "60s"),
    ],
)
def test_other_settings_of_spark_are_taken(name: str, value: str) -> None:
    """A setting that is neither a secret nor the chart's own is the user's."""
    conf = json.dumps({name: value})
    manifests = render("-f", str(FULL), "-f", str(SPARK), "--set-json", f"spark.conf={conf}")
    assert yaml.safe_load(one(manifests, "ConfigMap", "spark")["data"]["pipeline.yaml"])["spark"][name] == value


def test_without_a_secret_the_pipeline_is_not_installed() -> None:
    """A driver that would take any executor is refused, with the name of the value."""
    with pytest.raises(ValueError, match="authSecret"):
        render("-f", str(FULL), "-f", str(SPARK), "--set-json", "spark.authSecret=null")


@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_manifests_are_valid_kubernetes(manifests, executor, version: str) -> None:
    """Every manifest and the executors' template are valid, with unknown fields forbidden."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for manifest in [*manifests, executor | {"metadata": executor["metadata"] | {"name": "executor"}}]:
        kubernetes_validate.validate(manifest, version, strict=True)
