"""The checks of the run in a cluster find the faults they are for; none of these tests needs a cluster."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.deploy.test_chart import needs_helm, one, render, settings
from tests.deploy.test_chart_spark import violations
from tests.kubernetes.estate import VALUES
from tests.kubernetes.figures import Figures, Pauses
from tests.kubernetes.pod_watch import PodSample, first_ready, restarts, restoring_at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program that accounts for records, as it runs in the cluster."""
    monkeypatch.syspath_prepend(str(HERE / "in_pods"))
    yield importlib.import_module("account")
    for name in ("account", "served"):
        monkeypatch.delitem(importlib.sys.modules, name)  # type: ignore[attr-defined]


def deltas(account: Any, versions: list[int]) -> list[str]:
    """The differences of a partition with one key and three inputs, whose deltas have these versions."""
    fold = account.Fold()
    for number in range(3):
        fold.add_input(b"1", json.dumps({"id": 1, f"f{number}": number}).encode())
    for version in versions:
        fold.add_delta(b"1", json.dumps({"id": 1, f"f{version - 1}": version - 1}).encode(), version)
    fold.world[b"1"] = dict(fold.expected[b"1"])
    return list(fold.differences())


def test_an_account_is_right_if_each_input_has_its_delta(account: Any) -> None:
    """There is no difference where each input has one delta, in order."""
    assert deltas(account, [1, 2, 3]) == []


@pytest.mark.parametrize("versions", [[1, 2], [1, 3], [1, 1, 2, 3], [1, 2, 2, 3], [2, 1, 3]])
def test_a_lost_double_or_late_delta_is_found(account: Any, versions: list[int]) -> None:
    """A delta that is missing, comes twice or out of order is a difference."""
    assert deltas(account, versions)


def test_a_wrong_record_in_the_state_of_the_world_is_found(account: Any) -> None:
    """SOW is compared with the fold of the input, also where all deltas are right."""
    fold = account.Fold()
    fold.add_input(b"1", b'{"id": 1, "n": 1}')
    fold.add_delta(b"1", b'{"id": 1, "n": 1}', 1)
    fold.world[b"1"] = {"id": 1, "n": 0}
    assert fold.differences() == ["SOW: key b'1'"]


def sample(at_s: float, states: dict[str, str] | None, *, is_ready: bool, pod: str = "w0", count: int = 0) -> PodSample:
    """A look at a pod."""
    return PodSample(at_s, pod, f"uid of {pod}", is_ready, is_ending=False, restarts=count, tasks=states)


def test_a_pod_that_is_ready_while_it_restores_is_found() -> None:
    """The partitions at the first moment of readiness are counted, but for pods that were ready all the time."""
    samples = [
        sample(1, None, is_ready=False),
        sample(2, {"orders/0": "restoring"}, is_ready=False),
        sample(1, {"orders/1": "running"}, is_ready=True, pod="w1"),
        sample(4, {"orders/0": "restoring", "orders/2": "running"}, is_ready=True),
        sample(5, {"orders/0": "running", "orders/2": "running"}, is_ready=True),
    ]
    [ready] = first_ready(samples)
    assert (ready.pod, ready.after_s, ready.running, ready.idle) == ("w0", 2, 1, 1)


def test_pods_that_restore_at_once_and_restarts_are_counted() -> None:
    """The largest number in one look counts, and restarts before the first look do not."""
    idle, running = {"orders/0": "restoring"}, {"orders/0": "running"}
    rounds = [
        [sample(1, running, is_ready=True, count=2), sample(1, idle, is_ready=False, pod="w1")],
        [sample(2, idle, is_ready=False, count=3), sample(2, idle, is_ready=False, pod="w1")],
    ]
    assert restoring_at_once(rounds) == 2
    assert restarts(one_look for looked in rounds for one_look in looked) == 1


def test_pauses_are_summed_up_by_partition() -> None:
    """The median is that of each partition's longest pause; partitions without a pause count as zero."""
    pauses = Pauses({"0": [1.0, 3.0], "1": [2.0], "2": []})
    assert (pauses.longest_s, pauses.median_s, pauses.most, pauses.mean) == (3.0, 2.0, 2, 1.0)


def test_a_missed_goal_is_marked() -> None:
    """The table says which goals were missed."""
    figures = Figures()
    figures.add("K2", "a rollout", "4 s", "3 s", is_met=False)
    figures.add("K3", "a drain", "2 s", "3 s")
    assert str(figures).splitlines()[2:] == [
        "| K2 | a rollout | 4 s | **missed:** 3 s |",
        "| K3 | a drain | 2 s | 3 s |",
    ]


@needs_helm
def test_the_release_of_the_run_is_accepted(tmp_path: Path) -> None:
    """The chart and the settings accept the values, and the topics have the partitions that the run counts on."""
    release = render(*(word for file in VALUES for word in ("-f", str(file))))
    config = settings(one(release, "ConfigMap", "sowstream"), tmp_path)
    assert (config.topics["orders"].partitions, one(release, "StatefulSet", "worker")["spec"]["replicas"]) == (12, 3)


def own_pods() -> list[dict[str, Any]]:
    """The pods of the broker and of the programs."""
    texts = [(HERE / name).read_text(encoding="utf-8") for name in ("kafka.yaml", "in_pods/pod.yaml")]
    manifests = [manifest for text in texts for manifest in yaml.safe_load_all(text)]
    pods = [each["spec"] for each in manifests if each["kind"] == "Pod"]
    return pods + [each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "StatefulSet"]


def test_the_pods_of_the_run_are_restricted() -> None:
    """Broker and programs keep the Pod Security Standard that the namespace enforces."""
    assert [violations(pod) for pod in own_pods()] == [[], []]


def test_six_workers_fit_on_two_cores() -> None:
    """The largest number of workers in the run can be scheduled beside all other pods on a node of two cores."""
    values = yaml.safe_load(VALUES[-1].read_text(encoding="utf-8"))
    parts = [values["worker"]] * 6 + [values["conflate"]] + [each for pod in own_pods() for each in pod["containers"]]
    requests = [part["resources"]["requests"]["cpu"] for part in parts]
    assert sum(int(request.removesuffix("m")) for request in requests) < 1900
