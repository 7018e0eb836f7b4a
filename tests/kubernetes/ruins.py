"""The six ways to ruin a topic, for a release in the cluster: its settings, pods and registry are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.endtoend import raising
from tests.endtoend.ruins import (
    BadRecords,
    Grown,
    HangingTransaction,
    RaisingPlugin,
    Registry,
    Ruin,
    SilentRegistry,
    UnreadableBatch,
)
from tests.hosting.packages import install
from tests.kubernetes.estate import REGISTRY_PORT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.endtoend.world import World
    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.estate import KubernetesEstate

RELEASE: Final = "ruins"
WORKERS: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=worker"
_STATEFUL_SET: Final = f"statefulset/{RELEASE}-sowstream-worker"
_RAISING_FILE: Final = "/var/lib/sowstream/raise"


class RegistryInCluster:
    """The program `registry`."""

    def __init__(self, estate: KubernetesEstate) -> None:
        """Find its address."""
        self._estate = estate
        self.url = f"http://{estate.api.pod('programs')['status']['podIP']}:{REGISTRY_PORT}"

    def silence(self) -> None:
        """Let all requests wait from now on."""
        self._estate.program("registry", "silence")

    def answer(self) -> None:
        """Answer again, also those that wait."""
        self._estate.program("registry", "answer")

    def close(self) -> None:
        """Answer again."""
        self.answer()


def ruins(estate: KubernetesEstate, directory: Path) -> dict[str, Ruin]:
    """Each way by its name, for the topics of `values/ruins.yaml`."""

    class Hanging(HangingTransaction):
        def move(self, world: World) -> None:
            scale(estate.cluster, 3)
            scale(estate.cluster, 2)

    class Unanswered(SilentRegistry):
        def registry(self) -> Registry:
            return RegistryInCluster(estate)

    class Raising(RaisingPlugin):
        def set_raising(self, *, raises: bool) -> None:
            command = ["touch"] if raises else ["rm", "-f"]
            for number in range(2):
                pod = f"{RELEASE}-sowstream-worker-{number}"
                estate.cluster.kubectl("exec", pod, "--", *command, _RAISING_FILE)

    return {
        "bad records": BadRecords(directory, "bad"),
        "unreadable batch": UnreadableBatch(directory, "unreadable"),
        "silent registry": Unanswered(directory, "unanswered"),
        "raising plug-in": Raising(directory, "plugged"),
        "hanging transaction": Hanging(directory, "hanging"),
        "grown input": Grown(directory, "grown"),
    }


def create_plugin(cluster: Cluster, site: Path) -> None:
    """Put the package of the plug-in into a ConfigMap, from which the release mounts it; `site` is a new directory."""
    install(site, "raising", {"raising": "raising:Raising"})
    metadata = f"--from-file={site / 'raising-1.0.dist-info'}"
    cluster.kubectl("create", "configmap", "plugin", f"--from-file={raising.__file__}", metadata)


def scale(cluster: Cluster, replicas: int) -> None:
    """Change the number of workers, and wait until they are ready."""
    cluster.kubectl("scale", _STATEFUL_SET, f"--replicas={replicas}")
    cluster.kubectl("rollout", "status", _STATEFUL_SET, "--timeout=180s")
