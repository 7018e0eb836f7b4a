"""The consumer of a group: batches, pauses, records it cannot read, and headers that are not UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from processor.errors import PartitionHeld
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import GroupConsumer
from processor.kafka.clients.log_reader import LogReader, Position
from processor.kafka.message import columns, records
from processor.topics.family import TopicSpec
from processor.wire.headers import UNREADABLE_NAME
from tests.endtoend.raw_batch import RawWriter, raw_batch, raw_record
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from processor.record import Headers
    from tests.endtoend.raw_batch import RawHeader


pytestmark = pytest.mark.broker


class Member:
    """One member of the group, which reads a topic of two partitions: 0 with the records a, b, c, and 1 empty."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self._kafka = {"bootstrap.servers": bootstrap}
        self._assigned: set[int] = set()
        Admin(self._kafka).create([TopicSpec(topic, "publish", 2, {})])
        self.send(0, b"a", b"b", b"c")
        self.consumer = GroupConsumer(self._kafka, group=topic, topic=topic, session_timeout_s=3.0, listener=self)
        self.read: list[bytes] = []
        self.wait(lambda: len(self._assigned) == 2)

    def on_assigned(self, partitions: list[int]) -> None:
        """Remember the partitions."""
        self._assigned |= set(partitions)

    def on_revoked(self, partitions: list[int]) -> None:
        """Forget the partitions."""
        self._assigned -= set(partitions)

    on_lost = on_revoked

    def send(self, partition: int, *values: bytes, transaction: bool = False) -> None:
        """Publish records, in a transaction of their own on request."""
        given = {"transactional.id": self.topic} if transaction else {}
        producer = Producer({**self._kafka, "linger.ms": 0, **given})
        if transaction:
            producer.init_transactions(120)
            producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value, partition=partition)
        if transaction:
            producer.commit_transaction(PATIENCE_S)
        assert producer.flush(PATIENCE_S) == 0

    def wait(self, reached: Callable[[], bool]) -> None:
        """Poll until a condition holds."""

        def is_reached() -> bool:
            self.read += [message.value() for message in self.consumer.poll(1, 0.02)]
            return reached()

        until(lambda: reached() or is_reached(), lambda: (self.read, self.consumer.ended), pause_s=0)


@pytest.fixture
def member(bootstrap: str, unique: str) -> Iterator[Member]:
    """A member with both partitions, none of which is begun."""
    member = Member(bootstrap, f"{unique}.publish")
    yield member
    member.consumer.close()
    Admin(member._kafka).delete([member.topic])


def test_an_end_is_told_after_the_last_record_and_until_the_next(member):
    """The end of a partition is reported after its last record, also when it is empty or ends with a marker."""
    member.consumer.begin(0, 0)
    member.consumer.begin(1, 0)
    member.wait(lambda: member.consumer.ended.keys() == {0, 1})
    assert member.read == [b"a", b"b", b"c"]
    member.send(0, b"d", transaction=True)
    member.wait(lambda: member.read[3:] == [b"d"])
    member.wait(lambda: member.consumer.ended.keys() == {0, 1})
    member.send(1, b"e", b"f")
    seen = []
    while member.read[4:] != [b"e", b"f"]:
        member.wait(lambda: len(member.read) > 4 + len(seen))
        seen.append(member.consumer.ended.keys() == {0})
    assert seen[0], "between two records is no end"
    member.wait(lambda: member.consumer.ended.keys() == {0, 1})


def test_an_end_is_told_again_to_whoever_begins_again(member):
    """The end of a partition is reported again after each `begin`, and not before it."""
    for place in (0, 3, 2, 3):
        member.consumer.begin(0, place)
        member.consumer.begin(1, 0)
        assert not member.consumer.ended
        member.read.clear()
        member.wait(lambda: member.consumer.ended.keys() == {0, 1})
        assert member.read == [b"a", b"b", b"c"][place:]
        member.consumer.pause(0)
        member.consumer.pause(1)
        assert not member.consumer.ended


def test_a_transactions_marker_is_nothing_to_wait_for(member: Member):
    """A member with every record has no lag, also if the last offset is a transaction marker."""
    member.send(0, b"d", transaction=True)
    member.consumer.begin(0, 0)
    member.wait(lambda: 0 in member.consumer.ended)
    assert member.read == [b"a", b"b", b"c", b"d"]
    assert member.consumer.lag(0, 4) == 0
    member.send(0, b"e")
    member.wait(lambda: b"e" in member.read and 0 not in member.consumer.ended)
    assert member.consumer.lag(0, 3) > 0


class Damaged:
    """A consumer that gets a partition error together with the next messages, as of a batch that cannot be unpacked."""

    def __init__(self, consumer: Any, error: Message) -> None:
        self._consumer = consumer
        self._errors = [error]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        """Real messages after the error."""
        messages = self._consumer.consume(count, timeout_s)
        if messages and self._errors:
            return [self._errors.pop(), *messages]
        return cast("list[Message]", messages)


@pytest.mark.parametrize("code", [KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG])
def test_a_batch_that_does_not_unpack_stops_its_partition_only(member: Member, code: int) -> None:
    """A batch that cannot be unpacked stops its own partition only, which is read again after `begin`."""
    consumer = member.consumer
    error = Message(topic=member.topic, partition=1, offset=5, error=KafkaError(code, "it does not unpack"))
    real, consumer._consumer = consumer._consumer, cast("Any", Damaged(consumer._consumer, error))
    consumer.begin(0, 0)
    consumer.begin(1, 0)
    member.wait(lambda: member.read == [b"a", b"b", b"c"])
    held = consumer.unreadable
    assert [(partition, hold.reason) for partition, hold in held.items()] == [(1, "unreadable_batch")]
    assert f"{member.topic} partition 1: the batch of records at offset 5 cannot be read" in str(held[1])
    consumer._consumer = real
    member.send(1, b"d")
    member.wait(lambda: 0 in consumer.ended)
    assert member.read == [b"a", b"b", b"c"], "it was paused"
    consumer.begin(1, 0)
    assert consumer.unreadable == {}
    member.wait(lambda: member.read == [b"a", b"b", b"c", b"d"])


def test_input_that_is_gone_stops_its_partition_only(member: Member) -> None:
    """A partition whose next records were deleted by retention stops; the other partition is read on."""
    kafka = AdminClient({"bootstrap.servers": member.bootstrap})
    member.send(1, b"d")
    for future in kafka.delete_records([TopicPartition(member.topic, 0, 2)]).values():
        future.result()
    member.consumer.begin(0, 0)
    member.consumer.begin(1, 0)
    held: dict[int, PartitionHeld] = {}
    member.wait(lambda: bool(held.update(member.consumer.unreadable) or (held and member.read)))
    assert member.read == [b"d"]
    assert [(partition, hold.reason) for partition, hold in held.items()] == [(0, "input_gone")]
    assert "nothing is skipped silently" in str(held[0])


def test_a_false_offset_is_the_reason_though_the_client_found_nothing_behind_it(member: Member) -> None:
    """A record with an offset behind the end and the client's failed fetch there, in one read: the record is named."""
    consumer = member.consumer
    error = Message(
        topic=member.topic,
        partition=0,
        offset=701,
        error=KafkaError(KafkaError._AUTO_OFFSET_RESET, "it is out of range"),
    )
    consumer._consumer = cast("Any", Damaged(consumer._consumer, error))
    consumer.begin(0, 0)
    member.wait(lambda: 0 in consumer.unreadable)
    false = Message(topic=member.topic, partition=0, offset=700, key=b"k", value=b"v", timestamp=(1, 1))
    assert consumer.records(0, [false]) == []
    held = consumer.unreadable
    assert [(partition, hold.reason) for partition, hold in held.items()] == [(0, "unreadable_batch")]
    assert "says that its offset is 700" in str(held[0])


CASES: list[tuple[list[RawHeader], Headers | None]] = [
    ([], None),
    ([(b"a", b"1"), (b"\xff\xfe", b"2"), (b"b", None)], [("a", b"1"), (UNREADABLE_NAME, b"2"), ("b", None)]),
    ([(b"\xff", None)], [(UNREADABLE_NAME, None)]),
    ([(b"\xff", b"1"), (b"\xfe", b"2")], [(UNREADABLE_NAME, b"1"), (UNREADABLE_NAME, b"2")]),
    ([(b"\xed\xa0\x80", b"")], [(UNREADABLE_NAME, b"")]),
    ([(b"\xc0\x80", b"")], [(UNREADABLE_NAME, b"")]),
    ([(b"\xf5\x80\x80\x80", b"")], [(UNREADABLE_NAME, b"")]),
    ([(b"\xc3", b"cut off")], [(UNREADABLE_NAME, b"cut off")]),
    ([("é".encode(), b"\xff\x00")], [("é", b"\xff\x00")]),
    ([(b"", b"x")], [("", b"x")]),
    ([(b"a\0b", b"x"), (b"\0", b"y"), (b"c\0\xff", b"z")], [("a", b"x"), ("", b"y"), ("c", b"z")]),
    ([(b"a", b"1"), (b"a", None)], [("a", b"1"), ("a", None)]),
    ([(b"h", b"")] * 1000, [("h", b"")] * 1000),
    ([(b"h", b"")] * 999 + [(b"\xff", b"")], [("h", b"")] * 999 + [(UNREADABLE_NAME, b"")]),
]


@pytest.fixture
def topic(bootstrap: str, unique: str) -> str:
    """A topic with a record for each case, several in a batch."""
    Admin({"bootstrap.servers": bootstrap}).create([TopicSpec(unique, "publish", 1, {})])
    encoded = [raw_record(number, b"k", b"%d" % number, headers) for number, (headers, _) in enumerate(CASES)]
    with RawWriter(bootstrap, unique) as writer:
        assert writer.send(0, raw_batch(b"".join(encoded), len(encoded)))[0] == 0
    return unique


class Listener:
    """Begins each partition at its beginning."""

    def __init__(self) -> None:
        self.assigned: list[int] = []

    def on_assigned(self, partitions: list[int]) -> None:
        """Note them."""
        self.assigned += partitions

    def on_revoked(self, partitions: list[int]) -> None:
        """Nothing is to be done."""

    on_lost = on_revoked


def test_a_member_of_a_group_reads_each_record_with_what_can_be_read(bootstrap: str, topic: str) -> None:
    """A name that is not UTF-8 is replaced; values and other headers are kept, and no later call fails."""
    listener = Listener()
    consumer = GroupConsumer(
        {"bootstrap.servers": bootstrap}, group=topic, topic=topic, session_timeout_s=10, listener=listener
    )
    try:
        while not listener.assigned:
            consumer.poll(1, 0.1)
        consumer.begin(0, 0)
        messages = []
        while len(messages) < len(CASES):
            messages += consumer.poll(5, 0.1)
    finally:
        consumer.close()
    for _ in range(2):
        assert [record.headers for record in records(messages)] == [headers for _, headers in CASES]
        assert columns(messages).headers == [tuple(headers or ()) for _, headers in CASES]
    assert [record.value for record in records(messages)] == [b"%d" % number for number in range(len(CASES))]


def test_a_reader_of_a_log_reads_each_record_with_what_can_be_read(bootstrap: str, topic: str) -> None:
    """Restores, snapshots, subscriptions and tools read in this way."""
    reader = LogReader({"bootstrap.servers": bootstrap}, group=topic)
    try:
        reader.add([Position(topic, 0, 0)])
        messages = []
        while len(messages) < len(CASES):
            messages += reader.read(5, 0.1).messages
    finally:
        reader.close()
    assert [record.headers for record in records(messages)] == [headers for _, headers in CASES]
