"""The settings of a queue's share group, and a partition that Kafka hands out no more (queues.md, rule 6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from processor.config import Config, QueueConfig
from processor.queues import queue_opening, share_groups
from processor.queues.queue_opening import QueueOpener
from processor.queues.share_groups import ShareGroups, group_problems, group_settings, queue_writer_properties
from processor.queues.stall_guard import LOCKS, ShareGroupView, StallGuard
from processor.queues.transport import share_member
from processor.queues.transport.share_member import ShareReader
from processor.queues.transport.share_offsets import share_positions
from tests.programs.faults.broker.broker import Broker
from tests.queues.fake_leases import FakeLeases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from processor.kafka.admin.topic_lookup import TopicLookup
    from processor.queues.transport.leases import Lease


QUEUE = QueueConfig(underlying="orders", lease=20, max_deliveries=3)
KAFKAS_OWN = {
    "share.isolation.level": "read_uncommitted",
    "share.auto.offset.reset": "latest",
    "share.record.lock.duration.ms": "30000",
    "share.delivery.count.limit": "5",
}


class Answers:
    """The share groups of a Kafka whose limit of leases a test sets."""

    locks = "2000"
    wanted: dict[str, str]

    def __init__(self, _kafka: object) -> None:
        """Connect."""

    def settings(self, _group: str) -> dict[str, str]:
        """The settings in force."""
        return {LOCKS: self.locks}

    def set(self, _group: str, wanted: dict[str, str]) -> list[str]:
        """Note the settings."""
        Answers.wanted = wanted
        return []


@pytest.mark.parametrize(("locks", "is_set"), [("500", False), ("2000", False), ("4000", True)])
def test_a_limit_that_a_killed_consumer_left_raised_is_set_back(
    monkeypatch: pytest.MonkeyPatch, locks: str, is_set: bool
) -> None:
    """`topics apply` sets a limit above Kafka's default to that; a lower one is an operator's."""
    monkeypatch.setattr(Answers, "locks", locks)
    monkeypatch.setattr(share_groups, "ShareGroups", Answers)
    sections = {"topics": {"orders": {"key": ["/id"]}}, "queues": {"jobs": {"underlying": "orders"}}}
    share_groups.set_share_groups(Config.model_validate({"application_id": "app", "kafka": {}, **sections}))
    assert (Answers.wanted.get(LOCKS) == "2000") is is_set


class Reader(FakeLeases):
    """A member of a share group that notes how it was made."""

    made: dict[str, Any]

    def __init__(self, _kafka: object, **made: Any) -> None:
        super().__init__()
        Reader.made = made


@pytest.mark.parametrize(("lock_ms", "lease_s"), [("15000", 15.0), ("20000", 20.0), ("60000", 20.0)])
def test_a_consumer_goes_by_the_lease_that_kafka_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lock_ms: str, lease_s: float
) -> None:
    """A share group with a shorter lease than the queue's is warned of, and its lease is that of the consumer."""
    actual = group_settings(QUEUE) | {"share.record.lock.duration.ms": lock_ms}
    monkeypatch.setattr(Answers, "settings", lambda *_: actual)
    monkeypatch.setattr(queue_opening, "ShareGroups", Answers)
    monkeypatch.setattr(queue_opening, "Publisher", lambda _: None)
    monkeypatch.setattr(share_member, "ShareReader", Reader)
    sections = {"topics": {"orders": {"key": ["/id"]}}, "queues": {"jobs": QUEUE}}
    config = Config.model_validate({"application_id": "app", "kafka": {}, **sections})
    opener = QueueOpener(config, cast("TopicLookup", SimpleNamespace(partitions=lambda _: 1)))
    with opener.queue("jobs", max_backlog=1, timeout_s=0, on_message=None) as queue:
        assert next(iter(queue), None) is None
    assert Reader.made["absence_max_s"] == queue._backlog._settings.lease == lease_s
    assert [f"is {lock_ms}, and the queue's lease is 20000 ms" in text for text in caplog.messages] == (
        [] if lock_ms == "20000" else [True]
    )


def severities(**changed: str | None) -> list[str]:
    """The problems of a group whose settings are right but for these; None: Kafka has no such setting."""
    actual = {name: changed.get(name.replace(".", "_"), value) for name, value in group_settings(QUEUE).items()}
    problems = group_problems("app.jobs", QUEUE, {name: value for name, value in actual.items() if value is not None})
    return [problem.severity for problem in problems]


def test_the_settings_of_a_queue():
    """Committed records from the first on, the queue's lease, and deliveries to spare for the dead letter."""
    assert group_settings(QUEUE) == {
        "share.isolation.level": "read_committed",
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "20000",
        "share.delivery.count.limit": "8",
    }
    assert group_settings(QueueConfig(underlying="o", max_deliveries=9))["share.delivery.count.limit"] == "10"


def test_kafkas_own_settings_are_refused():
    """Kafka's defaults would deliver rolled-back records, and skip the messages that are there."""
    problems = group_problems("app.jobs", QUEUE, KAFKAS_OWN)
    assert [problem.severity for problem in problems] == ["refuse", "refuse", "warn", "warn"]
    assert "rolled-back" in str(problems[0])
    assert {problem.to_do for problem in problems} == {"sowstream topics apply"}


@pytest.mark.parametrize(
    ("changed", "severity"),
    [
        ({}, []),
        ({"share_isolation_level": "read_uncommitted"}, ["refuse"]),
        ({"share_auto_offset_reset": "latest"}, ["refuse"]),
        ({"share_record_lock_duration_ms": "15000"}, ["warn"]),
        ({"share_delivery_count_limit": "3"}, ["refuse"]),
        ({"share_delivery_count_limit": "4"}, ["warn"]),
        ({"share_delivery_count_limit": None}, ["warn"]),
        ({"share_isolation_level": None}, ["refuse"]),
    ],
)
def test_each_difference_has_its_severity(changed, severity):
    """A setting with which messages would be lost or wrongly delivered is refused; another lease is a warning."""
    assert severities(**changed) == severity


def test_a_kafka_without_share_groups_is_refused_with_the_reason():
    """Brokers before 4.2 have no such settings, and the problem says so."""
    [problem] = group_problems("app.jobs", QUEUE, {"consumer.session.timeout.ms": "45000"})
    assert (problem.severity, "Kafka 4.2" in str(problem)) == ("refuse", True)


@pytest.mark.parametrize(("asked", "records"), [(None, "1000"), ("10000", "1000"), ("50", "50")])
def test_the_batches_of_queues_are_small(asked: str | None, records: str):
    """A worker that fills queues writes at most 1,000 records a batch, and fewer if the user says so."""
    kafka = {"client.id": "x"} | ({} if asked is None else {"batch.num.messages": asked})
    assert queue_writer_properties(kafka) == {"client.id": "x", "batch.num.messages": records}


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
        reader = ShareReader(kafka, group=GROUP, topic=TOPIC, absence_max_s=60, on_lost=lambda *_: None)
        group = ShareGroupView(kafka, GROUP, TOPIC, range(1))
        guard = StallGuard(reader, group, patience_s=PATIENCE_S, run=looks.submit)
        window: list[Lease] = []
        while len(window) < 2 * BATCH:
            window += polled(guard)
        for lease in window[1:]:
            guard.settle(lease, "accept")
        # What Kafka has not stored when it dies comes again.
        wait_for(guard, lambda: share_positions(kafka, GROUP, TOPIC, range(1))[0].lag == 1 + 2 * BATCH)
        broker.kill()
        broker.start()
        offsets: list[int] = []
        while len(offsets) < 1 + 2 * BATCH:
            for lease in polled(guard):
                offsets.append(lease.record.offset)
                guard.settle(lease, "accept")
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
        assert all(lease.record.offset == 0 for lease in guard.poll(0.05, 2 * BATCH))
    raise AssertionError("it was not reached")


def polled(guard: StallGuard) -> list[Lease]:
    """The next records."""
    for _ in range(TURNS_MAX):
        if leases := guard.poll(0.1, 2 * BATCH):
            return leases
    raise AssertionError("no record came")
