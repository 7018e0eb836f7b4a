"""Kafka is gone for a while, or replaced."""

from __future__ import annotations

import time

from tests.kubernetes.estate import PODS, KubernetesEstate
from tests.kubernetes.figures import Figures
from tests.kubernetes.pod_watch import PodWatch, restarts


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
