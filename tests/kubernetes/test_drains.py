"""Drained nodes, and a Kafka that is away: nothing is lost, and no pod is restarted for it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.kubernetes.conftest import unready_partitions
from tests.kubernetes.estate import PODS, WORKERS, KubernetesEstate
from tests.kubernetes.figures import Figures
from tests.kubernetes.pod_watch import PodWatch, first_ready, restarts, restoring_at_once

WORKER = "desk-sowstream-worker-{}"


@pytest.mark.parametrize("force", [False, True], ids=["delete", "force"])
def test_a_deleted_pod_is_replaced(estate: KubernetesEstate, figures: Figures, force: bool) -> None:
    """A pod that is deleted, also without its time to end, comes back, and no record is lost."""
    estate.resume()
    estate.steady(8)
    began_s = time.time()
    how = ("--grace-period=0", "--force") if force else ()
    with PodWatch(estate.cluster.namespace, WORKERS) as watch:
        estate.cluster.kubectl("delete", "pod", WORKER.format(1), "--wait=false", *how)
        estate.wait_ready()
        estate.steady(8)
    pauses = estate.pauses(began_s)
    estate.check()
    figures.add(
        "K3",
        f"`kubectl delete pod{' --force --grace-period=0' if force else ''}`",
        f"{pauses}; {unready_partitions(first_ready(watch.samples()))}",
        "longest 5 s, median 2 s",
        is_met=pauses.longest_s <= 5 and pauses.median_s <= 2,
    )


def test_a_drain_evicts_one_pod_at_a_time(estate: KubernetesEstate, figures: Figures) -> None:
    """Evictions of all three pods, whose claims are deleted first, are refused while another pod restores."""
    estate.resume()
    estate.steady(8)
    began_s = time.time()
    refused = 0
    idle_at_eviction = []
    with PodWatch(estate.cluster.namespace, WORKERS) as watch:
        for number in range(3):
            pod = WORKER.format(number)
            estate.cluster.kubectl("delete", "pvc", f"state-{pod}", "--wait=false")
            while (status := estate.api.evict(pod)) == 429:
                refused += 1
                time.sleep(0.2)  # As a drain asks again; Kubernetes decides.
            assert status == 201
            looked = watch.rounds[-1]
            idle_at_eviction.append({sample.pod: len(sample.idle) for sample in looked if sample.idle})
        estate.wait_ready()
        estate.steady(8)
    seconds = time.time() - began_s - 8
    pauses = estate.pauses(began_s)
    estate.check()
    figures.add(
        "K3",
        "three evictions in a row, claims deleted first",
        f"{seconds:.0f} s, {refused} refused; idle partitions when an eviction was granted: {idle_at_eviction}; "
        f"{pauses}; pods with idle partitions at once: {restoring_at_once(watch.rounds)}; "
        f"{unready_partitions(first_ready(watch.samples()))}",
        "never two pods restoring",
        is_met=not any(idle_at_eviction) and refused > 0,
    )


def test_a_pod_is_not_ready_while_it_restores(estate: KubernetesEstate, figures: Figures) -> None:
    """All pods are deleted with their claims: each is Ready only after all its partitions run."""
    estate.resume()
    estate.steady(8)
    began_s = time.time()
    pods = [WORKER.format(number) for number in range(3)]
    with PodWatch(estate.cluster.namespace, WORKERS) as watch:
        estate.cluster.kubectl("delete", "pvc", "--wait=false", *(f"state-{pod}" for pod in pods))
        estate.cluster.kubectl("delete", "pod", "--wait=false", *pods)
        estate.wait_ready()
        estate.steady(8)
    ready = first_ready(watch.samples())
    pauses = estate.pauses(began_s)
    estate.check()
    figures.add(
        "K4",
        f"all three pods and their claims deleted, {estate.scale.keys:,} keys to restore",
        f"{pauses}; {unready_partitions(ready)}; Ready after {', '.join(f'{each.after_s:.1f}' for each in ready)} s",
        "Ready only when every partition runs",
        is_met=len(ready) == 3 and all(each.idle == 0 and each.running for each in ready),
    )


def test_a_stopped_process_is_restarted(estate: KubernetesEstate, figures: Figures) -> None:
    """A process that does nothing any more is killed by its liveness probe, and the others work on meanwhile."""
    pod = WORKER.format(2)
    uid = estate.api.pod(pod)["metadata"]["uid"]
    if (process := process_of(uid)) is None:
        pytest.skip("the processes of the pods are not those of this machine")
    estate.resume()
    estate.steady(8)
    began_s = time.time()
    with PodWatch(estate.cluster.namespace, WORKERS) as watch:
        os.kill(process, signal.SIGSTOP)
        estate.cluster.wait_for("a restart", lambda: restarts(watch.samples()))
        restarted_s = time.time() - began_s
        estate.wait_ready()
        estate.steady(8)
    pauses = estate.pauses(began_s)
    estate.check()
    figures.add(
        "K4",
        "SIGSTOP of a worker's process",
        f"restarted by its liveness probe after {restarted_s:.0f} s; {pauses}",
        "killed within 90 s",
        is_met=restarted_s <= 90,
    )


def process_of(uid: str) -> int | None:
    """The first process of a pod, if its node is this machine."""
    for cgroup in sorted(Path("/proc").glob("[0-9]*/cgroup"), key=lambda file: int(file.parent.name)):
        try:
            if f"pod{uid}" in cgroup.read_text() and b"worker" in (cgroup.parent / "cmdline").read_bytes():
                return int(cgroup.parent.name)
        except OSError:  # It has ended.
            continue
    return None


def test_workers_wait_while_kafka_is_gone(estate: KubernetesEstate, figures: Figures) -> None:
    """No pod restarts while Kafka is scaled to zero, and all partitions merge again soon after it is back."""
    estate.resume()
    estate.steady(8)
    with PodWatch(estate.cluster.namespace, PODS) as watch:
        estate.cluster.kubectl("scale", "statefulset/kafka", "--replicas=0")
        estate.cluster.kubectl("wait", "--for=delete", "pod/kafka-0", "--timeout=60s")
        time.sleep(estate.scale.outage_s)  # The outage itself.
        unready = [sample.pod for sample in watch.rounds[-1] if not sample.is_ready]
        estate.cluster.kubectl("scale", "statefulset/kafka", "--replicas=1")
        estate.cluster.wait_for("Kafka is ready", estate.is_kafka_ready)
        back_s = time.time()
        estate.wait_flowing()
        merging_s = time.time() - back_s
        estate.wait_ready()
    count = restarts(watch.samples())
    estate.check()
    figures.add(
        "K5",
        f"Kafka at 0 replicas for {estate.scale.outage_s:.0f} s under load",
        f"restarts {count}; all partitions merge {merging_s:.1f} s after its port answers; "
        f"{len(unready)} pods not Ready meanwhile",
        "restarts 0, merging within 15 s",
        is_met=count == 0 and merging_s <= 15,
    )
    assert count == 0


def test_a_replaced_broker_is_found_soon(estate: KubernetesEstate, figures: Figures) -> None:
    """Workers find a broker whose pod has another address."""
    estate.resume()
    estate.steady(8)
    began_s = time.time()
    before = estate.api.pod("kafka-0")["status"]["podIP"]
    estate.cluster.kubectl("delete", "pod", "kafka-0")
    estate.cluster.wait_for("Kafka is ready", estate.is_kafka_ready)
    back_s = time.time()
    estate.wait_flowing()
    merging_s = time.time() - back_s
    pauses = estate.pauses(began_s)
    after = estate.api.pod("kafka-0")["status"]["podIP"]
    estate.check()
    figures.add(
        "K5",
        "the broker's pod replaced" + ("" if before != after else " (the address stayed)"),
        f"{back_s - began_s:.1f} s without broker; all partitions merge {merging_s:.1f} s later; {pauses}",
        "merging within 10 s",
        is_met=merging_s <= 10,
    )
