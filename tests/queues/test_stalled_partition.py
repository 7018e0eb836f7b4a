"""A partition that Kafka hands out no more after its broker was killed, and the guard that frees it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from processor.queues.share_groups import ShareGroups
from processor.queues.stall_guard import LOCKS, ShareGroupView, StallGuard
from processor.queues.transport.share_member import ShareReader
from processor.queues.transport.share_offsets import share_positions
from tests.programs.faults.broker.broker import Broker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processor.queues.transport.leases import Lease

TOPIC = GROUP = "stalled"
LIMIT, BATCH = 100, 80
LEASE_S, PATIENCE_S = 10.0, 11.0
TURNS_MAX = 2_400


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("failed_connections")
def test_a_partition_whose_window_exceeds_the_limit_is_freed_after_a_kill(tmp_path: Path):
    """The broker dies while the oldest record of a full window is held: the records behind the window still come.

    Two batches of 80 are the window of 160 offsets, 60 more than the limit. All but the first are done. The broker
    that is started again leases the first one, and then nothing, as it counts 159 offsets that are done. The guard
    raises the limit, and sets it back.
    """
    with Broker(tmp_path / "broker") as broker, ThreadPoolExecutor(1) as looks:
        kafka = {"bootstrap.servers": broker.bootstrap}
        admin = AdminClient(kafka)
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(120)
        groups = ShareGroups(kafka)
        groups.set(GROUP, {"share.auto.offset.reset": "earliest", LOCKS: str(LIMIT),
                           "share.record.lock.duration.ms": str(round(LEASE_S * 1000))})  # fmt: skip
        for _ in range(4):
            write_batch(kafka)
        reader = ShareReader(
            kafka, group=GROUP, topic=TOPIC, leases_max=2 * BATCH, absence_max_s=60, on_lost=lambda *_: None
        )
        group = ShareGroupView(kafka, GROUP, TOPIC, range(1))
        guard = StallGuard(reader, group, patience_s=PATIENCE_S, run=looks.submit)
        window: list[Lease] = []
        while len(window) < 2 * BATCH:
            window += polled(guard)
        for lease in window[1:]:
            guard.settle(lease, "accept")
        guard.send()
        # What Kafka has not stored when it dies comes again.
        wait_for(guard, lambda: share_positions(kafka, GROUP, TOPIC, range(1))[0].lag == 1 + 2 * BATCH)
        broker.kill()
        broker.start()
        offsets: list[int] = []
        while len(offsets) < 1 + 2 * BATCH:
            for lease in polled(guard):
                offsets.append(lease.record.offset)
                guard.settle(lease, "accept")
            guard.send()
        assert offsets == [0, *range(2 * BATCH, 4 * BATCH)]
        wait_for(guard, lambda: groups.settings(GROUP)[LOCKS] == str(LIMIT))
        guard.close()


def write_batch(kafka: dict[str, str]) -> None:
    """Write the records of one batch."""
    producer = Producer(kafka | {"linger.ms": 500, "batch.num.messages": BATCH})
    for _ in range(BATCH):
        producer.produce(TOPIC, b"{}", partition=0)
    assert producer.flush(120) == 0


def wait_for(guard: StallGuard, reached: Callable[[], bool]) -> None:
    """Poll until a fact is reached; no record but the first comes, which is leased again if its lease was over."""
    for _ in range(TURNS_MAX):
        if reached():
            return
        assert all(lease.record.offset == 0 for lease in guard.poll(0.05))
    raise AssertionError("it was not reached")


def polled(guard: StallGuard) -> list[Lease]:
    """The next records."""
    for _ in range(TURNS_MAX):
        if leases := guard.poll(0.1):
            return leases
    raise AssertionError("no record came")
