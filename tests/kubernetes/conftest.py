"""A cluster with a release under load, for all tests of this folder; they run in the order of the files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.kubernetes.estate import KubernetesEstate, Scale
from tests.kubernetes.figures import Figures
from tests.kubernetes.pod_watch import FirstReady, PodWatch, first_ready, restarts

if TYPE_CHECKING:
    from collections.abc import Iterator

SWITCH: Final = "SOWSTREAM_TEST_KUBERNETES"
FIGURES: Final = pytest.StashKey[Figures]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that need the cluster a long time, and skip them unless they are asked for."""
    for item in items:
        if "estate" in getattr(item, "fixturenames", ()) and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.long)
            item.add_marker(pytest.mark.timeout(1800))
            if SWITCH not in os.environ:
                item.add_marker(pytest.mark.skip(reason=f"needs a cluster: make test-kubernetes sets {SWITCH}"))


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> Figures:
    """The table of this run."""
    return pytestconfig.stash.setdefault(FIGURES, Figures())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    if figures := config.stash.get(FIGURES, None):
        terminalreporter.write_line(f"\n{figures}")


@pytest.fixture(scope="session")
def scale() -> Scale:
    """The size of the run."""
    return Scale()


@pytest.fixture(scope="session")
def estate(scale: Scale, figures: Figures, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesEstate]:
    """The release as shipped, under load, after its first account."""
    if directory := os.environ.get("K8S_DIR"):
        os.environ["PATH"] = f"{directory}/bin:{os.environ['PATH']}"
        os.environ["KUBECONFIG"] = str(Path(directory) / "kubeconfig")
    made = KubernetesEstate(scale, tmp_path_factory.mktemp("tls"))
    try:
        made.prepare()
        with PodWatch(made.cluster.namespace, "app.kubernetes.io/component=worker") as watch:
            seconds = made.install()
            tested = made.cluster.helm("test", "desk")
        ready = first_ready(watch.samples())
        figures.add(
            "K1",
            "`helm install` under Pod Security restricted, on a Kafka with TLS, SCRAM and ACLs",
            f"all pods Ready after {seconds:.0f} s, {restarts(watch.samples())} restarts; {unready_partitions(ready)}",
            "Ready only when every partition runs",
            is_met=not any(each.idle for each in ready),
        )
        assert "Phase:          Succeeded" in tested
        made.start_load()
        yield made
    finally:
        made.close()


def unready_partitions(ready: list[FirstReady]) -> str:
    """The partitions of new pods at the moment when they were Ready."""
    return "running/idle partitions when first Ready: " + ", ".join(f"{each.running}/{each.idle}" for each in ready)
