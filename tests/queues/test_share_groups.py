"""The settings of a queue's share group, and the problems of those that differ (queues.md, rule 6)."""

import pytest

from processor.config import QueueConfig
from processor.queues.share_groups import group_problems, group_settings, queue_writer_properties

QUEUE = QueueConfig(underlying="orders", lease=20, max_deliveries=3)
KAFKAS_OWN = {
    "share.isolation.level": "read_uncommitted",
    "share.auto.offset.reset": "latest",
    "share.record.lock.duration.ms": "30000",
    "share.delivery.count.limit": "5",
}


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
