"""The contract of a member of a share group: the fake keeps it, and librdkafka's member on its mock broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from processor.kafka.readers.share_reader import Lease, ShareReader
from tests.client.queue.fake_leases import FakeLeases

TURNS_MAX = 600

Make = Callable[[list[bytes], int], "FakeLeases | ShareReader"]


@pytest.fixture(params=["fake", "librdkafka"])
def member(request) -> Iterator[Make]:
    """Make the only member of a share group, with records in one partition."""
    if request.param == "fake":
        yield lambda values, leases_max: FakeLeases(values, leases_max=leases_max)
        return
    mock = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=30).brokers.values()))
    readers = []

    def make(values: list[bytes], leases_max: int) -> ShareReader:
        kafka = {"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": "0"}
        lost: list[object] = []
        mock.list_topics("q.queue", timeout=30)  # The mock broker makes the topic.
        reader = ShareReader(kafka, group="g", topic="q.queue", leases_max=leases_max, on_lost=lost.append)
        readers.append(reader)
        # It begins behind the records of before it had the partition: one that arrives proves that it has it.
        for _ in range(TURNS_MAX):
            mock.produce("q.queue", b"first", partition=0)
            mock.flush(30)
            if leases := reader.poll(0.05):
                break
        while leases:
            for lease in leases:
                reader.settle(lease, "accept")
            leases = reader.poll(0.5)
        for value in values:
            mock.produce("q.queue", value, partition=0)
        mock.flush(30)
        return reader

    yield make
    for reader in readers:
        reader.close()


def polled(reader: FakeLeases | ShareReader) -> list[Lease]:
    """The next records."""
    for _ in range(TURNS_MAX):
        if leases := reader.poll(0.05):
            return leases
    raise AssertionError("no record came")


def test_records_come_in_order_with_their_deliveries(member):
    """All records come, each for the first time."""
    reader = member([b"1", b"2", b"3"], 10)
    leases: list[Lease] = []
    while len(leases) < 3:
        news = polled(reader)
        for lease in news:
            reader.settle(lease, "accept")
        leases += news
    assert [(lease.record.value, lease.deliveries) for lease in leases] == [(b"1", 1), (b"2", 1), (b"3", 1)]


def test_a_released_record_comes_again_and_others_do_not(member):
    """Of an accepted, a released and a rejected record the released one alone comes again, at its second delivery."""
    reader = member([b"1", b"2", b"3"], 10)
    verdicts = {b"1": "accept", b"2": "release", b"3": "reject"}
    for _ in range(TURNS_MAX):
        leases = polled(reader)
        if leases[0].deliveries == 2:
            break
        for lease in leases:
            reader.settle(lease, verdicts[lease.record.value])
    assert [(lease.record.value, lease.deliveries) for lease in leases] == [(b"2", 2)]
    for lease in leases:
        reader.settle(lease, "accept")


def test_outcomes_can_be_sent_before_the_next_poll(member):
    """Outcomes that are sent at once, with and without waiting for the answer, count: nothing comes again."""
    reader = member([b"1", b"2"], 1)
    for waits in (False, True):
        for lease in polled(reader):
            reader.settle(lease, "accept")
            reader.send(waits=waits)
    later = [lease for _ in range(5) for lease in reader.poll(0.05)]
    for lease in later:
        reader.settle(lease, "accept")
    assert all(lease.deliveries == 1 for lease in later)
