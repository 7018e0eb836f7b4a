"""The contract of a member of a share group: the fake keeps it, and our member on a real Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from processor.queues.share_groups import ShareGroups
from processor.queues.transport.leases import Lease
from processor.queues.transport.share_member import ShareReader
from processor.queues.transport.share_offsets import share_positions
from tests.queues.fake_leases import FakeLeases
from tests.waiting import until

TURNS_MAX = 600

Make = Callable[[list[bytes]], "FakeLeases | ShareReader"]


class RealGroup:
    """A topic of one partition, and a share group that begins at its first record."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name, self.kafka = name, {"bootstrap.servers": bootstrap}
        self.lost: list[tuple[list[tuple[int, int]], str]] = []
        self._readers: list[ShareReader] = []
        admin = AdminClient(self.kafka)
        for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
            future.result(120)
        settings = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
        ShareGroups(self.kafka).set(name, settings)

    def write(self, values: list[bytes], *, aborts: bool = False, transaction: str | None = None) -> None:
        """Write records; in a transaction, its marker follows them."""
        producer = Producer(self.kafka | ({"transactional.id": transaction} if transaction else {}))
        if transaction:
            producer.init_transactions(120)
            producer.begin_transaction()
        for value in values:
            producer.produce(self.name, value, key=b"k", partition=0)
        producer.flush(120)
        if transaction:
            (producer.abort_transaction if aborts else producer.commit_transaction)(120)

    def reader(self, absence_max_s: float = 60.0) -> ShareReader:
        """A further member."""
        reader = ShareReader(
            self.kafka,
            group=self.name,
            topic=self.name,
            absence_max_s=absence_max_s,
            on_lost=lambda places, reason: self.lost.append((list(places), reason)),
        )
        self._readers.append(reader)
        return reader

    @property
    def lag(self) -> int:
        """Number of records that are not done."""
        return share_positions(self.kafka, self.name, self.name, [0])[0].lag

    def close(self) -> None:
        """Close the members."""
        for reader in self._readers:
            reader.close()


@pytest.fixture
def group(bootstrap: str, unique: str) -> Iterator[RealGroup]:
    """A share group on a real Kafka."""
    made = RealGroup(bootstrap, unique)
    yield made
    made.close()


@pytest.fixture(params=["fake", pytest.param("kafka", marks=pytest.mark.broker)])
def member(request) -> Make:
    """Make the only member of a share group, with records in one partition."""
    if request.param == "fake":
        return FakeLeases
    group: RealGroup = request.getfixturevalue("group")

    def make(values: list[bytes]) -> ShareReader:
        group.write(values)
        return group.reader()

    return make


def polled(reader: FakeLeases | ShareReader, leases_max: int = 10) -> list[Lease]:
    """The next records."""
    for _ in range(TURNS_MAX):
        if leases := reader.poll(0.05, leases_max):
            return leases
    raise AssertionError("no record came")


def test_records_come_in_order_with_their_deliveries(member):
    """All records come, each for the first time, and no more at a time than asked for."""
    reader = member([b"1", b"2", b"3"])
    leases: list[Lease] = []
    while len(leases) < 3:
        news = polled(reader, 2)
        assert len(news) <= 2
        for lease in news:
            reader.settle(lease, "accept")
        leases += news
    assert [(lease.record.value, lease.deliveries) for lease in leases] == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert reader.partitions == {0}


def test_a_released_record_comes_again_and_others_do_not(member):
    """Of an accepted, a released and a rejected record the released one alone comes again, at its second delivery."""
    reader = member([b"1", b"2", b"3"])
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


@pytest.mark.broker
def test_outcomes_reach_kafka_while_no_call_comes(group: RealGroup):
    """A program that handles its next message for long has acknowledged the one before."""
    group.write([b"1", b"2"])
    reader = group.reader()
    leases: list[Lease] = []
    while len(leases) < 2:
        leases += polled(reader)
    reader.settle(leases[0], "accept")
    until(lambda: group.lag == 1, lambda: group.lag)
    reader.settle(leases[1], "accept")
    until(lambda: group.lag == 0, lambda: group.lag)


@pytest.mark.broker
def test_the_marker_of_a_transaction_does_not_hold_its_partition_up(group: RealGroup):
    """Transactions of one record, read one by one: each marker is leased too, and only the member can decide about it.

    librdkafka 2.16 leaves a fetch with nothing but a marker unanswered; the next record comes when its lease ends,
    after 30 s.
    """
    reader = group.reader()
    for n in range(5):
        group.write([b"%d" % n], transaction=group.name)
        [lease] = polled(reader, 1)
        assert (lease.record.value, lease.deliveries) == (b"%d" % n, 1)
        reader.settle(lease, "accept")


@pytest.mark.broker
def test_records_of_an_aborted_transaction_never_come(group: RealGroup):
    """With `read_committed` a member sees the committed records alone."""
    group.write([b"never"], transaction=group.name, aborts=True)
    group.write([b"1"], transaction=group.name)
    reader = group.reader()
    [lease] = polled(reader)
    assert lease.record.value == b"1"
    reader.settle(lease, "accept")
    assert [lease for _ in range(5) for lease in reader.poll(0.05, 10)] == []


@pytest.mark.broker
def test_a_member_that_leaves_gives_back_what_it_holds(group: RealGroup):
    """Records without an outcome are another member's at once, long before their lease would end."""
    group.write([b"1", b"2"])
    first = group.reader()
    held = polled(first)
    first.settle(held[0], "accept")
    first.close()
    second = group.reader()
    again = polled(second)
    assert {lease.record.value for lease in again} <= {b"2"} | {lease.record.value for lease in held[1:]}
    assert group.lost == []
    for lease in again:
        second.settle(lease, "accept")


@pytest.mark.broker
def test_a_member_whose_program_is_absent_leaves_until_it_is_back(group: RealGroup):
    """It has no partition meanwhile, so that others get them; the first poll afterwards brings the next record."""
    group.write([b"1"])
    reader = group.reader(absence_max_s=0.5)
    [lease] = polled(reader)
    reader.settle(lease, "accept")
    until(lambda: not reader.partitions, lambda: reader.partitions)
    group.write([b"2"])
    assert [one.record.value for one in polled(reader)] == [b"2"]
    assert reader.partitions == {0}
