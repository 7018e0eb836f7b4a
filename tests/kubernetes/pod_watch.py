"""Samples the workers' pods: their readiness by Kubernetes, and the states of their partitions by themselves."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.kubernetes.api import Api

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_INTERVAL_S = 0.2
METRICS_PORT = 9464


class PodSample(NamedTuple):
    """One look at one pod."""

    at_s: float
    """Wall clock, in seconds since the epoch."""
    pod: str
    uid: str
    is_ready: bool
    """Its condition in Kubernetes, which probes bring about every two seconds."""
    is_ending: bool
    restarts: int
    tasks: dict[str, str] | None
    """The state of each partition, as `orders/3`; None while the process serves no page."""

    @property
    def idle(self) -> list[str]:
        """The partitions of the pod that do not run."""
        return [name for name, state in (self.tasks or {}).items() if state != "running"]


class PodWatch:
    """A thread that samples the pods of a selector until the end of the `with` block."""

    def __init__(self, namespace: str, selector: str) -> None:
        """Prepare the watch."""
        self._api = Api(namespace)
        self._selector = selector
        self.rounds: list[list[PodSample]] = []
        """Each look at all pods."""
        self.problems: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def __enter__(self) -> Self:
        self._api.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)
        self._api.__exit__()

    def samples(self) -> Iterator[PodSample]:
        """All samples in order of time."""
        for looked in list(self.rounds):
            yield from looked

    def _run(self) -> None:
        while not self._is_over.wait(_INTERVAL_S):
            try:
                self.rounds.append([self._look(pod) for pod in self._api.pods(self._selector)])
            except OSError as error:
                self.problems.append(str(error))

    def _look(self, pod: dict[str, Any]) -> PodSample:
        status, metadata = pod["status"], pod["metadata"]
        containers = status.get("containerStatuses", ())
        return PodSample(
            time.time(),
            metadata["name"],
            metadata["uid"],
            is_pod_ready(pod),
            "deletionTimestamp" in metadata,
            container_restarts(pod),
            self._tasks(metadata["name"]) if any("running" in each["state"] for each in containers) else None,
        )

    def _tasks(self, pod: str) -> dict[str, str] | None:
        try:
            page = json.loads(self._api.page(pod, METRICS_PORT, "status", timeout_s=1))
        except (OSError, ValueError):
            return None
        return {
            f"{pipeline['name']}/{task['partition']}": task["state"]
            for pipeline in page["pipelines"]
            for task in pipeline["partitions"]
        }


def is_pod_ready(pod: dict[str, Any]) -> bool:
    """Return whether a pod has the condition Ready."""
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def container_restarts(pod: dict[str, Any]) -> int:
    """How often the containers of a pod have been started again."""
    return sum(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))


class FirstReady(NamedTuple):
    """The moment at which a pod was Ready for the first time."""

    pod: str
    after_s: float
    """Seconds since its process served its first page."""
    running: int
    idle: int
    """Its partitions that ran, and that did not."""


def first_ready(samples: Iterable[PodSample]) -> list[FirstReady]:
    """The first sample with the condition Ready of each life of a pod that was seen unready before."""
    begun: dict[str, float] = {}
    unready: set[str] = set()
    found: dict[str, FirstReady] = {}
    for sample in samples:
        if sample.tasks is None or sample.uid in found:
            continue
        began_s = begun.setdefault(sample.uid, sample.at_s)
        if not sample.is_ready:
            unready.add(sample.uid)
        elif sample.uid in unready:
            idle = len(sample.idle)
            found[sample.uid] = FirstReady(sample.pod, sample.at_s - began_s, len(sample.tasks) - idle, idle)
    return list(found.values())


def restoring_at_once(rounds: Iterable[list[PodSample]]) -> int:
    """The largest number of pods that had partitions which did not run, in one look."""
    return max((sum(bool(sample.idle) for sample in looked) for looked in rounds), default=0)


def restarts(samples: Iterable[PodSample]) -> int:
    """The restarts of containers between the first and the last look, of pods seen in both."""
    counts: dict[str, list[int]] = {}
    for sample in samples:
        counts.setdefault(sample.uid, []).append(sample.restarts)
    return sum(max(of_pod) - of_pod[0] for of_pod in counts.values())
