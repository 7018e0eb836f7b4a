"""Memory limits: large records and long backlogs fit into half a gibibyte."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kubernetes.estate import KubernetesEstate
from tests.kubernetes.figures import Figures
from tests.kubernetes.pod_watch import container_restarts

if TYPE_CHECKING:
    from collections.abc import Iterable

RELEASE: Final = "limits"
WORKERS: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=worker"
CONFLATERS: Final = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component=conflate"
COPIES: Final = ("busy_1s", "busy_5s", "busy_auto")
LARGE_BYTES: Final = 900_000
DELTAS: Final = int(os.environ.get("LARGE_DELTAS", "2000"))
BACKLOG: Final = int(os.environ.get("BACKLOG", "500000"))
_KEYS: Final = 50_000
_LOOK_S: Final = 2.0
_MIB: Final = 1 << 20
_PEAK: Final = (
    "cat /sys/fs/cgroup/memory.peak 2>/dev/null || cat /sys/fs/cgroup/memory/memory.max_usage_in_bytes; "
    "grep VmHWM /proc/1/status"
)


def test_half_a_gibibyte_is_enough(estate: KubernetesEstate, figures: Figures) -> None:
    """A worker merges deltas on a record of 0.9 MB, and a conflater with three copies catches up: none is killed."""
    with estate.release(RELEASE) as release, estate.local_kafka() as bootstrap:
        began_s = time.monotonic()
        large = {"id": 1, "n": -1, "text": "0123456789abcdef" * (LARGE_BYTES // 16)}
        publish(bootstrap, "large", [large, *({"id": 1, "n": number} for number in range(DELTAS))])
        wait_merged(estate, "large", DELTAS + 1)
        merged_s = time.monotonic() - began_s
        last = last_delta(bootstrap, "large")
        assert (last["n"], memory(estate, WORKERS)["restarts"]) == (DELTAS - 1, 0)
        figures.add(
            "K6",
            f"{DELTAS:,} deltas on a record of {LARGE_BYTES / 1e6:.1f} MB, worker with 512 MiB",
            f"merged in {merged_s:.0f} s; {memory(estate, WORKERS)['text']}",
            "not killed",
        )
        publish(bootstrap, "busy", ({"id": number % _KEYS, "n": number} for number in range(BACKLOG)))
        wait_merged(estate, "busy", BACKLOG)
        began_s = time.monotonic()
        release.upgrade(RELEASE, *estate.images, "--set", "conflate.replicas=1")
        wait_conflated(estate, bootstrap)
        caught_up_s = time.monotonic() - began_s
        used = memory(estate, CONFLATERS)
        figures.add(
            "K6",
            f"a conflater with 3 copies of 6 partitions, {BACKLOG:,} updates behind, with 512 MiB",
            f"caught up after {caught_up_s:.0f} s; {used['text']}",
            "not killed",
            is_met=used["restarts"] == 0,
        )
        assert used["restarts"] == 0


def publish(bootstrap: str, topic: str, records: Iterable[dict[str, Any]]) -> None:
    """Publish records with their keys."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True,
                         "linger.ms": 20, "compression.type": "lz4"})  # fmt: skip
    for record in records:
        while True:
            try:
                producer.produce(f"{topic}.publish", json.dumps(record).encode(), str(record["id"]).encode())
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def wait_merged(estate: KubernetesEstate, topic: str, count: int) -> None:
    """Wait until the workers have written so many deltas, while none is killed."""

    def is_merged() -> bool:
        assert not sum(map(container_restarts, estate.api.pods(WORKERS)))
        written = [
            value
            for name, labels, value in estate.metrics(WORKERS)
            if name == "sowstream_records_emitted_total" and (labels["processor"], labels["output"]) == (topic, "delta")
        ]
        return sum(written) >= count

    estate.wait_until(f"{topic} is merged", is_merged, 900, _LOOK_S)


def wait_conflated(estate: KubernetesEstate, bootstrap: str) -> None:
    """Wait until each copy has had all updates, and nothing waits for the end of an interval."""

    def is_conflated() -> bool:
        found = estate.metrics(CONFLATERS)
        waiting = {
            labels["processor"]: value
            for name, labels, value in found
            if name == "sowstream_partition_lag_records" and labels["processor"] in COPIES and value
        }
        states = [labels for name, labels, value in found if name == "sowstream_task_state" and value]
        running = [labels for labels in states if labels["state"] == "running" and labels["processor"] in COPIES]
        return len(running) == 6 * len(COPIES) and not waiting

    estate.wait_until("the conflater has caught up", is_conflated, 900, _LOOK_S)
    for copy in COPIES:
        estate.wait_until(f"{copy} has all keys", lambda copy=copy: keys_of(bootstrap, copy) == _KEYS, 120, _LOOK_S)


def keys_of(bootstrap: str, topic: str) -> int:
    """The number of different keys in a SOW topic."""
    keys = set()
    unread = ends(bootstrap, f"{topic}.sow")
    consumer = reader(bootstrap)
    consumer.assign([TopicPartition(f"{topic}.sow", number, 0) for number, end in unread.items() if end])
    unread = {number for number, end in unread.items() if end}
    while unread:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is not None:
                unread.discard(message.partition())
            else:
                keys.add(message.key())
    consumer.close()
    return len(keys)


def last_delta(bootstrap: str, topic: str) -> dict[str, Any]:
    """The last delta of a topic of one partition."""
    end = ends(bootstrap, f"{topic}.delta")[0]
    consumer = reader(bootstrap)
    consumer.assign([TopicPartition(f"{topic}.delta", 0, max(0, end - 20))])
    last: dict[str, Any] = {}
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            consumer.close()
            return last
        last = json.loads(message.value())


def ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The end of each partition, control records of transactions included."""
    consumer = reader(bootstrap)
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    found = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 20)[1] for number in partitions}
    consumer.close()
    return found


def reader(bootstrap: str) -> Consumer:
    """A consumer of committed records that tells where a partition ends."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "limits",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )


def memory(estate: KubernetesEstate, selector: str) -> dict[str, Any]:
    """The restarts of the pods, and the largest memory of each container and of its process."""
    pods = estate.api.pods(selector)
    restarts = sum(map(container_restarts, pods))
    texts = []
    for pod in pods:
        name = pod["metadata"]["name"]
        group, _, process = estate.cluster.kubectl("exec", name, "--", "sh", "-c", _PEAK).strip().partition("\n")
        resident = int(process.split()[1]) / 1024
        texts.append(
            f"{restarts} restarts, at most {resident:.0f} MiB resident, {int(group) / _MIB:.0f} MiB with its pages"
        )
    return {"restarts": restarts, "text": "; ".join(texts)}
