"""A namespace with a secured Kafka, a release of the chart, and the programs that load and check it."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from tests.certificates import Authority
from tests.kubernetes.api import Api, PortForward
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.figures import Pauses
from tests.kubernetes.pod_watch import METRICS_PORT, is_pod_ready
from tests.programs.faults.broker.scrape import Sample, parsed
from tests.secured.estate import parse_acls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE: Final = Path(__file__).parent
COMMON: Final = HERE / "values" / "common.yaml"
VALUES: Final = (COMMON, HERE / "values" / "desk.yaml")
RELEASE: Final = "desk"
WORKERS: Final = "app.kubernetes.io/component=worker"
PODS: Final = "app.kubernetes.io/instance=desk,app.kubernetes.io/component in (worker,conflate)"
PARTITIONS: Final = 12
USERS: Final = ("admin", "deployer", "worker", "conflater")
PORTS: Final = {"load": 8081, "observer": 8082, "account": 8083, "registry": 8084}
REGISTRY_PORT: Final = 8085
"""The port at which the program `registry` serves schemas."""
_LOCAL: Final = 9094
"""The broker's listener without login; its clients connect to 127.0.0.1 at this port, wherever they are."""
_PROGRAMS: Final = HERE / "in_pods"


@dataclass(frozen=True)
class Scale:
    """The size of a run, by variables of the environment."""

    keys: int = int(os.environ.get("KEYS", "200000"))
    rate: int = int(os.environ.get("RATE", "2000"))
    """Records a second."""
    outage_s: float = float(os.environ.get("OUTAGE_S", "120"))
    image: str = os.environ.get("SOWSTREAM_IMAGE", "sowstream:0.1.0")
    next_image: str = os.environ.get("NEXT_IMAGE", "")
    """An image whose states have another format; empty: there is none."""
    broker_image: str = os.environ.get("KAFKA_IMAGE", "apache/kafka:4.1.1")


class KubernetesEstate:
    """The namespace of a run."""

    def __init__(self, scale: Scale, files: Path) -> None:
        """Prepare, without a request to the cluster.

        Args:
            scale: the size of the run.
            files: a directory for certificates.
        """
        self.scale = scale
        self.cluster = Cluster(f"sowstream-{secrets.token_hex(3)}", VALUES)
        self.api = Api(self.cluster.namespace)
        self.passwords = {user: f"canary-{secrets.token_hex(12)}" for user in USERS}
        self._files = files
        self.images = image_values(scale.image)

    def prepare(self) -> None:
        """Create the namespace, Kafka with its users and rights, and the programs."""
        self.cluster.create()
        self._create_secrets()
        self._apply((HERE / "kafka.yaml").read_text(encoding="utf-8").replace("BROKER_IMAGE", self.scale.broker_image))
        sources = [f"--from-file={file}" for file in _PROGRAMS.glob("*.py")]
        self.cluster.kubectl("create", "configmap", "programs", *sources)
        self._apply((_PROGRAMS / "pod.yaml").read_text(encoding="utf-8").replace("IMAGE", self.scale.image))
        self.cluster.wait_for("Kafka is ready", self.is_kafka_ready)
        self.cluster.kubectl("wait", "--for=condition=Ready", "pod/programs", "--timeout=120s")
        self._grant(VALUES)

    def close(self) -> None:
        """Remove the namespace, unless it is to be kept."""
        self.api.__exit__()
        if not os.environ.get("KEEP"):
            self.cluster.remove()

    def install(self, *arguments: str, release: str = RELEASE) -> float:
        """Install or upgrade the release, and wait until its pods are ready; returns the seconds."""
        began_s = time.monotonic()
        self.cluster.upgrade(release, *self.images, "--wait", *arguments)
        self.wait_ready()
        return time.monotonic() - began_s

    def wait_ready(self, workers: int = 3) -> None:
        """Wait until so many workers and the conflater are ready, and no other pod is there."""

        def is_ready() -> bool:
            pods = self.api.pods(PODS)
            ready = [pod for pod in pods if is_pod_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
            return len(ready) == len(pods) == workers + 1

        self.cluster.wait_for("all pods are ready", is_ready)

    def is_kafka_ready(self) -> bool:
        """Return whether the broker's pod is Ready."""
        return self.cluster.kubectl("get", "statefulset", "kafka", "-o", "jsonpath={.status.readyReplicas}") == "1"

    def program(self, name: str, function: str, *, timeout_s: float = 30, **query: Any) -> Any:
        """Call a function of a program in the cluster."""
        return json.loads(self.api.page("programs", PORTS[name], function, timeout_s=timeout_s, **query))

    def start_load(self) -> None:
        """Publish each key once, wait until all are merged, and begin to publish deltas and to note pauses."""
        self.program("load", "fill", timeout_s=300, keys=self.scale.keys)
        self.check()
        self.program("observer", "start", partitions=PARTITIONS)
        self.resume()

    def resume(self) -> None:
        """Publish at the rate again, and wait until deltas flow."""
        self.program("load", "rate", rate=self.scale.rate)
        self.wait_flowing()

    def wait_flowing(self, patience_s: float = 300) -> None:
        """Wait until each partition has had a delta within the last second."""

        def flows() -> bool:
            seen = self.program("observer", "pauses", since=0)
            return len(seen["seen"]) == PARTITIONS and min(seen["seen"].values()) > seen["now"] - 1

        self.wait_until("deltas flow in all partitions", flows, patience_s)

    def steady(self, seconds: float) -> None:
        """Wait until deltas have flowed in all partitions without a pause for so many seconds."""
        began_s = time.time()

        def is_steady() -> bool:
            nonlocal began_s
            if self.pauses(began_s).most:
                began_s = time.time()
            return time.time() - began_s > seconds

        self.wait_until(f"no pause for {seconds} s", is_steady, 300)

    def pauses(self, since_s: float) -> Pauses:
        """The pauses since a time."""
        seen = self.program("observer", "pauses", since=since_s)
        return Pauses({name: [end - begin for begin, end in each] for name, each in seen["pauses"].items()})

    def check(self) -> dict[str, Any]:
        """Stop the load, and account for every record.

        Raises:
            AssertionError: a record is lost, double or wrong.
        """
        counts = self.program("load", "rate", timeout_s=120, rate=0)
        account: dict[str, Any] = self.program("account", "check", timeout_s=600, partitions=PARTITIONS, patience=120)
        assert account["wrong"] == 0, account
        assert counts["failed"] == 0, counts
        assert account["publish"] == account["delta"] == counts["stored"], (account, counts)
        return account

    def wait_until(self, event: str, look: Callable[[], bool], patience_s: float, pause_s: float = 0.2) -> None:
        """Look until a fact is there.

        Raises:
            TimeoutError: it is not there in time.
        """
        end_s = time.monotonic() + patience_s
        while not look():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{event}: not within {patience_s:.0f} s")
            time.sleep(pause_s)  # Between two looks; the fact decides.

    @contextmanager
    def release(self, name: str, *arguments: str) -> Iterator[Cluster]:
        """Another release in the namespace, with values of its own, as long as the block lasts."""
        cluster = replace(self.cluster, values=(COMMON, HERE / "values" / f"{name}.yaml"))
        self._grant(cluster.values)
        try:
            cluster.upgrade(name, *self.images, "--wait", *arguments)
            yield cluster
        finally:
            cluster.helm("uninstall", name, "--wait")
            cluster.kubectl("delete", "pvc", "-l", f"app.kubernetes.io/instance={name}")

    @contextmanager
    def local_kafka(self) -> Iterator[str]:
        """The address of the broker's local listener, forwarded to this machine, as long as the block lasts."""
        with PortForward(self.cluster.namespace, "pod/kafka-0", _LOCAL):
            yield f"127.0.0.1:{_LOCAL}"

    def metrics(self, selector: str) -> list[Sample]:
        """The metrics of the pods of a label selector: names, labels, values; a pod that serves none is left out."""
        found = []
        for pod in self.api.pods(selector):
            with suppress(OSError):
                found += parsed(self.api.page(pod["metadata"]["name"], METRICS_PORT, "metrics"))
        return found

    def neighbour(self) -> Cluster:
        """Create a second namespace whose pods reach the same Kafka by the same names, with the workers' user."""
        cluster = Cluster(f"{self.cluster.namespace}-b", VALUES)
        cluster.create()
        ports = [{"name": "kafka", "port": 9092}]
        for name in ("kafka", "kafka-brokers"):
            endpoints = [{"addresses": [self.api.pod("kafka-0")["status"]["podIP"]], "hostname": "kafka-0"}]
            labels = {"kubernetes.io/service-name": name}
            service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}}
            slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
            for manifest in (
                {**service, "spec": {"clusterIP": "None", "ports": ports}},
                {**slice_, "metadata": {"name": name, "labels": labels}, "endpoints": endpoints, "ports": ports},
            ):
                cluster.kubectl("apply", "-f", "-", text=json.dumps(manifest))
        secret = json.loads(self.cluster.kubectl("get", "secret", "kafka-worker", "-o", "json"))
        secret["metadata"] = {"name": "kafka-worker"}
        cluster.kubectl("apply", "-f", "-", text=json.dumps(secret))
        return cluster

    def _apply(self, manifest: str) -> None:
        self.cluster.kubectl("apply", "-f", "-", text=manifest)

    def _create_secrets(self) -> None:
        authority = Authority(self._files)
        server = authority.issue("server", "DNS:kafka,DNS:kafka-0.kafka-brokers")
        certificate = authority.file.read_text(encoding="utf-8")
        self.create_secret("kafka-tls", {"server.pem": server.read_text(encoding="utf-8")})
        self.create_secret("kafka-passwords", self.passwords)
        for user, password in self.passwords.items():
            self.create_secret(f"kafka-{user}", {"username": user, "password": password, "ca.crt": certificate})
        self.create_secret("kafka-wrong", {"username": "worker", "password": "wrong", "ca.crt": certificate})

    def create_secret(self, name: str, values: dict[str, str]) -> None:
        """Create a Secret."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        self._apply(json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}))

    def _grant(self, values: tuple[Path, ...]) -> None:
        """Grant each role the rights that the product prints for a release, and no other."""
        config: dict[str, Any] = {}
        for each in values:
            config |= yaml.safe_load(each.read_text(encoding="utf-8")).get("config", {})
        (file := self._files / "sowstream.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        command = [sys.executable, "-m", "processor.cli.main", "topics", "apply", "--acls", "-c", str(file)]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        bindings = [
            (acl.restype.name, acl.name, acl.resource_pattern_type.name, acl.principal, acl.operation.name)
            for acl in (acl.binding for acl in parse_acls(printed) if acl.who in USERS)
        ]
        grant = ("exec", "-i", "programs", "-c", "load", "--", "python3", "/etc/programs/grant.py")
        self.cluster.kubectl(*grant, text=json.dumps(bindings))


def image_values(image: str) -> tuple[str, ...]:
    """The arguments of Helm for an image of the product."""
    repository, _, tag = image.rpartition(":")
    return "--set", f"image.repository={repository}", "--set", f"image.tag={tag}"
